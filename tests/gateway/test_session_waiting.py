"""A session whose request waits for room: in, out in every way, and what it holds meanwhile."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.balancer import Balancer
from extproc.core.policy import RoutingPolicy
from extproc.core.request import CountSource, TokenCount
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeLeft, NodeReported
from extproc.gateway.budget import BodyBudget
from extproc.gateway.conversation import (
    Action,
    Admitted,
    BodyMode,
    Continue,
    RequestTrailers,
    Respond,
    ResponseMessage,
    SetDestination,
    TokensCounted,
    Wait,
)
from extproc.prompt import CountedPrompt
from tests.core.fleet import NOW_S, balancer, node_of, snapshot
from tests.gateway.talk import (
    ACKNOWLEDGE,
    WAITS_S,
    Talk,
    admit,
    chat,
    destination_of,
    error_of,
    full,
    headers,
    waiting,
    whole,
)

NOBODY = {"interactive": (0, 0), "standard": (0, 0), "batch": (0, 0)}
ESTIMATED = TokenCount(1600, exact=False, source=CountSource.ESTIMATED)


def make_room(fleet: Balancer, now_s: float = NOW_S) -> None:
    fleet.observe(NodeReported(snapshot("a", sequence=2)), now_s)


def the_end_of(talk: Talk, fleet: Balancer, now_s: float = NOW_S) -> Action:
    (action,) = admit(fleet, talk, now_s=now_s).values()
    assert talk.session.decided
    return action


def test_a_request_for_which_there_is_no_room_waits_and_goes_once_there_is_some() -> None:
    fleet = full()
    talk = waiting(fleet)
    assert fleet.waiting == NOBODY | {"batch": (1, len(chat()))}
    assert admit(fleet, talk) == {}
    make_room(fleet, NOW_S + 1.5)
    action = the_end_of(talk, fleet, NOW_S + 2.25)
    assert destination_of(action) == snapshot("a").host
    assert isinstance(action, SetDestination)
    assert action.metadata.items() >= {"outcome": "chosen", "priority": "batch", "queued_ms": 2250}.items()
    assert talk.session.decision is not None
    assert (node_of(talk.session.decision), talk.session.decision.queued_s) == ("a", 2.25)
    assert fleet.waiting == NOBODY
    assert fleet.requests_open == 1
    assert talk.session.recover(NOW_S) == action, "after an error of ours the decision holds"
    talk.session.close(NOW_S)
    assert fleet.requests_open == 0


def test_a_request_that_did_not_wait_says_nothing_of_a_queue() -> None:
    action = Talk(balancer(snapshot("a"))).say(headers(), whole(chat()))
    assert isinstance(action, SetDestination)
    assert not {"queued_ms", "model_asked"} & action.metadata.keys()


def test_a_request_of_a_class_that_does_not_wait_is_refused_at_once_and_names_its_class() -> None:
    for policy, name in ((RoutingPolicy(), "standard"), (RoutingPolicy(priority="interactive"), "interactive")):
        action = Talk(full(), policy=policy).say(headers(), whole(chat()))
        error = error_of(action)
        assert (error["status"], error["code"]) == (429, "overloaded")
        assert isinstance(action, Respond)
        assert action.metadata["priority"] == name


def test_its_time_up_it_is_429_with_the_time_that_it_waited() -> None:
    fleet = full()
    talk = waiting(fleet)
    assert fleet.next_deadline_s == NOW_S + WAITS_S
    fleet.observe(NodeReported(snapshot("a", sequence=2, requests_waiting=100)), NOW_S + WAITS_S - 1)
    assert admit(fleet, talk, now_s=NOW_S + WAITS_S - 0.001) == {}
    action = the_end_of(talk, fleet, NOW_S + WAITS_S)
    error = error_of(action)
    assert (error["status"], error["type"], error["code"]) == (429, "rate_limit_error", "overloaded")
    assert "30.0 s" in error["message"]
    assert isinstance(action, Respond)
    assert ("retry-after", "1") in action.headers
    assert action.metadata.items() >= {"priority": "batch", "queued_ms": 30_000, "sequences": 1}.items()
    assert fleet.waiting == NOBODY


def test_a_model_that_leaves_while_one_waits_for_it_comes_back_or_is_refused_in_time() -> None:
    fleet = balancer(snapshot("a", requests_waiting=100), snapshot("other", models=()))
    talk = waiting(fleet)
    fleet.observe(NodeLeft("a", "boot-1"), NOW_S + 1)
    assert admit(fleet, talk, now_s=NOW_S + 1) == {}, "its agent may have gone only"
    error = error_of(the_end_of(talk, fleet, NOW_S + WAITS_S))
    assert (error["status"], error["code"]) == (503, "no_ready_node")


def test_a_model_that_no_node_has_any_more_is_404_for_who_waits() -> None:
    fleet = full()
    talk = waiting(fleet)
    fleet.observe(NodeReported(snapshot("a", sequence=2, models=())), NOW_S + 1)
    error = error_of(the_end_of(talk, fleet, NOW_S + 1))
    assert (error["status"], error["code"], error["param"]) == (404, "model_not_found", "model")


def test_what_cannot_be_known_any_more_goes_on_without_a_destination() -> None:
    fleet = Balancer(BalancerSettings(), NOW_S - 5)  # agents may still come back
    fleet.observe(NodeReported(snapshot("a", requests_waiting=100)), NOW_S)
    talk = waiting(fleet)
    fleet.observe(NodeReported(snapshot("a", sequence=2, models=())), NOW_S + 1)
    action = the_end_of(talk, fleet, NOW_S + 1)
    assert isinstance(action, Continue)
    assert action.metadata.items() >= {"outcome": "unknown", "queued_ms": 1000}.items()


def test_a_router_that_ends_turns_away_all_who_wait() -> None:
    fleet = full()
    talks = {str(number): waiting(fleet, str(number)) for number in range(3)}
    decisions = fleet.drain(NOW_S + 1)
    assert {one.request_id for one in decisions} == talks.keys()
    for decision in decisions:
        error = error_of(talks[decision.request_id].session.receive(Admitted(decision), NOW_S + 1))
        assert (error["status"], error["code"]) == (429, "overloaded")
    assert fleet.waiting == NOBODY
    assert fleet.next_deadline_s is None


def test_a_client_that_goes_while_it_waits_leaves_nothing() -> None:
    fleet = full()
    budget = BodyBudget(100_000)
    talk = waiting(fleet, budget=budget)
    other = waiting(fleet, "r2", budget=budget)
    talk.session.close(NOW_S)
    talk.session.close(NOW_S)
    assert fleet.waiting == NOBODY | {"batch": (1, len(chat()))}
    other.session.close(NOW_S)
    assert fleet.waiting == NOBODY
    assert fleet.next_deadline_s is None
    assert budget.bytes_reserved == 0
    make_room(fleet)
    assert fleet.admit(NOW_S) == []
    assert fleet.requests_open == 0


def test_an_error_of_ours_while_it_waits_sends_it_to_the_fallback_and_nobody_else() -> None:
    fleet = full()
    talk, other = waiting(fleet), waiting(fleet, "r2")
    action = talk.session.recover(NOW_S + 1)
    assert destination_of(action) == snapshot("a").host
    assert isinstance(action, SetDestination)
    assert action.metadata["outcome"] == "uninspected"
    assert talk.session.decided
    assert talk.budget.bytes_reserved == 0
    assert fleet.waiting["batch"][0] == 1
    make_room(fleet)
    assert list(admit(fleet, talk, other)) == ["r2"]
    assert fleet.requests_open == 1, "what the fallback serves is counted nowhere"


def test_an_admission_that_nobody_waits_for_is_a_fault_of_ours() -> None:
    fleet = full()
    talk = waiting(fleet)
    make_room(fleet)
    (decision,) = fleet.admit(NOW_S)
    talk.session.receive(Admitted(decision), NOW_S)
    with pytest.raises(AssertionError, match="did not wait"):
        talk.session.receive(Admitted(decision), NOW_S)


@pytest.mark.parametrize("claim_bytes_min", [0, 1_000_000])
def test_the_body_keeps_its_share_of_memory_while_it_waits_for_envoy_holds_it(claim_bytes_min: int) -> None:
    fleet = full()
    budget = BodyBudget(100_000)
    body = chat("x" * 3000)
    talk = waiting(fleet, body=body, budget=budget, body_claim_bytes_min=claim_bytes_min)
    assert budget.bytes_reserved == len(body)
    assert talk.session._upload._chunks == [], "its bytes are not kept here"
    make_room(fleet)
    the_end_of(talk, fleet)
    assert budget.bytes_reserved == 0


def test_a_count_that_comes_while_it_waits_is_the_one_that_counts_at_its_node() -> None:
    fleet = full()
    talk = waiting(fleet, tokens=ESTIMATED)
    talk.session.recount(TokenCount(160, exact=True))
    make_room(fleet)
    action = the_end_of(talk, fleet)
    assert isinstance(action, SetDestination)
    assert action.metadata.items() >= {"tokens": 160, "tokens_exact": True}.items()
    (view,) = fleet.views()
    assert view.own.prefill_tokens == 160


def test_a_count_that_comes_after_it_waited_puts_the_ledger_right() -> None:
    fleet = full()
    talk = waiting(fleet, tokens=ESTIMATED)
    make_room(fleet)
    the_end_of(talk, fleet)
    talk.session.recount(TokenCount(320, exact=True))
    (view,) = fleet.views()
    assert view.own.prefill_tokens == 320


@pytest.mark.parametrize("counted", ["never", "in the queue"])
def test_the_beginning_of_a_prompt_that_waited_is_known_at_its_node(counted: str) -> None:
    fleet = full()
    blocks = tuple(range(100, 110))
    session = Talk(fleet, policy=RoutingPolicy(priority="batch")).session
    session.receive(headers(), NOW_S)
    session.receive(whole(chat()), NOW_S)
    assert isinstance(session.receive(TokensCounted(CountedPrompt(ESTIMATED, blocks)), NOW_S), Wait)
    if counted != "never":
        session.recount(TokenCount(1500, exact=True))
    make_room(fleet)
    (decision,) = fleet.admit(NOW_S)
    session.receive(Admitted(decision), NOW_S)
    assert fleet._fleet.caches.match(blocks) == {"a": 10}
    assert session._routed is not None
    assert session._routed.prompt_blocks == (), "they are not held as long as the answer takes"


STEPS = st.lists(
    st.sampled_from(["come", "come", "go", "room", "full", "look", "late", "error", "count", "drain", "noise"]),
    max_size=25,
)


@given(steps=STEPS, chance=st.randoms(use_true_random=False))
def test_however_requests_come_wait_and_go_nothing_is_left(steps: list[str], chance: Any) -> None:
    fleet = full()
    budget = BodyBudget(3000)
    open_talks: dict[str, Talk] = {}
    now_s, sequence = NOW_S, 1

    def settle(decisions: Sequence[Any]) -> None:
        for decision in decisions:
            open_talks[decision.request_id].session.receive(Admitted(decision), now_s)

    for number, step in enumerate(steps):
        now_s += 0.25
        talk = chance.choice(list(open_talks.values())) if open_talks else None
        match step:
            case "come":
                policy = RoutingPolicy(priority=chance.choice(["batch", "standard"]))
                talk = Talk(fleet, policy=policy, budget=budget, request_id=str(number), tokens=ESTIMATED)
                open_talks[str(number)] = talk
                talk.say(headers(mode=BodyMode.BUFFERED), whole(chat()), now_s=now_s)
            case "room" | "full":
                sequence += 1
                waits = 100 if step == "full" else 0
                fleet.observe(NodeReported(snapshot("a", sequence=sequence, requests_waiting=waits)), now_s)
            case "look":
                settle(fleet.admit(now_s))
            case "late":
                now_s += 20
                settle(fleet.admit(now_s))
            case "drain":
                settle(fleet.drain(now_s))
            case "go" if talk is not None:
                talk.session.close(now_s)
                del open_talks[talk.session.request_id]
            case "error" if talk is not None:
                talk.session.recover(now_s)
            case "count" if talk is not None:
                talk.session.recount(TokenCount(10, exact=True))
            case "noise" if talk is not None and talk.session.decided:
                assert talk.say(ResponseMessage(), RequestTrailers()) == ACKNOWLEDGE
            case _:
                pass
        undecided = sum(not one.session.decided for one in open_talks.values())
        assert fleet.waiting["batch"] == (undecided, undecided * len(chat()))
        assert budget.bytes_held == undecided * len(chat())
    for talk in open_talks.values():
        talk.session.close(now_s)
    assert fleet.waiting == NOBODY
    assert fleet.next_deadline_s is None
    assert fleet.requests_open == 0
    assert budget.bytes_reserved == 0
