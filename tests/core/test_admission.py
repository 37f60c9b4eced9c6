"""What comes first where not all can go: through the balancer, by hand."""

from typing import Any

import pytest

from extproc.core.admissionsettings import PriorityClass
from extproc.core.decision import Chosen, Queued, Refusal, Refused
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.room import Limits
from extproc.core.snapshot import NodeState, ServedModel
from tests.core.fleet import MODEL, NOW_S, POLICY, balancer, request, snapshot
from tests.core.waiters import Crowd, models, order

ONE_PLACE = RoutingPolicy(limits=Limits(kv_blocks_required=True))


def crowd(*nodes: str, **settings: Any) -> Crowd:
    """Nodes without room."""
    made = Crowd(**settings)
    for node_id in nodes:
        made.node(node_id, 0)
    return made


def test_who_has_room_goes_and_who_has_none_waits_if_its_class_may() -> None:
    one = Crowd()
    one.node("a", 1)
    assert isinstance(one.comes("r1"), Chosen)
    told = one.comes("r2")
    assert isinstance(told, Queued)
    assert told.until_s == NOW_S + 30
    assert "every ready node is full" in told.reason
    refused = one.comes("r3", "never")
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.OVERLOADED
    assert one.places() == {"low": (1, 0)}


def test_a_class_that_nobody_knows_is_the_default_one() -> None:
    one = crowd("a")
    for name in ("", "highest", "low"):
        one.waits(f"r-{name}", priority=name)
    assert one.places() == {"low": (3, 0)}
    assert [decision.priority for decision in one.balancer.decisions(3)] == ["low"] * 3


@pytest.mark.parametrize(("name", "waits"), [("interactive", False), ("standard", False), ("", False), ("batch", True)])
def test_by_default_only_batch_waits(name: str, waits: bool) -> None:
    fleet = balancer(snapshot("a", requests_waiting=100))
    fleet.route(request("r0", priority="batch"), POLICY, NOW_S)
    outcome = fleet.route(request("r1", priority=name), POLICY, NOW_S).outcome
    assert isinstance(outcome, Queued if waits else Refused)


def test_by_default_those_of_batch_who_wait_take_nothing_from_others() -> None:
    fleet = balancer(snapshot("a", requests_waiting=100))
    fleet.route(request("r0", priority="batch"), POLICY, NOW_S)
    calm = RoutingPolicy(limits=Limits(requests_waiting_max=1000))
    assert isinstance(fleet.route(request("r1"), calm, NOW_S).outcome, Chosen)
    assert isinstance(fleet.route(request("r2", priority="batch"), calm, NOW_S).outcome, Queued), "behind r0"


def test_only_what_may_be_otherwise_in_a_while_waits() -> None:
    one = crowd("a")
    unknown, long = one.comes("r1", model="nobody's"), one.comes("r2", tokens=9000)
    assert isinstance(unknown, Refused)
    assert unknown.refusal is Refusal.MODEL_NOT_FOUND
    assert isinstance(long, Refused)
    assert long.refusal is Refusal.CONTEXT_LENGTH_EXCEEDED
    one.node("a", 0, state=NodeState.LOADING)
    told = one.comes("r3")
    assert isinstance(told, Queued)
    assert "No node is ready" in told.reason


def test_a_decision_about_one_that_waited_tells_how_long() -> None:
    one = crowd("a")
    one.waits("r1", priority="mid", tenant="t")
    one.now_s += 1.5
    assert one.admitted() == []
    one.node("a", 1)
    (decision,) = one.balancer.admit(one.now_s)
    assert isinstance(decision.outcome, Chosen)
    assert (decision.queued_s, decision.priority, decision.at_s) == (1.5, "mid", NOW_S + 1.5)
    assert one.balancer.requests_open == 1, "it is counted in the step in which it is let go"
    assert one.nothing_is_left()


def test_the_highest_class_goes_first_however_late_it_came() -> None:
    one = crowd("a")
    for number, name in enumerate(["low", "mid", "low", "high", "mid", "high"]):
        one.waits(f"{name}{number}", priority=name)
        one.now_s += 0.1
    one.node("a", 3)
    assert one.admitted() == ["high3 to a", "high5 to a", "mid1 to a"]
    one.now_s += 1
    one.node("a", 3)
    assert order(one.admitted()) == ["mid4", "low0", "low2"]


