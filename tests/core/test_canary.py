"""The two arms of a policy's canary, and policies that are only observed."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.decided import FALLBACK
from extproc.core.decision import Chosen, Decision, Queued, Refusal, Refused
from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.request import Phase
from extproc.core.room import Limits
from extproc.core.snapshot import NodeState
from tests.core.fleet import NOW_S, POLICY, SETTINGS, balancer, node_of, request, snapshot
from tests.core.waiters import Crowd, models

CONTROL = RoutingPolicy(strategy="load-score", canary=0)


def turns(*snapshots: object, policy: RoutingPolicy = CONTROL, count: int = 12) -> Counter[str]:
    fleet = balancer(*snapshots)  # type: ignore[arg-type]
    return Counter(node_of(fleet.route(request(f"r{number}"), policy, NOW_S)) for number in range(count))


@pytest.mark.parametrize("percent", [0.0, 0.5, 10.0, 50.0, 99.0, 100.0])
def test_the_strategy_gets_its_share_of_many(percent: float) -> None:
    policy = RoutingPolicy(canary=percent)
    count = 20_000
    arms = Counter(policy.arm_of(f"request-{number}") for number in range(count))
    assert arms["strategy"] + arms["control"] == count
    expected = count * percent / 100
    assert abs(arms["strategy"] - expected) <= 5 * (expected * (1 - percent / 100)) ** 0.5


@given(st.text(), st.floats(0, 100), st.floats(0, 100))
def test_an_id_stays_in_its_arm_and_a_larger_canary_takes_nobody_out(request_id: str, one: float, other: float) -> None:
    small, large = (RoutingPolicy(canary=percent) for percent in sorted((one, other)))
    assert small.arm_of(request_id) == small.arm_of(request_id)
    assert small.arm_of(request_id) == "control" or large.arm_of(request_id) == "strategy"
    assert RoutingPolicy().arm_of(request_id) == "strategy"


def test_the_arm_does_not_go_with_the_model_that_an_alias_gives() -> None:
    policy = RoutingPolicy(canary=50, aliases={"fast": {"m": 1, "n": 1}})
    seen = Counter((policy.arm_of(f"r{number}"), policy.model_for("fast", f"r{number}")) for number in range(4000))
    assert len(seen) == 4
    assert min(seen.values()) > 850


def test_the_control_arm_takes_turns_by_weight_whatever_costs_say() -> None:
    nodes = snapshot("a", kv_usage=0.8, weight=2.0), snapshot("b"), snapshot("c", weight=3.0)
    assert turns(*nodes) == {"a": 4, "b": 2, "c": 6}
    assert turns(*nodes, policy=RoutingPolicy(strategy="load-score")) == {"b": 6, "c": 6}


def test_both_arms_say_what_they_are() -> None:
    policy = RoutingPolicy(canary=50)
    fleet = balancer(snapshot("a"), snapshot("b"))
    for number in range(20):
        decision = fleet.route(request(f"r{number}"), policy, NOW_S)
        assert isinstance(decision.outcome, Chosen)
        assert decision.arm == policy.arm_of(f"r{number}")
        assert decision.outcome.fallback == (decision.arm == "control")
        assert decision.strategy == (FALLBACK if decision.arm == "control" else policy.strategy)
    assert fleet.requests_open == 20, "both are counted"


def test_the_control_arm_has_nodes_that_could_serve_it_only() -> None:
    assert turns(
        snapshot("a", state=NodeState.LOADING),
        snapshot("b", models=models("another")),
        snapshot("c", models=models(length_tokens=50)),
        snapshot("d"),
        snapshot("e"),
    ) == {"d": 6, "e": 6}


def test_a_node_that_fails_is_left_out_of_the_control_arm() -> None:
    fleet = balancer(snapshot("a"), snapshot("b"))
    bad = node_of(fleet.route(request("r"), CONTROL, NOW_S))
    fleet.answered(Answered("r", Ending.UNREACHABLE), NOW_S)
    assert {node_of(fleet.route(request(f"r{number}"), CONTROL, NOW_S)) for number in range(4)} == {"a", "b"} - {bad}


@pytest.mark.parametrize("required", [False, True])
def test_the_control_arm_is_refused_where_every_node_is_full(required: bool) -> None:
    policy = RoutingPolicy(canary=0, limits=Limits(kv_blocks_required=required))
    full, short = snapshot("a", requests_waiting=100), snapshot("b", kv_blocks_available=0)
    assert set(turns(full, snapshot("b"), policy=policy)) == {"a", "b"}, "one has room: all take turns"
    outcome = balancer(full).route(request(), policy, NOW_S).outcome
    assert isinstance(outcome, Refused)
    assert outcome.refusal is Refusal.OVERLOADED
    assert isinstance(balancer(full, short).route(request(), policy, NOW_S).outcome, Refused if required else Chosen)


def test_the_control_arm_waits_as_others_and_takes_nobodys_node() -> None:
    one = Crowd()
    one.node("a", 0)
    one.node("b", 0, models=models("x"))
    one.waits("first", priority="high")
    one.waits("control", policy=CONTROL, priority="low")
    one.node("a", 1)
    outcome = one.comes("late", policy=CONTROL, priority="low")
    assert isinstance(outcome, Queued)
    assert "others wait" in outcome.reason
    assert one.admitted() == ["first to a"]
    one.node("a", 9)
    assert one.admitted() == ["control to a", "late to a"]
    for request_id in ("first", "control", "late"):
        one.balancer.finish(request_id, one.now_s)
    assert one.balancer.requests_open == 0


def test_no_objective_refuses_the_control_arm() -> None:
    """It is what there would be without us."""
    for canary, outcome in ((100, Refused), (0, Chosen)):
        fleet = balancer(snapshot("a"))
        policy = RoutingPolicy(canary=canary, ttft_s=0.001, wait_fraction=0)
        for number in range(9):
            fleet.route(request(f"r{number}", tokens=8000), POLICY, NOW_S)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(fleet._fleet), "rates_known", True)
            assert isinstance(fleet.route(request("late"), policy, NOW_S).outcome, outcome)


@pytest.mark.parametrize(
    ("how", "tokens", "phase"),
    [
        ("expected-time", 8000, Phase.DECODE),
        ("expected-time", 8001, Phase.PREFILL_HEAVY),
        ("prefill-heavy", 1, Phase.PREFILL_HEAVY),
        ("decode", 8001, Phase.DECODE),
    ],
)
def test_the_phase_is_found_or_told(how: str, tokens: int, phase: Phase) -> None:
    """A second of prompt against one of answer."""
    policy = RoutingPolicy.model_validate({"classify": how})
    asked = request(tokens=tokens, output_tokens_max=40)
    assert balancer(snapshot("a", models=None)).route(asked, policy, NOW_S).phase is phase


def state(fleet: Crowd) -> object:
    one = fleet.balancer
    return list(one.views()), one._chooser._turns, one._round_robin._credits, one.waiting, one.requests_open


@pytest.mark.parametrize("policy", [POLICY, CONTROL, RoutingPolicy(strategy="round-robin")])
def test_what_is_rehearsed_is_kept_and_counted_nowhere(policy: RoutingPolicy) -> None:
    one = Crowd()
    one.node("a", 5)
    one.node("b", 5)
    before = state(one)
    told: list[Decision] = [one.balancer.rehearse(request(f"r{number}"), policy, one.now_s) for number in range(3)]
    assert state(one) == before
    assert one.balancer.decisions(9) == told[::-1]
    assert {decision.arm for decision in told} == {"observed"}
    assert all(isinstance(decision.outcome, Chosen) for decision in told)
    one.balancer.finish("r0", one.now_s)
    one.balancer.served("r0", snapshot("b").host, one.now_s)
    assert state(one) == before


def test_who_would_wait_is_refused_in_a_rehearsal() -> None:
    one = Crowd()
    one.node("a", 0)
    outcome = one.balancer.rehearse(request("r1", priority="low"), POLICY, one.now_s).outcome
    assert isinstance(outcome, Refused)
    assert outcome.refusal is Refusal.OVERLOADED
    assert "cannot wait" not in outcome.message
    assert not one.places()
    assert isinstance(one.comes("r1", "low"), Queued)


def test_a_rehearsal_falls_back_where_a_route_would() -> None:
    fleet = balancer(snapshot("a"))
    outcome = fleet.rehearse(request(), POLICY, NOW_S + SETTINGS.nodes.stale_s).outcome
    assert isinstance(outcome, Chosen)
    assert outcome.fallback
