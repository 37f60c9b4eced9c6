from collections.abc import Sequence

import pytest

from extproc.sim import nodesneeded
from extproc.sim.nodesneeded import Objective, Outcome, equal, nodes_needed, outcome, tally
from extproc.sim.simulation import Run, Setup, simulate
from extproc.sim.steptime import StepCost
from extproc.sim.traces import Arrival
from tests.sim.fleets import arrivals, fleet, setup

ONE_A_SECOND = StepCost(1.0, 0, 0, 0, 0)
"""With one sequence at a time: each request of one token takes a second, and nothing else matters."""


def bursts(size: int, times: int = 3, every_s: float = 20.0) -> list[Arrival]:
    """So many requests of one token at next to one moment, and again."""
    return [Arrival(time * every_s + place / 1000, 16, 1) for time in range(times) for place in range(size)]


def one_a_second(strategy: str = "round-robin") -> Setup:
    return setup(strategy, fleet=fleet({"sequences_max": 1}), cost=ONE_A_SECOND)


def objective(ttft_s: float = 1.1, share: float = 1.0, tpot_s: float | None = None) -> Objective:
    return Objective(ttft_s=ttft_s, share=share, tpot_s=tpot_s)


@pytest.mark.parametrize(
    ("size", "ttft_s", "share", "nodes"),
    [
        (1, 1.1, 1.0, 1),
        (2, 1.1, 1.0, 2),
        (6, 1.1, 1.0, 6),  # each must be alone
        (6, 2.1, 1.0, 3),  # one may wait behind another
        (6, 3.1, 1.0, 2),
        (6, 6.1, 1.0, 1),
        (6, 1.1, 0.5, 3),  # the first at each node is enough: exactly the share
        (6, 1.1, 0.51, 4),
        (6, 1.1, 1 / 3, 2),
        (6, 0.9, 0.01, None),  # no node is fast enough
        (13, 1.1, 1.0, 13),
        (17, 1.1, 1.0, None),  # more than the 16 that there may be
    ],
)
def test_bursts_before_nodes_that_take_a_second_for_each(
    size: int, ttft_s: float, share: float, nodes: int | None
) -> None:
    found = nodes_needed(bursts(size), one_a_second(), objective(ttft_s, share), 16)
    assert found.nodes == nodes
    assert [one.nodes for one in found.tried] == sorted({one.nodes for one in found.tried})
    for one in found.tried:
        assert one.requests == 3 * size
        assert one.enough is (one.share >= share) is (nodes is not None and one.nodes >= nodes)
        assert one.share == one.met / one.requests


def test_a_rate_that_one_node_plainly_cannot_do_needs_more_and_one_less_is_not_enough() -> None:
    arriving, asked = arrivals(300, rate_per_s=20.0), objective(2.0, 0.95)
    found = nodes_needed(arriving, setup(), asked, 16)
    assert found.nodes is not None
    assert 2 <= found.nodes <= 5  # one serves about six a second
    by_nodes = {one.nodes: one for one in found.tried}
    assert not by_nodes[1].enough
    for nodes, enough in ((found.nodes, True), (found.nodes - 1, False)):
        served = simulate(arriving, setup(fleet=fleet({"count": nodes}))).served
        met = sum(one.complete and one.ttft_s <= 2.0 for one in served)
        assert by_nodes[nodes].met == met
        assert by_nodes[nodes].enough is enough is (met >= 0.95 * 300)
    assert found.at_answer == by_nodes[found.nodes]


def test_answers_must_come_fast_enough_too_where_that_is_asked() -> None:
    arriving = arrivals(200, rate_per_s=12.0)
    any_pace = nodes_needed(arriving, setup(), objective(2.0, 0.9), 16).nodes
    fast = nodes_needed(arriving, setup(), objective(2.0, 0.9, tpot_s=0.03), 16).nodes
    assert any_pace is not None
    assert fast is not None
    assert fast > any_pace
    assert nodes_needed(arriving, setup(), objective(2.0, 0.9, tpot_s=0.01), 4).nodes is None