def test_who_comes_passes_those_of_lower_classes_and_nobody_else() -> None:
    one = crowd("a")
    one.waits("waits", priority="mid")
    one.node("a", 5)
    assert isinstance(one.comes("lower", "low"), Queued)
    assert isinstance(one.comes("same", "mid"), Queued)
    assert isinstance(one.comes("lowest", "never"), Refused)
    assert isinstance(one.comes("higher", "high"), Chosen)
    assert order(one.admitted()) == ["waits", "same", "lower"]


def test_models_on_other_nodes_do_not_hold_up_each_other() -> None:
    one = Crowd()
    one.node("a", 0, models=models("x"))
    one.node("b", 0, models=models("y"))
    one.waits("x1", model="x", priority="high")
    one.waits("y1", model="y")
    one.node("b", 2, models=models("y"))
    assert isinstance(one.comes("y2", model="y"), Queued), "behind y1"
    assert one.admitted() == ["y1 to b", "y2 to b"]
    assert isinstance(one.comes("y3", model="y"), Queued)
    one.node("b", 9, models=models("y"))
    assert one.admitted() == ["y3 to b"]
    assert isinstance(one.comes("y4", model="y"), Chosen), "whoever waits for a"


def test_a_model_on_nodes_that_another_waits_for_takes_the_others() -> None:
    one = Crowd()
    one.node("a", 0, models=models("x", "y"))
    one.node("b", 0, models=models("y"))
    one.waits("x1", model="x")
    one.waits("y1", "y2", model="y")
    one.node("b", 9, models=models("y"))
    assert one.admitted() == ["y1 to b", "y2 to b"]
    one.node("a", 9, models=models("x", "y"))
    outcome = one.comes("y3", model="y")
    assert isinstance(outcome, Chosen)
    assert outcome.node_id == "b", "though a has less to do"
    assert one.admitted() == ["x1 to a"]


@pytest.mark.parametrize("short_tokens", [4096, None])
def test_what_is_too_long_for_a_node_holds_up_nobody_there(short_tokens: int | None) -> None:
    """The longer context is known, or is not told."""
    one = Crowd()
    long_tokens = 16_384 if short_tokens is None else None
    short = models(length_tokens=4096)
    one.node("short", 0, models=short)
    one.node("long", 0, models=models(length_tokens=long_tokens))
    one.waits("long1", tokens=5000)
    one.waits("short1")
    one.node("short", 2, models=short)
    assert one.admitted() == ["short1 to short"]
    assert isinstance(one.comes("short2"), Chosen)
    one.node("long", 1, models=models(length_tokens=long_tokens))
    assert isinstance(one.comes("short3"), Queued), "long1 waits for that one"
    assert one.admitted() == ["long1 to long"]


def test_a_long_prompt_is_not_starved_by_short_ones() -> None:
    """It needs many blocks; the short ones would take each as it comes."""
    one = Crowd()
    one.node("a", 50, kv_blocks_available=10)
    one.waits("long", tokens=1600, policy=ONE_PLACE, output_tokens_max=1)
    for number in range(5):
        one.waits(f"short{number}", tokens=16, policy=ONE_PLACE, output_tokens_max=1)
    assert one.admitted() == []
    one.node("a", 50, kv_blocks_available=101)
    assert one.admitted() == ["long to a"]


def test_between_tenants_tokens_are_shared_then_first_come() -> None:
    one = crowd("a")
    for number in range(8):
        one.waits(f"big{number}", tenant="big", tokens=744)  # 1000 with the answer that is expected
    for number in range(4):
        one.waits(f"small{number}", tenant="small", tokens=244)  # 500
    one.node("a", 6)
    assert order(one.admitted()) == ["big0", "small0", "small1", "big1", "small2", "small3"]


def test_a_tenants_share_is_one_over_prompts_that_fit_here_and_prompts_that_fit_there() -> None:
    """Long prompts fit one of the nodes only, so they stand in a lane of their own, and get no more of it for that."""
    one = Crowd()
    one.node("short", 0, models=models(length_tokens=4096))
    one.node("long", 0, models=models(length_tokens=8192))
    for number in range(6):
        one.waits(f"flood{number}", tokens=5000, tenant="they")
    one.now_s += 1
    one.waits("mine0", "mine1", "mine2", "mine3", tokens=4000, tenant="me")
    one.node("long", 6, models=models(length_tokens=8192))
    assert order(one.admitted()) == ["flood0", "mine0", "mine1", "flood1", "mine2", "flood2"]


