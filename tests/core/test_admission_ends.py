"""How waiting ends: by time, by giving up, by draining, by room; and when to look for that."""

from typing import Any

import pytest

from extproc.core.admissionsettings import PriorityClass
from extproc.core.balancer import ADMITTED_AT_ONCE_MAX
from extproc.core.decision import Chosen, Queued, Refusal, Refused
from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.room import Limits
from extproc.core.snapshot import NodeState
from tests.core.fleet import NOW_S, request
from tests.core.waiters import Crowd, models

ONE_PLACE = RoutingPolicy(limits=Limits(kv_blocks_required=True))


def crowd(*nodes: str, **settings: Any) -> Crowd:
    """Nodes without room."""
    made = Crowd(**settings)
    for node_id in nodes:
        made.node(node_id, 0)
    return made


def test_who_gives_up_is_gone_at_once() -> None:
    one = crowd("a")
    one.waits("r1", "r2", body_bytes=7)
    one.balancer.finish("r1", one.now_s)
    assert one.places() == {"low": (1, 7)}
    one.balancer.answered(Answered("r2", Ending.UNTOLD), one.now_s)
    assert one.places() == {"low": (1, 7)}, "nobody has answered it: whoever says so is wrong"
    one.balancer.finish("r2", one.now_s)
    assert one.nothing_is_left()
    one.node("a", 9)
    assert one.admitted() == []
    assert one.balancer.requests_open == 0


def test_who_gives_up_holds_up_nobody_any_more() -> None:
    one = crowd("a")
    one.waits("r1", tokens=8000, policy=RoutingPolicy(limits=Limits(requests_waiting_max=1)))
    one.node("a", 5)
    assert isinstance(one.comes("r2"), Queued)
    one.rooms = 0
    one.balancer.finish("r1", one.now_s)
    assert one.rooms == 1
    assert one.admitted() == ["r2 to a"]


def test_a_thousand_clients_that_give_up_leave_nothing() -> None:
    one = Crowd({"low": PriorityClass(queue_ms_max=60_000)})
    one.node("a", 0, models=None)
    for number in range(1000):
        one.waits(f"r{number}", tenant=f"t{number % 70}", model=f"m{number}", body_bytes=number)
    assert isinstance(one.comes("one-more"), Refused)
    for number in range(0, 1000, 2):
        one.balancer.finish(f"r{number}", one.now_s)
    for number in range(999, 0, -2):
        one.balancer.finish(f"r{number}", one.now_s)
    assert one.nothing_is_left()
    assert one.balancer.requests_open == 0
    assert len(one.balancer._admission._able._nodes) == 1, "names that no node lists are all alike"


def test_each_class_has_its_own_room_to_wait() -> None:
    classes = {
        "high": PriorityClass(queue_ms_max=1000, queue_requests_max=1),
        "low": PriorityClass(queue_ms_max=1000, queue_bytes_max=100),
    }
    one = crowd("a", classes=classes)
    one.waits("h1", priority="high", body_bytes=10**6)
    assert isinstance(one.comes("h2", "high"), Refused)
    one.waits("l1", body_bytes=60)
    assert isinstance(one.comes("l2", body_bytes=41), Refused)
    one.waits("l3", body_bytes=40)
    assert one.places() == {"high": (1, 10**6), "low": (2, 100)}


def test_time_is_up_at_its_edge() -> None:
    one = crowd("a")
    one.waits("r1", priority="high")
    one.now_s += 4
    one.waits("r2", priority="high")
    assert one.balancer.next_deadline_s == NOW_S + 10
    one.now_s = NOW_S + 9.999
    one.node("a", 0)
    assert one.admitted() == []
    one.now_s = NOW_S + 10
    (decision,) = one.balancer.admit(one.now_s)
    assert isinstance(decision.outcome, Refused)
    assert decision.outcome.refusal is Refusal.OVERLOADED
    assert decision.outcome.retry_after_s is not None
    assert 1 <= decision.outcome.retry_after_s <= 60
    assert "there was no room for it in 10.0 s" in decision.outcome.message
    assert decision.queued_s == 10
    assert one.balancer.next_deadline_s == NOW_S + 14


def test_who_has_room_in_the_moment_when_its_time_is_up_goes() -> None:
    one = crowd("a")
    one.waits("r1", "r2", priority="high")
    one.now_s = NOW_S + 10
    one.node("a", 1)
    assert one.admitted() == ["r1 to a", "r2: overloaded"]
    assert one.nothing_is_left()


def test_whose_time_is_up_holds_up_nobody_any_more() -> None:
    one = crowd("a")
    one.waits("r1", priority="high", policy=RoutingPolicy(limits=Limits(requests_waiting_max=1)))
    one.waits("r2")
    one.now_s = NOW_S + 10
    one.node("a", 1)
    one.rooms = 0
    assert one.admitted() == ["r1: overloaded"]
    assert one.rooms == 1
    assert one.admitted() == ["r2 to a"]


def test_so_many_go_at_once_and_then_it_is_said_that_there_is_more() -> None:
    one = crowd("a", "b")
    one.waits(*(f"r{number}" for number in range(ADMITTED_AT_ONCE_MAX + 3)))
    one.node("a", 99)
    one.rooms = 0
    assert len(one.admitted()) == ADMITTED_AT_ONCE_MAX
    assert one.rooms == 1
    assert len(one.admitted()) == 3
    assert one.rooms == 1, "nobody waits"
    assert one.admitted() == []


