"""Nodes of the configuration: members before any agent speaks, until one does, and when none does any more."""

from collections import Counter
from typing import Any

import pytest

from extproc.core.balancer import Balancer
from extproc.core.decided import FALLBACK
from extproc.core.decision import Chosen, Refusal, Refused, Unknown
from extproc.core.outcome import Answered, Ending
from extproc.core.request import NOWHERE
from extproc.core.settings import BalancerSettings, NodeLimits
from extproc.core.snapshot import Applied, Freshness, Ignored, NodeLeft, NodeReported, NodeState, NotAllowed
from extproc.core.staticsettings import StaticModel, StaticNode
from tests.core.fleet import MODEL, NOW_S, POLICY, node_of, request, snapshot

HOST_S, HOST_T = "10.1.0.1:8000", "10.1.0.2:8000"
LIMITS = NodeLimits()


def static(
    node_id: str = "s", host: str = HOST_S, models: tuple[str, ...] | None = (MODEL,), **changes: Any
) -> StaticNode:
    told = None if models is None else [StaticModel(name=name, context_length_tokens=8192) for name in models]
    return StaticNode(host=host, node_id=node_id, models=told, **changes)


def fleet(*nodes: StaticNode, started_s: float = NOW_S - 60, **settings: Any) -> Balancer:
    return Balancer(BalancerSettings(static_nodes=nodes, **settings), started_s)


def members(of: Balancer) -> dict[str, bool]:
    """By id: whether it is static."""
    return {view.snapshot.node_id: view.is_static for view in of.views()}


@pytest.mark.parametrize("passed_s", [0.0, 1.0, 2.0, 60.0])
def test_they_are_served_by_weight_from_the_first_moment_on(passed_s: float) -> None:
    of = fleet(static("s", weight=3.0), static("t", HOST_T), started_s=NOW_S)
    decisions = [of.route(request(f"r{number}"), POLICY, NOW_S + passed_s) for number in range(8)]
    assert Counter(node_of(one) for one in decisions) == {"s": 6, "t": 2}
    assert {one.strategy for one in decisions} == {FALLBACK}
    assert of.requests_open == 8
    polls = [of.route_uninspected(f"p{number}", "", NOW_S + passed_s) for number in range(4)]
    assert Counter(node_of(one) for one in polls) == {"s": 3, "t": 1}


def test_they_are_ready_as_far_as_anybody_knows_and_nothing_of_them_is_fresh() -> None:
    of = fleet(static())
    (view,) = of.views()
    assert (view.is_static, view.snapshot.state, of.freshness(view, NOW_S)) == (
        True,
        NodeState.READY,
        Freshness.UNKNOWN,
    )
    assert of.tick(NOW_S + 10 * LIMITS.member_s) == []
    assert members(of) == {"s": True}
    of.route(request(), POLICY, NOW_S)
    (view,) = of.views()
    assert view.own.sequences_open == 1


@pytest.mark.parametrize(
    ("models", "asked", "wanted"),
    [
        ((MODEL,), {}, "s"),
        ((MODEL,), {"model": "other"}, Refusal.MODEL_NOT_FOUND),
        ((MODEL,), {"tokens": 9000}, Refusal.CONTEXT_LENGTH_EXCEEDED),
        (None, {"model": "other"}, "s"),
        (None, {"tokens": 9000}, "s"),
        (None, {"subset": (HOST_S,)}, "s"),
        (None, {"subset": (HOST_T,)}, Refusal.NO_READY_NODE),
        (None, {"subset": NOWHERE}, Refusal.NO_READY_NODE),
    ],
)
def test_what_they_serve_is_known_where_it_was_told(
    models: tuple[str, ...] | None, asked: dict[str, Any], wanted: str | Refusal
) -> None:
    outcome = fleet(static(models=models)).route(request(**asked), POLICY, NOW_S).outcome
    assert (
        outcome.node_id if isinstance(outcome, Chosen) else isinstance(outcome, Refused) and outcome.refusal
    ) == wanted
    at_first = fleet(static(models=models), started_s=NOW_S).route(request(**asked), POLICY, NOW_S).outcome
    if wanted == "s":
        assert isinstance(at_first, Chosen)
    else:
        assert isinstance(at_first, Refused if asked.get("subset") == NOWHERE else Unknown)