def test_adapters_on_the_same_nodes_are_shared_fairly_too() -> None:
    """Each tenant with an adapter of its own: they wait for the same nodes, so a flood of one is not served first."""
    one = Crowd()
    loaded = models(MODEL, "mine", "theirs")
    one.node("a", 0, models=loaded)
    for number in range(10):
        one.waits(f"theirs{number}", model="theirs", tenant="they")
    one.now_s += 1
    one.waits("mine0", "mine1", model="mine", tenant="me")
    one.node("a", 4, models=loaded)
    assert order(one.admitted()) == ["theirs0", "mine0", "theirs1", "mine1"]


def test_an_adapter_that_is_to_be_loaded_waits_like_any_model() -> None:
    one = Crowd()
    unloaded = (*models(MODEL), ServedModel("tuned", loaded=False))
    one.node("a", 0, models=unloaded)
    one.node("b", 0)
    one.waits("tuned1", model="tuned")
    one.waits("base1")
    one.node("b", 1)
    assert one.admitted() == ["base1 to b"], "b does not serve it"
    one.node("a", 1, models=unloaded)
    assert isinstance(one.comes("base2"), Queued)
    assert one.admitted() == ["tuned1 to a"]


def test_what_would_be_routed_is_told_and_nobody_waits_for_it() -> None:
    """Two that are told the same, but for what one is asked besides, go on alike."""
    asked, other = crowd("a", "b"), crowd("a", "b")
    for one in (asked, other):
        one.waits("r1", "r2", priority="mid")
        one.node("a", 2)
    for name, outcome in [("high", Chosen), ("mid", Queued), ("low", Queued), ("never", Refused)]:
        asked.rooms = 0
        for _ in range(3):
            told = asked.balancer.would_route(request("would", priority=name), POLICY, NOW_S)
            assert isinstance(told.outcome, outcome)
        assert asked.rooms == 0
    assert asked.places() == other.places()
    assert asked.balancer.decisions(9) == other.balancer.decisions(9)
    assert asked.balancer.admit(NOW_S) == other.balancer.admit(NOW_S)
    assert asked.balancer.waiting == other.balancer.waiting


def test_the_same_calls_give_the_same_decisions() -> None:
    def run() -> list[Any]:
        one = crowd("a", "b", "c")
        for number in range(40):
            one.waits(f"r{number}", priority=["high", "mid", "low"][number % 3], tenant=f"t{number % 4}")
        for node_id in "abc":
            one.node(node_id, 8)
        return [*one.balancer.admit(one.now_s), *one.balancer.decisions(99)]

    assert run() == run()


def test_what_a_tenant_gets_in_one_lane_counts_in_the_others() -> None:
    """One floods with long prompts and with short ones; it has one share all the same."""
    one = Crowd()
    one.node("short", 0, models=models(length_tokens=4096))
    one.node("long", 0, models=models(length_tokens=8192))
    one.waits("long0", "long1", "long2", tokens=5000, tenant="they")
    one.waits("mid0", "mid1", "mid2", tokens=4000, tenant="they")
    one.now_s += 1
    one.waits("mine0", "mine1", "mine2", tokens=4000, tenant="me")
    one.node("long", 5, models=models(length_tokens=8192))
    assert order(one.admitted()) == ["long0", "mine0", "mine1", "long1", "mine2"]


def test_who_waits_for_what_is_claimed_already_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    one = crowd("a")
    for name in ("high", "mid", "low"):
        one.waits(f"w-{name}", priority=name)
    asked: list[str] = []
    find = one.balancer._chooser.find

    def watched(request: InferenceRequest, *others: Any) -> Any:
        asked.append(request.request_id)
        return find(request, *others)

    monkeypatch.setattr(one.balancer._chooser, "find", watched)
    assert one.admitted() == []
    assert asked == ["w-high"]


def test_a_queue_that_is_full_says_so() -> None:
    one = Crowd({"low": PriorityClass(queue_ms_max=1000, queue_requests_max=1)})
    one.node("a", 0)
    one.waits("r1")
    refused = one.comes("r2")
    assert isinstance(refused, Refused)
    assert refused.message.endswith("It cannot wait: 1 requests of class low wait already.")
