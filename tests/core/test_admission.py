"""What comes first where not all can go: through the balancer, by hand."""

from typing import Any

import pytest
from msgspec.structs import replace

from extproc.core.admissionsettings import PriorityClass
from extproc.core.balancer import ADMITTED_AT_ONCE_MAX
from extproc.core.decision import Chosen, Queued, Refusal, Refused, Unknown
from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.request import TokenCount
from extproc.core.room import Limits
from extproc.core.snapshot import NodeState, ServedModel
from tests.core.fleet import LOAD_SCORE, MODEL, NOW_S, POLICY, balancer, request, snapshot
from tests.core.waiters import CLASSES, Crowd, models, order

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
    one.now_s += 0.1
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
    assert order(one.admitted()) == ["small0", "big0", "small1", "small2", "big1", "small3"]


def test_an_adapter_that_is_to_be_loaded_waits_like_any_model() -> None:
    one = Crowd()
    unloaded = (*models(MODEL), ServedModel("tuned", loaded=False))
    one.node("a", 0, models=unloaded)
    one.node("b", 0)
    one.waits("tuned1", model="tuned")
    one.now_s += 0.1
    one.waits("base1")
    one.node("b", 1)
    assert one.admitted() == ["base1 to b"], "b does not serve it"
    one.node("a", 1, models=unloaded)
    one.now_s += 0.1
    assert isinstance(one.comes("base2"), Queued)
    assert one.admitted() == ["tuned1 to a"]


def test_who_gives_up_is_gone_at_once() -> None:
    one = crowd("a")
    one.waits("r1", "r2", body_bytes=7)
    one.balancer.finish("r1", one.now_s)
    assert one.places() == {"low": (1, 7)}
    one.balancer.answered(Answered("r2", Ending.UNTOLD), one.now_s)
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
        lambda one: one.balancer.finish("sent", one.now_s),
        lambda one: one.balancer.finish("waits1", one.now_s),
        lambda one: one.balancer.answered(Answered("sent", Ending.SERVED), one.now_s),
        lambda one: one.balancer.recount(request("waits1", 50)),
        lambda one: one.balancer.tick(one.now_s),
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
    one.balancer.recount(replace(asked, prompt=TokenCount(4000, exact=True)))
    assert one.places() == {"high": (1, 70)}
    one.balancer.finish("r1", one.now_s)
    assert one.nothing_is_left()


RESERVED = {**CLASSES, "high": PriorityClass(reserved_share=0.25), "mid": PriorityClass(reserved_share=0.15)}


@pytest.mark.parametrize(("name", "places"), [("high", 100), ("mid", 75), ("low", 60), ("never", 60)])
def test_what_a_class_reserves_is_left_free_by_all_below_it(name: str, places: int) -> None:
    for waiting, goes in [(places - 1, True), (places, False)]:
        one = Crowd({**RESERVED, "low": PriorityClass()})
        one.node("a", 100 - waiting)
        assert isinstance(one.comes("r1", name), Chosen if goes else Refused)


@pytest.mark.parametrize("policy", [POLICY, LOAD_SCORE])
@pytest.mark.parametrize(("name", "share"), [("high", 1.0), ("mid", 0.75), ("low", 0.6)])
def test_the_same_of_the_kv_cache(policy: RoutingPolicy, name: str, share: float) -> None:
    """Without a limit of its own, a node is full at 1 for who must leave something, and never for who need not."""
    if policy is LOAD_SCORE:
        share *= 0.9
    never_full = policy is POLICY and name == "high"
    for usage, goes in [(share - 0.001, True), (share, never_full)]:
        one = Crowd({**RESERVED, "low": PriorityClass()})
        one.node("a", 100, kv_usage=usage)
        assert isinstance(one.comes("r1", name, policy), Chosen if goes else Refused)


def test_who_waits_below_a_reserve_leaves_it_free() -> None:
    one = Crowd({"high": PriorityClass(reserved_share=0.5), "low": PriorityClass(queue_ms_max=1000)})
    one.node("a", 50)
    one.waits("r1")
    assert one.admitted() == []
    assert isinstance(one.comes("r2", "high"), Chosen)
    one.node("a", 51)
    assert one.admitted() == [], "49 and r2, of 50"
    one.balancer.finish("r2", one.now_s)
    assert one.admitted() == ["r1 to a"]


@pytest.mark.parametrize(
    ("limits", "strategy", "usage", "goes"),
    [
        ({}, "load-score", 0.9, False),
        ({}, "load-score", 0.899, True),
        ({}, "least-added-delay", 1.0, True),
        ({}, "lmetric", 1.0, True),
        ({"kv_usage_max": 0.5}, "least-added-delay", 0.5, False),
        ({"kv_usage_max": 0.5}, "least-added-delay", 0.499, True),
        ({"kv_usage_max": 0.95}, "load-score", 0.94, True),
        ({"kv_usage_max": 0.95}, "load-score", 0.95, False),
    ],
)
def test_a_full_cache_is_a_full_node_only_where_that_is_said(
    limits: dict[str, float], strategy: str, usage: float, goes: bool
) -> None:
    fleet = balancer(snapshot("a", kv_usage=usage))
    policy = RoutingPolicy(strategy=strategy, limits=Limits.model_validate(limits))
    assert isinstance(fleet.route(request(), policy, NOW_S).outcome, Chosen if goes else Refused)


@pytest.mark.parametrize(("blocks", "goes"), [(16, True), (15, False)])
def test_too_few_blocks_make_a_node_full_only_where_they_are_required(blocks: int, goes: bool) -> None:
    """The prompt takes 7 blocks of 16 tokens, the answer 9."""
    fleet = balancer(snapshot("a", kv_blocks_available=blocks))
    asked = request(tokens=112, output_tokens_max=144)
    outcome = fleet.would_route(asked, ONE_PLACE, NOW_S).outcome
    assert isinstance(outcome, Chosen if goes else Refused)
    assert isinstance(fleet.route(asked, POLICY, NOW_S).outcome, Chosen)


def test_what_does_not_fit_an_empty_cache_is_no_matter_of_room() -> None:
    """Waiting would not help: the engine shall say what is wrong with it."""
    one = Crowd()
    one.node("a", 50, kv_blocks_available=0, kv_blocks_total=100)
    assert isinstance(one.comes("r1", tokens=1601, policy=ONE_PLACE), Chosen)
    assert isinstance(one.comes("r2", tokens=1600, policy=ONE_PLACE), Queued)


@pytest.mark.parametrize(("places", "tokens", "least_s", "most_s"), [(0, 100, 1, 1), (1, 400_000, 50, 60)])
def test_refused_clients_are_told_when_to_come_again(places: int, tokens: int, least_s: int, most_s: int) -> None:
    one = Crowd()
    one.node("a", places, models=models(length_tokens=None))
    if places:
        one.comes("before", tokens=tokens)
    refused = one.comes("r1", "never")
    assert isinstance(refused, Refused)
    assert refused.retry_after_s is not None
    assert least_s <= refused.retry_after_s <= most_s


def test_the_same_calls_give_the_same_decisions() -> None:
    def run() -> list[Any]:
        one = crowd("a", "b", "c")
        for number in range(40):
            one.waits(f"r{number}", priority=["high", "mid", "low"][number % 3], tenant=f"t{number % 4}")
        for node_id in "abc":
            one.node(node_id, 8)
        return [*one.balancer.admit(one.now_s), *one.balancer.decisions(99)]

    assert run() == run()
