"""Nodes that come and go: slow start, draining."""

from collections import Counter

import pytest

from extproc.core.comparable import SLOW_START_SHARE_MIN
from extproc.core.decision import Refused
from extproc.core.policy import RoutingPolicy
from extproc.core.router import Known, decide
from extproc.core.settings import BalancerSettings, NodeLimits
from extproc.core.snapshot import NodeReported, NodeState, Snapshot
from tests.core.fleet import NOW_S, POLICY, SETTINGS, balancer, node_of, request, snapshot, view

SLOW_S = SETTINGS.nodes.slow_start_s


@pytest.mark.parametrize(
    ("ready_for_s", "share"),
    [
        *((0.0, 0.25), (1.0, 0.25), (2.5, 0.25), (3.7, 0.25), (3.75, 0.375), (5.0, 0.5), (6.24, 0.5), (7.5, 0.75)),
        *((9.99, 0.875), (10.0, 1.0), (1e9, 1.0)),
    ],
)
def test_a_node_that_has_just_become_ready_counts_as_slower_until_it_is_warm(ready_for_s: float, share: float) -> None:
    """A prompt of 8000 tokens takes 1 s at a node that computes as many a second. In eighths: see the next test."""
    learned = view().learned
    one = view(ready_since_s=NOW_S - ready_for_s)
    verdict = decide(request(tokens=8000, output_tokens_max=0), [one], POLICY, SETTINGS, Known(), NOW_S)
    assert learned.prefill_tokens_per_s == 8000
    assert verdict.candidates[0].cost == pytest.approx(1 / share)


def test_nodes_that_became_ready_a_moment_apart_are_tied() -> None:
    """Were the one that came first always a little faster, it would get all that is over at once."""
    fleet = balancer(snapshot("a"))
    fleet.observe(NodeReported(snapshot("b")), NOW_S + 0.5)
    served = Counter[str]()
    for number in range(100):
        served[node_of(fleet.route(request(f"r{number}"), POLICY, NOW_S + 4.4))] += 1
        fleet.finish(f"r{number}", NOW_S + 4.4)
    assert 30 < served["a"] < 70


def test_slow_start_can_be_turned_off() -> None:
    at_once = BalancerSettings(nodes=NodeLimits(slow_start_s=0))
    prompt = request(tokens=8000, output_tokens_max=0)
    verdict = decide(prompt, [view(ready_since_s=NOW_S)], POLICY, at_once, Known(), NOW_S)
    assert verdict.candidates[0].cost == 1.0


def roomy(node_id: str, **changes: object) -> Snapshot:
    """A node that a burst does not fill."""
    return snapshot(node_id, kv_blocks_total=100_000, kv_blocks_available=100_000, **changes)


def burst(joined_for_s: float, requests: int = 100) -> Counter[str]:
    """Who takes a burst: three nodes have run for long, with three requests each, and one has joined empty."""
    now_s = NOW_S + 100
    fleet = balancer(*(roomy(name) for name in "abc"))
    fleet.observe(NodeReported(roomy("new")), now_s - joined_for_s)
    for name in "abc":
        fleet.observe(NodeReported(roomy(name, sequence=2, requests_running=3, active_decodes=3)), now_s)
    fleet.observe(NodeReported(roomy("new", sequence=2)), now_s)
    return Counter(node_of(fleet.route(request(f"r{number}", 500), POLICY, now_s)) for number in range(requests))


@pytest.mark.parametrize(("joined_for_s", "least", "most"), [(0.5, 5, 20), (5.0, 10, 25), (60.0, 20, 30)])
def test_a_burst_neither_herds_to_a_new_node_nor_leaves_it_out(joined_for_s: float, least: int, most: int) -> None:
    """An even share were 25 of 100."""
    served = burst(joined_for_s)
    assert least <= served["new"] <= most
    assert max(served[name] for name in "abc") - min(served[name] for name in "abc") <= 1


def test_a_few_requests_find_the_new_empty_node_all_the_same() -> None:
    assert burst(0.5, requests=8)["new"] >= 1


def test_where_all_begin_at_once_nobody_is_slower_than_the_others() -> None:
    fleet = balancer(*(snapshot(name) for name in "abcd"))
    served = Counter(node_of(fleet.route(request(f"r{number}"), POLICY, NOW_S)) for number in range(100))
    assert set(served.values()) == {25}
    assert SLOW_START_SHARE_MIN * SLOW_S > 0


def test_a_draining_node_takes_nothing_new_and_finishes_what_it_has() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"))
    served = [node_of(fleet.route(request(f"r{number}"), POLICY, NOW_S)) for number in range(10)]
    draining = snapshot("a", sequence=2, state=NodeState.DRAINING, requests_running=5, pending_prefills=5)
    fleet.observe(NodeReported(draining), NOW_S + 1)
    assert {node_of(fleet.route(request(f"s{number}"), POLICY, NOW_S + 1)) for number in range(10)} == {"b"}
    for number, name in enumerate(served):
        if name == "a":
            fleet.finish(f"r{number}", NOW_S + 2)
    at_a = next(view for view in fleet.views() if view.snapshot.node_id == "a")
    assert (at_a.own.sequences_open, at_a.in_flight) == (0, 0)


def test_a_fleet_that_drains_is_not_ready() -> None:
    fleet = balancer(snapshot("a", state=NodeState.DRAINING))
    assert isinstance(fleet.route(request(), RoutingPolicy(), NOW_S).outcome, Refused)