@pytest.mark.parametrize(
    ("share", "met", "requests", "enough"),
    [
        (0.95, 95, 100, True),
        (0.95, 94, 100, False),
        (0.95, 18_999, 20_000, False),
        (0.07, 7, 100, True),  # 0.07 × 100 is more than 7 in floating point
        (0.07, 699_999, 10_000_000, False),
        (0.29, 29, 100, True),
        (1.0, 100, 100, True),
        (1.0, 19_999_999, 20_000_000, False),
    ],
)
def test_exactly_the_share_is_enough(share: float, met: int, requests: int, enough: bool) -> None:
    assert objective(share=share).enough(met, requests) is enough


def test_a_time_that_is_exactly_the_objectives_is_in_time() -> None:
    at_s = simulate(bursts(1, 1), one_a_second()).served[0].ttft_s
    assert nodes_needed(bursts(1, 1), one_a_second(), objective(at_s), 1).nodes == 1
    assert nodes_needed(bursts(1, 1), one_a_second(), objective(at_s * (1 - 1e-12)), 1).nodes is None


def test_a_lead_in_is_served_and_not_judged() -> None:
    # Ten at once keep two nodes busy for five seconds; the two after them are alone in time, and not there.
    led_in = [*bursts(10, 1), Arrival(2.0, 16, 1), Arrival(2.001, 16, 1)]
    alone, behind = led_in[10:], nodes_needed(led_in, one_a_second(), objective(1.1), 32, lead_in=10)
    assert nodes_needed(alone, one_a_second(), objective(1.1), 32).nodes == 2
    assert behind.nodes is not None
    assert behind.nodes > 2
    assert {one.requests for one in behind.tried} == {2}


def test_the_seeds_requests_are_judged_together_and_the_worst_is_told() -> None:
    outcomes = [outcome(arrivals(100, 14.0), setup(), objective(0.5), 2, seed) for seed in range(3)]
    together = tally(2, outcomes, objective(0.5))
    assert len({one.ttfts_s for one in outcomes}) > 1
    assert (together.requests, together.met) == (300, sum(one.met for one in outcomes))
    assert together.share_worst == min(one.met for one in outcomes) / 100
    assert together.share_worst < together.share
    assert tally(2, outcomes[:1], objective()).share_worst is None


def test_refused_and_failed_requests_are_not_in_time() -> None:
    def made(refused: int, failed: int, ttfts_s: Sequence[float]) -> Outcome:
        return Outcome(refused + failed + len(ttfts_s), len(ttfts_s), refused, failed, 0, tuple(ttfts_s), ())

    one = tally(1, [made(1, 2, [3.0, 1.0]), made(0, 0, [2.0])], objective(share=0.5))
    assert (one.requests, one.met, one.refused, one.failed, one.enough) == (6, 3, 1, 2, True)
    assert (one.ttft_p50_s, one.ttft_p90_s, one.ttft_p99_s, one.tpot_p99_s) == (2.0, 3.0, 3.0, None)
    none = tally(1, [made(3, 0, [])], objective(share=0.5))
    assert (none.share, none.enough, none.ttft_p50_s) == (0.0, False, None)


def test_an_overloaded_node_refuses_and_that_is_counted() -> None:
    one = tally(1, [outcome(bursts(200, 2, 5.0), one_a_second(), objective(), 1, 0)], objective())
    assert one.refused > 0
    assert one.refused + one.failed + one.met <= one.requests == 400


def test_all_nodes_are_like_the_first_and_named_by_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    setups: list[Setup] = []

    def simulated(arriving: Sequence[Arrival], asked: Setup) -> Run:
        setups.append(asked)
        return simulate(arriving, asked)

    monkeypatch.setattr(nodesneeded, "simulate", simulated)
    shaped = setup(fleet=fleet({"name": "x", "speed": 2.0, "kv_blocks": 9000}, {}), snapshot_interval_s=0.5, delay_s=0)
    nodes_needed(bursts(1, 1), shaped, objective(), 4, seeds=2)
    assert [(len(one.fleet.nodes), one.seed) for one in setups] == [(1, 0), (1, 1)]
    for one in setups:
        assert [node.name for node in one.fleet.nodes] == ["node-1"]
        assert one.fleet.nodes[0].engine == shaped.fleet.nodes[0].engine
        assert (one.policy, one.snapshot_interval_s, one.delay_s) == (shaped.policy, 0.5, 0)
    assert [node.name for node in equal(shaped.fleet.nodes[0], 3).nodes] == ["node-1", "node-2", "node-3"]
