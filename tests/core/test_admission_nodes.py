"""Nodes come, go and change while requests wait, and so does what is known of these."""

from typing import Any

from extproc.core.decision import Chosen, Queued, Unknown
from extproc.core.snapshot import NodeState
from tests.core.fleet import POLICY, request
from tests.core.waiters import Crowd, models, order


def crowd(*nodes: str, **settings: Any) -> Crowd:
    """Nodes without room."""
    made = Crowd(**settings)
    for node_id in nodes:
        made.node(node_id, 0)
    return made


def test_whoever_waits_when_the_last_node_leaves_continues_without_a_destination() -> None:
    one = crowd("a")
    one.waits("r1")
    one.leaves("a")
    assert one.admitted() == ["r1: unknown"]
    assert isinstance(one.comes("r2"), Unknown)


def test_who_waits_for_a_model_whose_nodes_have_left_waits_for_their_return() -> None:
    one = Crowd()
    one.node("a", 0, models=models("x"))
    one.node("b", 50)
    one.waits("r1", "r2", model="x")
    one.leaves("a")
    assert one.admitted() == []
    assert isinstance(one.comes("other"), Chosen), "they hold up nobody"
    one.now_s += 5
    one.node("b", 50)
    one.node("a", 1, boot_id="boot-2", models=models("x"))
    assert one.admitted() == ["r1 to a"]


def test_who_waited_while_no_node_was_there_is_told_apart_by_length_when_they_come() -> None:
    one = Crowd()
    one.node("short", 0, models=models(length_tokens=4096))
    one.node("other", 0, models=models("x"))
    one.leaves("short")
    one.waits("long1", tokens=5000)
    one.waits("short1")
    one.node("long", 0, models=models(length_tokens=8192))
    one.node("short", 3, boot_id="boot-2", models=models(length_tokens=4096))
    assert one.admitted() == ["short1 to short"]
    assert isinstance(one.comes("short2"), Chosen)


def test_a_node_that_joins_belongs_to_those_who_wait() -> None:
    """Its context is shorter than those of all that were there, but long enough."""
    one = Crowd()
    one.node("a", 0, models=models(length_tokens=8192))
    one.waits("r1", tokens=3000, priority="high")
    one.waits("r2", tokens=5000, priority="mid")
    one.node("b", 9, models=models(length_tokens=4096))
    assert isinstance(one.comes("r3"), Queued), "it would take what r1 waits for"
    assert one.admitted() == ["r1 to b", "r3 to b"], "r2 is too long"


def test_who_waits_for_what_is_left_after_a_node_has_gone_shares_it() -> None:
    one = Crowd()
    one.node("short", 0, models=models(length_tokens=4096))
    one.node("long", 0, models=models(length_tokens=8192))
    one.waits("long1", "long2", tokens=5000, tenant="they")
    one.now_s += 1
    one.waits("short1", "short2", tenant="me")
    one.leaves("short")
    one.node("long", 3, models=models(length_tokens=8192))
    assert order(one.admitted()) == ["long1", "short1", "short2"]


def test_who_waits_while_its_nodes_load_or_drain_goes_when_one_is_ready() -> None:
    one = crowd("a")
    one.waits("r1")
    one.now_s += 1
    one.node("a", 9, state=NodeState.DRAINING)
    assert one.admitted() == []
    one.waits("r2")
    one.now_s += 1
    one.node("a", 1)
    assert one.admitted() == ["r1 to a"]


def test_who_waits_when_all_reports_are_stale_goes_by_the_round_robin() -> None:
    """Full is not stale: nothing is known any more."""
    one = crowd("a", "b")
    one.waits("r1", "r2")
    one.now_s += 4.9
    assert one.admitted() == []
    one.now_s += 0.2
    decisions = one.balancer.admit(one.now_s)
    assert {one.outcome.node_id for one in decisions if isinstance(one.outcome, Chosen) and one.outcome.fallback} == {
        "a",
        "b",
    }


def test_a_count_that_comes_while_it_waits_keeps_its_place() -> None:
    one = crowd("a")
    one.waits("r1", "r2", exact=False)
    one.balancer.recount(request("r1", 4000, priority="low"))
    one.node("a", 1)
    (decision,) = one.balancer.admit(one.now_s)
    assert (decision.request_id, decision.prompt_tokens, decision.tokens_exact) == ("r1", 4000, True)


def test_a_count_that_shows_it_to_be_too_long_for_a_node_holds_up_nobody_there() -> None:
    one = Crowd()
    one.node("short", 0, models=models(length_tokens=4096))
    one.node("long", 0, models=models(length_tokens=8192))
    one.waits("r1", exact=False)
    one.waits("r2")
    one.balancer.recount(request("r1", 5000, priority="low"))
    one.node("short", 3, models=models(length_tokens=4096))
    assert one.admitted() == ["r2 to short"]
    assert isinstance(one.comes("r3"), Chosen)


def test_a_count_that_shows_it_to_be_too_long_for_all_is_told_at_once() -> None:
    one = crowd("a")
    one.waits("r1", exact=False)
    one.rooms = 0
    one.balancer.recount(request("r1", 9000, priority="low"))
    assert one.rooms == 1
    assert one.admitted() == ["r1: context_length_exceeded"]


def test_a_count_cannot_change_what_its_class_holds() -> None:
    one = crowd("a")
    asked = request("r1", exact=False, priority="high", body_bytes=70, tenant="t")
    one.balancer.route(asked, POLICY, one.now_s)
    other = request("r1", 4000, priority="low", body_bytes=7, tenant="u")
    one.balancer.recount(other)
    assert one.places() == {"high": (1, 70)}
    assert one.balancer.admit(one.now_s) == []
    one.balancer.finish("r1", one.now_s)
    assert one.nothing_is_left()