def test_of_many_whose_time_is_up_so_many_are_told_at_once() -> None:
    one = crowd("a")
    one.waits(*(f"r{number}" for number in range(ADMITTED_AT_ONCE_MAX + 3)))
    one.now_s += 30
    one.node("a", 0)
    one.rooms = 0
    assert len(one.admitted()) == ADMITTED_AT_ONCE_MAX
    assert one.rooms == 1
    assert one.balancer.next_deadline_s == one.now_s
    assert len(one.admitted()) == 3
    assert one.nothing_is_left()


def test_draining_turns_all_away() -> None:
    one = crowd("a")
    one.waits("r1", priority="high")
    one.waits("r2")
    decisions = one.balancer.drain(one.now_s)
    assert [decision.request_id for decision in decisions] == ["r1", "r2"]
    assert all(isinstance(one.outcome, Refused) and one.outcome.retry_after_s for one in decisions)
    assert one.nothing_is_left()
    assert one.balancer.drain(one.now_s) == []


def test_nobody_is_told_of_room_while_nobody_waits() -> None:
    one = Crowd()
    one.node("a", 1)
    one.comes("r1")
    one.balancer.first_token("r1", one.now_s)
    one.balancer.finish("r1", one.now_s)
    one.balancer.tick(one.now_s)
    assert one.rooms == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.node("a", 1),
        lambda one: one.leaves("b"),
        lambda one: one.balancer.first_token("sent", one.now_s),
        lambda one: one.balancer.leave("sent", one.now_s),
        lambda one: one.balancer.finish("sent", one.now_s),
        lambda one: one.balancer.finish("waits1", one.now_s),
        lambda one: one.balancer.answered(Answered("sent", Ending.SERVED, over=False), one.now_s),
        lambda one: one.balancer.answered(Answered("sent", Ending.SERVED), one.now_s),
        lambda one: one.balancer.recount(request("waits1", 50)),
        lambda one: one.balancer.tick(one.now_s),
        lambda one: one.comes("passes", "high", policy=RoutingPolicy(limits=Limits(requests_waiting_max=999))),
    ],
)
def test_whatever_changes_while_somebody_waits_may_make_room(change: Any) -> None:
    one = Crowd()
    one.node("a", 1)
    one.node("b", 0)
    assert isinstance(one.comes("sent"), Chosen)
    one.waits("waits1", "waits2")
    one.rooms = 0
    change(one)
    assert one.rooms >= 1


def test_who_comes_and_stands_before_those_who_wait_may_go_at_once() -> None:
    """Its tenant has had less than the one whose turn it was, and its prompt fits: nothing else need happen."""
    one = Crowd()
    one.node("a", 0)
    one.waits("first", tokens=16, policy=ONE_PLACE, tenant="b", output_tokens_max=1)
    one.waits("long", tokens=1600, policy=ONE_PLACE, tenant="b", output_tokens_max=1)
    one.node("a", 50, kv_blocks_available=10)
    assert one.admitted() == ["first to a"]
    one.rooms = 0
    one.waits("short", tokens=16, policy=ONE_PLACE, tenant="a", output_tokens_max=1)
    assert one.rooms == 1
    assert one.admitted() == ["short to a"]


def test_who_was_held_up_before_one_that_begins_the_same_prompt_is_looked_at_again() -> None:
    """What is on its way to a node need not be computed there twice: so there is room now where there was none."""
    one = Crowd()
    policy = RoutingPolicy(limits=Limits(kv_blocks_required=True), fallback_models={"large": "small"})
    one.node("a", 0, models=models("large"))
    one.node("b", 0, models=models("small"))
    alike: dict[str, Any] = {"model": "large", "policy": policy, "prompt_blocks": (1, 2, 3), "output_tokens_max": 16}
    one.waits("long", priority="mid", tokens=1000, **alike)
    one.waits("short", priority="low", tokens=10, **alike)
    one.node("b", 50, models=models("small"), kv_blocks_available=50)  # not enough for a prompt of 1000 tokens
    one.rooms = 0
    assert one.admitted() == ["short to b"]
    assert one.rooms == 1
    assert one.admitted() == ["long to b"]


def test_a_node_whose_trial_is_answered_has_room_again() -> None:
    one = Crowd()
    one.node("a", 0)
    one.node("b", 9)
    assert isinstance(one.comes("fails"), Chosen)
    one.balancer.answered(Answered("fails", Ending.UNREACHABLE), one.now_s)
    one.waits("r1", priority="high")
    one.now_s += 5
    one.node("a", 0)
    one.node("b", 9)
    assert one.admitted() == ["r1 to b"], "as its trial"
    one.waits("r2")
    assert one.admitted() == []
    one.rooms = 0
    one.balancer.answered(Answered("r1", Ending.SERVED, over=False), one.now_s)
    assert one.rooms == 1
    assert one.admitted() == ["r2 to b"]


def test_who_waited_for_nodes_that_load_is_told_that_none_was_ready() -> None:
    one = Crowd()
    one.node("a", 0, state=NodeState.LOADING)
    one.waits("w")
    one.now_s += 30
    one.node("a", 0, state=NodeState.LOADING)
    (decision,) = one.balancer.admit(one.now_s)
    assert isinstance(decision.outcome, Refused)
    assert decision.outcome.refusal is Refusal.NO_READY_NODE