def test_at_first_who_has_reported_ready_takes_turns_with_them() -> None:
    of = fleet(static(), started_s=NOW_S)
    of.observe(NodeReported(snapshot("a")), NOW_S)
    of.observe(NodeReported(snapshot("b", state=NodeState.LOADING)), NOW_S)
    served = Counter(node_of(of.route(request(f"r{number}"), POLICY, NOW_S + 1)) for number in range(6))
    assert served == {"s": 3, "a": 3}
    later_s = NOW_S + 2 * LIMITS.report_interval_s
    of.observe(NodeReported(snapshot("a", sequence=2)), later_s)
    assert {node_of(of.route(request(f"q{number}"), POLICY, later_s)) for number in range(6)} == {"a"}


@pytest.mark.parametrize(("node_id", "host"), [("s", HOST_S), ("s", "10.9.9.9:1"), ("gpu-1", HOST_S)])
def test_an_agent_speaks_for_the_node_with_its_id_or_at_its_host(node_id: str, host: str) -> None:
    of = fleet(static(), static("t", HOST_T))
    of.route(request("r1"), POLICY, NOW_S)
    assert of.observe(NodeReported(snapshot(node_id, host=host)), NOW_S) == Applied(() if node_id == "s" else ("s",))
    assert members(of) == {node_id: False, "t": True}
    view = of.view_of(node_id)
    assert view is not None
    assert view.own.sequences_open == 1, "what was sent there is there"
    of.finish("r1", NOW_S)
    view = of.view_of(node_id)
    assert view is not None
    assert (view.own.sequences_open, of.requests_open) == (0, 0)
    assert node_of(of.route(request("r2"), POLICY, NOW_S)) == node_id


def test_an_agent_may_speak_for_two() -> None:
    of = fleet(static("s"), static("t", HOST_T))
    for number in range(4):
        of.route(request(f"r{number}"), POLICY, NOW_S)
    of.observe(NodeReported(snapshot("s", host=HOST_T)), NOW_S)
    assert members(of) == {"s": False}
    (view,) = of.views()
    assert view.own.sequences_open == 4
    of.observe(NodeReported(snapshot("s", host=HOST_S, sequence=2)), NOW_S + 1)
    of.tick(NOW_S + 1)
    assert members(of) == {"s": False, "t": True}


def test_a_report_that_knows_no_models_keeps_those_of_the_configuration() -> None:
    of = fleet(static(models=("told",)))
    of.observe(NodeReported(snapshot("gpu-1", host=HOST_S, models=None, state=NodeState.LOADING)), NOW_S)
    outcome = of.route(request(model="other"), POLICY, NOW_S).outcome
    assert isinstance(outcome, Refused)
    assert outcome.refusal is Refusal.MODEL_NOT_FOUND
    outcome = of.route(request("r2", model="told"), POLICY, NOW_S).outcome
    assert isinstance(outcome, Refused)
    assert outcome.refusal is Refusal.NO_READY_NODE, "its agent's word counts"


@pytest.mark.parametrize("node_id", ["s", "gpu-1"])
def test_when_its_agent_fell_silent_it_is_what_it_was_before(node_id: str) -> None:
    of = fleet(static())
    of.observe(NodeReported(snapshot(node_id, host=HOST_S)), NOW_S)
    of.route(request("r1"), POLICY, NOW_S)
    almost_s = NOW_S + LIMITS.member_s - 1
    assert of.tick(almost_s) == []
    assert members(of) == {node_id: False}
    assert of.tick(almost_s + 1) == [node_id]
    assert members(of) == {"s": True}
    (view,) = of.views()
    assert view.own.sequences_open == (1 if node_id == "s" else 0), "by its own name it had what is still open"
    assert node_of(of.route(request("r2"), POLICY, almost_s + 1)) == "s"
    of.finish("r1", almost_s + 2)
    of.finish("r2", almost_s + 2)
    assert of.requests_open == 0
    assert of.observe(NodeReported(snapshot(node_id, host=HOST_S)), almost_s + 3) == Applied(
        () if node_id == "s" else ("s",)
    )


@pytest.mark.parametrize("node_id", ["s", "gpu-1"])
def test_when_its_agent_said_goodbye_it_is_away_until_one_reports_or_member_s_have_passed(node_id: str) -> None:
    of = fleet(static())
    of.observe(NodeReported(snapshot(node_id, host=HOST_S)), NOW_S)
    of.observe(NodeLeft(node_id, "boot-1"), NOW_S + 1)
    for passed_s in (0.0, 1.0, LIMITS.member_s - 0.01):
        of.tick(NOW_S + 1 + passed_s)
        assert members(of) == {}
    of.observe(NodeReported(snapshot(node_id, host=HOST_S, boot_id="boot-2")), NOW_S + LIMITS.member_s)
    assert members(of) == {node_id: False}
    of.observe(NodeLeft(node_id, "boot-2"), NOW_S + LIMITS.member_s + 1)
    of.tick(NOW_S + 2 * LIMITS.member_s + 1)
    assert members(of) == {"s": True}


