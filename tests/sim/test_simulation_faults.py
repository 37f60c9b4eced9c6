from collections import Counter
from statistics import median

import pytest

from extproc.sim.measures import Served
from extproc.sim.traces import Arrival
from tests.sim.fleets import arrivals, fleet, run
from tests.sim.test_simulation import check_conserved

REQUESTS = 200
RATE_PER_S = 10.0
"""So they come for 20 s."""


def sent_between(served: tuple[Served, ...], node: str, begin_s: float, end_s: float) -> list[Served]:
    return [one for one in served if one.node == node and begin_s <= one.sent_s < end_s]


def with_fault(kind: str, at_s: float = 5.0, for_s: float = 8.0, **factor: float) -> dict[str, object]:
    return {"name": "faulty", "faults": [{"kind": kind, "at_s": at_s, "for_s": for_s, **factor}]}


@pytest.mark.parametrize("strategy", ["least-added-delay", "round-robin", "least-inflight"])
def test_a_node_that_answers_with_errors_fails_the_first_and_those_that_try_it_again(strategy: str) -> None:
    result = run(arrivals(REQUESTS, RATE_PER_S), strategy, fleet=fleet({"count": 2}, with_fault("error", for_s=5.0)))
    check_conserved(result, REQUESTS)
    failed = [one for one in result.served if one.failed]
    # At once, after 1 s and after 3 s; it is tried again after 7 s: each time it stays out twice as long.
    assert 1 <= len(failed) <= 4
    assert {one.node for one in failed} == {"faulty"}
    assert all(5.0 <= one.sent_s < 10.0 for one in failed)
    assert sent_between(result.served, "faulty", 13.0, 100.0)


def test_what_a_failing_node_already_has_goes_on() -> None:
    long = arrivals(20, rate_per_s=100.0)
    result = run(long, fleet=fleet(with_fault("error", at_s=0.5)))
    assert not any(one.failed for one in result.served)
    assert max(one.finished_s or 0.0 for one in result.served) > 1.0


def test_a_node_that_hangs_gets_nothing_once_its_sample_is_old_and_goes_on_where_it_stood() -> None:
    result = run(arrivals(REQUESTS, RATE_PER_S), fleet=fleet({"count": 2}, with_fault("hang")))
    check_conserved(result, REQUESTS)
    assert all(one.complete for one in result.served)
    assert not sent_between(result.served, "faulty", 11.0, 13.0)
    caught = [
        one for one in result.served if one.node == "faulty" and one.finished_s and one.sent_s < 5.0 < one.finished_s
    ]
    assert caught
    assert not [one for one in caught if one.finished_s and 5.1 < one.finished_s < 13.0]
    assert sent_between(result.served, "faulty", 15.0, 100.0)


def test_a_node_that_is_slow_for_a_while_serves_slowly_then_and_as_before_afterwards() -> None:
    fault = with_fault("slow", factor=4.0)
    result = run(arrivals(REQUESTS, RATE_PER_S), fleet=fleet({"count": 2}, fault))
    check_conserved(result, REQUESTS)

    def tpots(begin_s: float, end_s: float) -> list[float]:
        return [one.tpot_s for one in sent_between(result.served, "faulty", begin_s, end_s) if one.output_tokens > 20]

    assert median(tpots(5.0, 8.0)) > 2 * median(tpots(15.0, 30.0))
    shares = Counter(one.node for one in result.served if 8.0 <= one.sent_s < 13.0)
    assert shares["faulty"] < shares["node-1"] / 1.5


@pytest.mark.parametrize("loading_s", [0.0, 3.0])
def test_a_node_gets_its_first_request_when_it_has_joined_and_is_ready(loading_s: float) -> None:
    late = {"name": "late", "joins_at_s": 4.0, "ready_after_s": loading_s}
    result = run(arrivals(REQUESTS, RATE_PER_S), fleet=fleet({"count": 2}, late))
    check_conserved(result, REQUESTS)
    first = min(one.sent_s for one in result.served if one.node == "late")
    assert 4.0 + loading_s <= first < 6.5 + loading_s
    assert all(one.complete for one in result.served)


def test_a_node_that_leaves_finishes_what_it_has_and_gets_nothing_new() -> None:
    leaving = {"name": "leaving", "leaves_at_s": 6.0}
    result = run(arrivals(REQUESTS, RATE_PER_S), fleet=fleet({"count": 2}, leaving))
    check_conserved(result, REQUESTS)
    had = [one for one in result.served if one.node == "leaving"]
    assert max(one.sent_s for one in had) < 7.1
    assert all(one.complete for one in had)
    assert max(one.finished_s or 0.0 for one in had) > 6.0


def test_where_no_node_is_left_requests_are_sent_nowhere() -> None:
    """Long after it said goodbye, too: it is not taken for one whose agent fell silent."""
    result = run([Arrival(index / RATE_PER_S, 100, 5) for index in range(250)], fleet=fleet({"leaves_at_s": 5.0}))
    check_conserved(result, 250)
    assert all(one.complete for one in result.served if one.sent_s < 5.0)
    assert {one.node for one in result.served if one.sent_s > 6.1} == {""}


@pytest.mark.parametrize("kind", ["error", "hang"])
def test_the_reference_knows_of_a_fault_at_once(kind: str) -> None:
    result = run(arrivals(REQUESTS, RATE_PER_S), None, fleet=fleet({"count": 2}, with_fault(kind)))
    check_conserved(result, REQUESTS)
    assert all(one.complete for one in result.served)
    assert not sent_between(result.served, "faulty", 5.0, 13.0)


def test_the_reference_fails_what_nobody_can_serve() -> None:
    result = run(arrivals(20, RATE_PER_S), None, fleet=fleet(with_fault("error", at_s=0.0, for_s=1.0)))
    check_conserved(result, 20)
    assert [one.failed for one in result.served] == [one.sent_s < 1.0 for one in result.served]
