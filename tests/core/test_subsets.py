"""Requests that may go to some hosts only."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.balancer import Balancer
from extproc.core.decision import Chosen, Queued, Refusal, Refused, Unknown
from extproc.core.filters import addresses_of
from extproc.core.policy import RoutingPolicy
from extproc.core.request import NOWHERE
from extproc.core.snapshot import NodeReported
from tests.core.fleet import NOW_S, POLICY, SETTINGS, balancer, node_of, request, snapshot
from tests.core.waiters import Crowd, models

A, B, C = (snapshot(name).host for name in "abc")


def refusal(outcome: object) -> Refusal:
    assert isinstance(outcome, Refused), outcome
    return outcome.refusal


@pytest.mark.parametrize(
    ("host", "entry", "goes"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000", True),
        ("10.0.0.1:8000", "10.0.0.1", True),
        ("10.0.0.1:8000", "10.0.0.1:8001", False),
        ("10.0.0.1:8000", "10.0.0.10", False),
        ("10.0.0.1:8000", "10.0.0.10:8000", False),
        ("10.0.0.1:8000", "", False),
        ("[::1]:80", "[::1]:80", True),
        ("[::1]:80", "[::1]", True),
        ("[::1]:80", "::1", True),
        ("[::1]:80", "::1:80", False),
        ("[::1]:80", "[::1]:81", False),
        ("[::1:80]:90", "[::1]:80", False),
    ],
)
def test_an_entry_is_a_host_or_an_address_for_all_its_ports(host: str, entry: str, goes: bool) -> None:
    assert (entry in addresses_of(host)) == goes
    outcome = balancer(snapshot("a", host=host)).route(request(subset=(entry,)), POLICY, NOW_S).outcome
    assert isinstance(outcome, Chosen if goes else Refused)


@given(st.sets(st.sampled_from([A, B, C, "10.9.9.9:1"])))
def test_nobody_leaves_its_subset(subset: set[str]) -> None:
    fleet = balancer(*(snapshot(name) for name in "abc"))
    for number in range(9):
        for decision in (
            fleet.route(request(f"r{number}", subset=tuple(sorted(subset))), POLICY, NOW_S),
            fleet.route_uninspected(f"u{number}", "", NOW_S, None, tuple(sorted(subset))),
        ):
            if subset & {A, B, C}:
                assert isinstance(decision.outcome, Chosen)
                assert decision.outcome.host in subset
            else:
                assert refusal(decision.outcome) is Refusal.NO_READY_NODE


def test_a_subset_of_the_busiest_node_goes_there() -> None:
    fleet = balancer(snapshot("a", requests_waiting=99, pending_prefills=99), snapshot("b"))
    assert node_of(fleet.route(request("r1", subset=(A,)), POLICY, NOW_S)) == "a"
    assert node_of(fleet.route(request("r2"), POLICY, NOW_S)) == "b"


def test_a_subset_of_full_nodes_is_overloaded_though_others_are_free() -> None:
    fleet = balancer(snapshot("a", requests_waiting=100), snapshot("b"))
    assert refusal(fleet.route(request(subset=(A,)), POLICY, NOW_S).outcome) is Refusal.OVERLOADED


def test_a_subset_without_the_model_is_not_there_and_a_model_of_no_node_does_not_exist() -> None:
    fleet = balancer(snapshot("a", models=models("x")), snapshot("b", models=models("y")))
    assert refusal(fleet.route(request(model="x", subset=(B,)), POLICY, NOW_S).outcome) is Refusal.NO_READY_NODE
    assert refusal(fleet.route(request(model="z", subset=(B,)), POLICY, NOW_S).outcome) is Refusal.MODEL_NOT_FOUND


def test_the_length_is_that_of_the_subsets_nodes() -> None:
    fleet = balancer(snapshot("a", models=models("x", length_tokens=50)), snapshot("b", models=models("x")))
    outcome = fleet.route(request(model="x", tokens=100, subset=(A,)), POLICY, NOW_S).outcome
    assert refusal(outcome) is Refusal.CONTEXT_LENGTH_EXCEEDED
    assert "at most 50 tokens" in outcome.message  # type: ignore[union-attr]


@pytest.mark.parametrize("subset", [(A,), (A, "10.9.9.9:1")])
def test_nodes_of_which_nothing_fresh_is_known_take_turns_within_the_subset(subset: tuple[str, ...]) -> None:
    fleet = balancer(snapshot("a"), snapshot("b"))
    stale_s = NOW_S + SETTINGS.nodes.stale_s
    for number in range(4):
        outcome = fleet.route(request(f"r{number}", subset=subset), POLICY, stale_s).outcome
        assert isinstance(outcome, Chosen)
        assert (outcome.node_id, outcome.fallback) == ("a", True)
        assert node_of(fleet.route_uninspected(f"u{number}", "", stale_s, None, subset)) == "a"


def test_nowhere_is_refused_at_once_even_before_anybody_has_reported() -> None:
    fleet = Balancer(SETTINGS, NOW_S)
    for now_s in (NOW_S, NOW_S + 5):
        asked = request("r1", subset=NOWHERE)
        assert refusal(fleet.route(asked, POLICY, now_s).outcome) is Refusal.NO_READY_NODE
        uninspected = fleet.route_uninspected("u", "", now_s, None, NOWHERE)
        assert refusal(uninspected.outcome) is Refusal.NO_READY_NODE
        assert isinstance(fleet.route(request("r2", subset=(A,)), POLICY, now_s).outcome, Unknown)


def test_who_may_go_nowhere_does_not_wait_and_who_may_go_elsewhere_later_does() -> None:
    one = Crowd()
    one.node("b", 9)
    assert isinstance(one.comes("r1", subset=NOWHERE), Refused)
    one.waits("r2", subset=(A,))
    assert one.admitted() == []
    one.node("a", 9)
    assert one.rooms
    assert one.admitted() == ["r2 to a"]


def test_who_waits_claims_the_nodes_of_its_subset_only() -> None:
    one = Crowd()
    one.node("a", 0)
    one.node("b", 0)
    one.waits("confined", priority="high", subset=(A,))
    one.node("b", 5)
    outcome = one.comes("free", priority="low")
    assert isinstance(outcome, Chosen), "b is nobody's"
    assert outcome.node_id == "b"
    one.node("a", 5)
    outcome = one.comes("late", priority="low", subset=(A,))
    assert isinstance(outcome, Queued)
    assert "others wait" in outcome.reason
    assert one.admitted() == ["confined to a", "late to a"]


def test_a_node_that_moves_is_claimed_where_it_is() -> None:
    one = Crowd()
    one.node("a", 0, host="10.0.0.1:1")
    one.node("b", 0, host="10.0.0.2:1")
    one.waits("confined", priority="high", subset=("10.0.0.3",))
    one.node("a", 5, host="10.0.0.3:1")
    outcome = one.comes("free", priority="low", subset=("10.0.0.3:1",))
    assert isinstance(outcome, Queued)
    assert one.admitted() == ["confined to a", "free to a"]


def test_a_fallback_model_is_looked_for_within_the_subset() -> None:
    policy = RoutingPolicy(fallback_models={"large": "small"})
    one = Crowd()
    one.node("a", 0, models=models("large"))
    one.node("b", 9, models=models("small"))
    one.node("c", 9, models=models("small"))
    told: dict[str, Any] = {"model": "large", "policy": policy}
    outcome = one.comes("r1", subset=(A, C), **told)
    assert isinstance(outcome, Chosen)
    assert outcome.node_id == "c"
    assert isinstance(one.comes("r2", subset=(A,), **told), Queued)


def test_a_node_is_at_no_host_that_it_has_left() -> None:
    one = Crowd()
    one.balancer.observe(NodeReported(snapshot("a")), NOW_S)
    one.leaves("a")
    assert not one.balancer._admission._able._at