def test_it_is_back_once_nobody_speaks_for_it() -> None:
    of = fleet(static())
    of.observe(NodeReported(snapshot("by host", host=HOST_S)), NOW_S)
    of.observe(NodeReported(snapshot("s", host="10.9.9.9:1")), NOW_S)
    of.observe(NodeLeft("by host", "boot-1"), NOW_S + 1)
    of.tick(NOW_S + LIMITS.member_s - 1)
    assert members(of) == {"s": False}
    assert of.tick(NOW_S + LIMITS.member_s) == ["s"]
    assert members(of) == {"s": True}, "the last who spoke for it fell silent"


def test_a_goodbye_for_a_node_of_which_no_agent_told_is_not_heard() -> None:
    of = fleet(static())
    assert isinstance(of.observe(NodeLeft("s", ""), NOW_S), Ignored)
    assert members(of) == {"s": True}


def test_they_take_no_place_of_agents_nodes_and_none_is_taken_of_theirs() -> None:
    of = fleet(static(), static("t", HOST_T), nodes=NodeLimits(nodes_max=1))
    assert isinstance(of.observe(NodeReported(snapshot("a")), NOW_S), Applied)
    for full in (snapshot("b"), snapshot("s"), snapshot("b", host=HOST_S)):
        assert isinstance(of.observe(NodeReported(full), NOW_S), NotAllowed)
    assert members(of) == {"a": False, "s": True, "t": True}
    of.observe(NodeLeft("a", "boot-1"), NOW_S)
    assert of.observe(NodeReported(snapshot("s")), NOW_S) == Applied()
    assert isinstance(of.observe(NodeReported(snapshot("a")), NOW_S), NotAllowed)


def test_one_that_fails_requests_is_left_out_and_the_last_is_not() -> None:
    of = fleet(static("s"), static("t", HOST_T))
    of.route(request("r1"), POLICY, NOW_S)
    of.answered(Answered("r1", Ending.UNREACHABLE, host=HOST_S, over=True), NOW_S)
    assert set(of.out_until_s) == {"s"}
    assert {node_of(of.route(request(f"q{number}"), POLICY, NOW_S)) for number in range(4)} == {"t"}


def test_work_sent_there_is_merged_with_what_is_known_of_its_agents_node() -> None:
    of = fleet(static())
    of.observe(NodeReported(snapshot("gpu-1", host=HOST_S)), NOW_S)
    of.route(request("r1"), POLICY, NOW_S)
    of.tick(NOW_S + LIMITS.member_s)
    assert members(of) == {"s": True}
    of.route(request("r2"), POLICY, NOW_S + LIMITS.member_s)
    of.observe(NodeReported(snapshot("gpu-1", host=HOST_S, boot_id="boot-2")), NOW_S + LIMITS.member_s + 1)
    (view,) = of.views()
    assert (view.snapshot.node_id, view.own.sequences_open, view.own.requests_held) == ("gpu-1", 2, 2)
    of.finish("r1", NOW_S + LIMITS.member_s + 2)
    of.finish("r2", NOW_S + LIMITS.member_s + 2)
    (view,) = of.views()
    assert (view.own.sequences_open, view.own.requests_held) == (0, 0)


def test_what_ended_there_is_not_remembered_for_a_sample_that_never_comes() -> None:
    of = fleet(static())
    for number in range(20):
        of.route(request(f"r{number}"), POLICY, NOW_S + number)
        of.finish(f"r{number}", NOW_S + number)
    ledger = of._fleet.ledger._nodes["s"]
    assert len(ledger.closed) == 20
    of.tick(NOW_S + LIMITS.stale_s + 10.0 + 5.0)
    assert [entry.closed_s for entry in ledger.closed] == [NOW_S + number for number in range(5, 20)]


def test_whoever_waits_has_a_claim_to_them_while_they_are_members() -> None:
    of = fleet(static(), static("t", HOST_T, models=("other",)))

    def able() -> frozenset[str]:
        return of._admission._able.to_serve(MODEL, 0, None)

    assert able() == {"s"}
    of.route(request("r1"), POLICY, NOW_S)
    of.observe(NodeReported(snapshot("gpu-1", host=HOST_S)), NOW_S)
    assert able() == {"gpu-1"}
    assert "s" not in of._round_robin._credits, "nothing is kept of what is no member"
    of.tick(NOW_S + LIMITS.member_s)
    assert able() == {"s"}
