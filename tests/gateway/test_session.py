import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.balancer import Balancer
from extproc.core.policy import RoutingPolicy
from extproc.core.request import Prompt, TokenCount
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeState
from extproc.gateway.budget import BodyBudget
from extproc.gateway.conversation import (
    Acknowledge,
    Action,
    Continue,
    CountTokens,
    Event,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    Respond,
    ResponseMessage,
    SetDestination,
    TokensCounted,
)
from extproc.gateway.openai import items_of
from tests.core.fleet import MODEL, NOW_S, SETTINGS, balancer, snapshot
from tests.gateway.talk import CHAT_PATH, Talk, chat, headers, whole

ACKNOWLEDGE = Acknowledge()


def error_of(action: Action) -> dict[str, Any]:
    assert isinstance(action, Respond), action
    error = json.loads(action.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == action.code == action.metadata["outcome"]
    assert ("content-type", "application/json") in action.headers
    return {"status": action.status, **error}


def destination_of(action: Action) -> str:
    assert isinstance(action, SetDestination), action
    return action.host


def test_an_inference_request_is_sent_to_the_chosen_node() -> None:
    fleet = balancer(snapshot("a"))
    talk = Talk(fleet)
    assert talk.say(headers(trace_id="t-1")) == ACKNOWLEDGE
    action = talk.say(whole(chat(max_tokens=5, n=2)))
    assert destination_of(action) == snapshot("a").host
    assert isinstance(action, SetDestination)
    reason = action.metadata["reason"]
    assert isinstance(reason, str)
    assert action.metadata == {
        "outcome": "chosen",
        "reason": reason,
        "policy": "default",
        "strategy": "load-score",
        "phase": "decode",
        "tokens": 10,
        "tokens_exact": True,
        "node": "a",
        "host": snapshot("a").host,
    }
    assert talk.asked == [CountTokens(MODEL, Prompt(("hello",), messages=1), len(chat(max_tokens=5, n=2)))]
    (decision,) = fleet.decisions(1)
    assert decision == talk.session.decision
    assert (decision.request_id, decision.trace_id, decision.prompt_tokens) == ("r1", "t-1", 10)
    assert fleet.requests_open == 1
    talk.session.close()
    talk.session.close()
    assert fleet.requests_open == 0


def test_the_route_policy_is_the_one_that_decides_and_its_fault_is_shown() -> None:
    talk = Talk(balancer(snapshot("a")), policy=RoutingPolicy(name="batch"), policy_fault="no such policy")
    action = talk.say(headers(), whole(chat()))
    assert isinstance(action, SetDestination)
    assert action.metadata["policy"] == "batch"
    assert action.metadata["policy_error"] == "no such policy"


@pytest.mark.parametrize(
    "events",
    [
        [headers("/v1/models")],
        [headers("/v1/audio/transcriptions", content_length=20)],
        [RequestHeaders("GET", CHAT_PATH, end_of_stream=True)],
        [RequestHeaders("GET", CHAT_PATH)],
        [headers(end_of_stream=True)],
        [headers(), RequestBody(b"", end_of_stream=True)],
        [headers(body_in_one=True), RequestBody(b"", end_of_stream=False)],
        [headers(), RequestBody(b"", end_of_stream=False), RequestBody(b"", end_of_stream=True)],
    ],
)
def test_what_is_no_inference_goes_to_the_fallback_and_is_not_counted(events: list[Event]) -> None:
    fleet = balancer(snapshot("a"), snapshot("b"))
    hosts = set()
    for number in range(2):
        talk = Talk(fleet, request_id=str(number))
        action = talk.say(*events)
        hosts.add(destination_of(action))
        assert isinstance(action, SetDestination)
        assert (action.metadata["strategy"], action.metadata["outcome"]) == ("fallback", "uninspected")
        assert "tokens" not in action.metadata
        assert "phase" not in action.metadata
        assert talk.session.decided
        assert not talk.asked
    assert hosts == {snapshot("a").host, snapshot("b").host}
    assert fleet.requests_open == 0


def test_a_body_that_nobody_reads_is_dropped_and_its_bytes_are_given_back() -> None:
    talk = Talk(balancer(snapshot("a")))
    assert isinstance(talk.say(headers("/upload", content_length=500)), SetDestination)
    assert talk.budget.bytes_reserved == 500
    assert talk.say(whole(b"x" * 500)) == ACKNOWLEDGE
    assert talk.budget.bytes_reserved == 0


def test_before_any_node_reports_the_request_continues_without_a_destination() -> None:
    for events in ([headers("/v1/models")], [headers(), whole(chat())]):
        action = Talk(Balancer(SETTINGS, NOW_S - 60)).say(*events)
        assert isinstance(action, Continue)
        assert action.metadata["outcome"] == "unknown"
        assert action.metadata["reason"] == "no node has reported yet"


def test_a_model_that_no_node_serves_is_404_and_names_the_field() -> None:
    error = error_of(Talk(balancer(snapshot("a"))).say(headers(), whole(chat(model="nobody"))))
    assert (error["status"], error["type"], error["param"], error["code"]) == (
        404,
        "invalid_request_error",
        "model",
        "model_not_found",
    )


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT_PATH, chat(), "messages"),
        ("/v1/completions", b'{"model": "llama", "prompt": "x"}', "prompt"),
        ("/v1/embeddings", b'{"model": "llama", "input": "x"}', "input"),
        ("/v1/responses", b'{"model": "llama", "input": "x"}', "input"),
    ],
)
def test_a_prompt_over_every_context_length_is_400_and_names_the_field(path: str, body: bytes, param: str) -> None:
    talk = Talk(balancer(snapshot("a")), tokens=TokenCount(9000, exact=True))
    error = error_of(talk.say(headers(path), whole(body)))
    assert (error["status"], error["type"], error["param"], error["code"]) == (
        400,
        "invalid_request_error",
        param,
        "context_length_exceeded",
    )


def test_a_batch_of_prompts_may_be_longer_than_a_context() -> None:
    talk = Talk(balancer(snapshot("a")), tokens=TokenCount(9000, exact=True))
    body = b'{"model": "llama", "input": ["many", "texts"]}'
    assert destination_of(talk.say(headers("/v1/embeddings"), whole(body)))


def test_full_nodes_are_429_and_loading_ones_503_both_with_retry_after() -> None:
    settings = BalancerSettings(retry_after_s=7)
    full = balancer(snapshot("a", kv_usage=0.99), settings=settings)
    action = Talk(full).say(headers(), whole(chat()))
    error = error_of(action)
    assert (error["status"], error["type"], error["code"]) == (429, "rate_limit_error", "overloaded")
    assert isinstance(action, Respond)
    assert ("retry-after", "7") in action.headers
    loading = balancer(snapshot("a", state=NodeState.LOADING), settings=settings)
    for events in ([headers(), whole(chat())], [headers("/v1/models")]):
        action = Talk(loading).say(*events)
        error = error_of(action)
        assert (error["status"], error["type"], error["code"]) == (503, "server_error", "no_ready_node")
        assert isinstance(action, Respond)
        assert ("retry-after", "7") in action.headers
        assert "node" not in action.metadata


@pytest.mark.parametrize(
    ("body", "param"),
    [(b"hello", None), (b'{"messages": []}', "model"), (b'{"model": "m", "messages": [1]}', "messages[0]")],
)
def test_a_body_that_cannot_be_read_is_400(body: bytes, param: str | None) -> None:
    talk = Talk(balancer(snapshot("a")))
    action = talk.say(headers(), whole(body))
    error = error_of(action)
    assert (error["status"], error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["code"] == "invalid_request"
    assert isinstance(action, Respond)
    assert action.metadata["policy"] == "default"
    assert talk.session.decided
    assert talk.session.decision is None
    assert talk.budget.bytes_reserved == 0


@pytest.mark.parametrize(("extra", "status"), [(0, None), (1, 413)])
@pytest.mark.parametrize("claimed", [True, False])
def test_a_body_as_long_as_allowed_passes_and_a_longer_one_is_413(
    extra: int, status: int | None, claimed: bool
) -> None:
    body = chat("x" * 1000)
    talk = Talk(balancer(snapshot("a")), body_bytes_max=len(body) - extra)
    action = talk.say(headers(content_length=len(body) if claimed else None))
    if action == ACKNOWLEDGE:
        action = talk.say(whole(body))
    if status is None:
        assert destination_of(action)
    else:
        error = error_of(action)
        assert (error["status"], error["code"]) == (status, "request_too_large")
    assert talk.budget.bytes_reserved == 0


def test_a_claim_over_the_limit_is_413_for_what_is_no_inference_too() -> None:
    talk = Talk(balancer(snapshot("a")), body_bytes_max=2000)
    assert error_of(talk.say(headers("/upload", content_length=2001)))["status"] == 413


def test_a_body_over_the_limit_is_refused_as_soon_as_it_is_over() -> None:
    talk = Talk(balancer(snapshot("a")), body_bytes_max=2000)
    talk.say(headers())
    for _ in range(20):
        assert talk.say(RequestBody(b"x" * 100, end_of_stream=False)) == ACKNOWLEDGE
    assert error_of(talk.say(RequestBody(b"x", end_of_stream=False)))["status"] == 413
    assert talk.say(whole(b"x" * 100)) == ACKNOWLEDGE
    assert talk.budget.bytes_reserved == 0


@pytest.mark.parametrize(("items", "status"), [(1000, None), (1001, 400)])
def test_a_body_of_as_many_items_as_allowed_passes_and_one_of_more_is_400(items: int, status: int | None) -> None:
    body = chat("[" * (items - items_of(chat())))
    talk = Talk(balancer(snapshot("a")), body_items_max=1000)
    action = talk.say(headers(), whole(body))
    if status is None:
        assert destination_of(action)
    else:
        error = error_of(action)
        assert (error["status"], error["code"], error["param"]) == (status, "invalid_request", None)
        assert error["message"] == "The request body has more than 1000 items: brackets, braces, a quarter of commas."


def test_bodies_over_the_budget_are_429_at_the_headers_and_their_end_makes_room() -> None:
    fleet = balancer(snapshot("a"))
    budget = BodyBudget(1000)
    first = Talk(fleet, budget=budget, request_id="r1")
    assert first.say(headers(content_length=600)) == ACKNOWLEDGE
    fits = Talk(fleet, budget=budget, request_id="r2")
    assert fits.say(headers(content_length=400)) == ACKNOWLEDGE
    refused = Talk(fleet, budget=budget, request_id="r3")
    action = refused.say(headers(content_length=1))
    error = error_of(action)
    assert (error["status"], error["code"]) == (429, "overloaded")
    assert isinstance(action, Respond)
    assert ("retry-after", "1") in action.headers
    assert budget.bytes_reserved == 1000
    fits.session.close()
    assert Talk(fleet, budget=budget, request_id="r4").say(headers(content_length=400)) == ACKNOWLEDGE
    first.say(whole(chat()))
    assert budget.bytes_reserved == 400


def test_claims_that_send_nothing_shut_out_long_bodies_only() -> None:
    fleet = balancer(snapshot("a"))
    budget = BodyBudget(1000)
    idle = Talk(fleet, budget=budget, body_claim_bytes_min=500, request_id="idle")
    assert idle.say(headers(content_length=1000)) == ACKNOWLEDGE
    long = Talk(fleet, budget=budget, body_claim_bytes_min=500, request_id="long")
    assert error_of(long.say(headers(content_length=500)))["status"] == 429
    short = Talk(fleet, budget=budget, body_claim_bytes_min=500, request_id="short")
    assert short.say(headers(content_length=499)) == ACKNOWLEDGE
    assert destination_of(short.say(whole(chat())))
    idle.session.close()
    assert budget.bytes_reserved == 0


def test_bodies_that_have_come_fill_the_budget_whatever_they_claimed() -> None:
    fleet = balancer(snapshot("a"))
    budget = BodyBudget(100)
    first = Talk(fleet, budget=budget, body_claim_bytes_min=1000, request_id="first")
    first.say(headers(content_length=1), RequestBody(b"x" * 90, end_of_stream=False))
    second = Talk(fleet, budget=budget, body_claim_bytes_min=1000, request_id="second")
    second.say(headers(content_length=1))
    assert error_of(second.say(RequestBody(b"x" * 11, end_of_stream=False)))["status"] == 429
    assert budget.bytes_held == 90


def test_a_body_without_a_claim_is_reserved_as_it_comes() -> None:
    fleet = balancer(snapshot("a"))
    budget = BodyBudget(100)
    talk = Talk(fleet, budget=budget)
    talk.say(headers())
    for come in (60, 100):
        talk.say(RequestBody(b"x" * (60 if come == 60 else 40), end_of_stream=False))
        assert budget.bytes_reserved == come
    assert error_of(talk.say(RequestBody(b"x", end_of_stream=False)))["code"] == "overloaded"
    assert budget.bytes_reserved == 0


def test_a_body_in_one_message_is_whole_even_when_trailers_follow() -> None:
    talk = Talk(balancer(snapshot("a")))
    talk.say(headers(body_in_one=True))
    assert destination_of(talk.say(RequestBody(chat(), end_of_stream=False)))
    assert talk.say(RequestTrailers()) == ACKNOWLEDGE


def test_trailers_before_the_body_is_whole_end_the_wait_for_it() -> None:
    talk = Talk(balancer(snapshot("a")))
    talk.say(headers(content_length=500), RequestBody(b"{", end_of_stream=False))
    assert talk.say(RequestTrailers()) == ACKNOWLEDGE
    assert talk.session.decided
    assert talk.budget.bytes_reserved == 0


def test_tokens_that_were_not_asked_for_are_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError):
        Talk(balancer()).say(TokensCounted(TokenCount(1, exact=True)))


def test_after_an_error_of_ours_the_fallback_serves() -> None:
    talk = Talk(balancer(snapshot("a")))
    talk.say(headers(content_length=500))
    assert destination_of(talk.session.recover(NOW_S)) == snapshot("a").host
    assert talk.session.decided
    assert talk.budget.bytes_reserved == 0


def test_after_an_error_of_ours_a_decision_made_already_holds() -> None:
    talk = Talk(balancer(snapshot("a")))
    action = talk.say(headers(), whole(chat()))
    assert talk.session.recover(NOW_S) == action
    refused = Talk(balancer(snapshot("a")))
    refused.say(headers(), whole(b"hello"))
    assert refused.session.recover(NOW_S) == ACKNOWLEDGE


@given(cuts=st.lists(st.integers(0, 400), max_size=8), body=st.sampled_from([chat("x" * 300), chat("é" * 100), b"[]"]))
def test_however_a_body_is_cut_the_decision_is_the_same(cuts: list[int], body: bytes) -> None:
    bounds = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[begin:end] for begin, end in pairwise(bounds)]
    events = [RequestBody(piece, end_of_stream=False) for piece in pieces[:-1]] + [whole(pieces[-1])]
    cut, uncut = Talk(balancer(snapshot("a"))), Talk(balancer(snapshot("a")))
    assert cut.say(headers(), *events) == uncut.say(headers(), whole(body))
    assert cut.asked == uncut.asked
    assert cut.session.decision == uncut.session.decision


EVENTS = st.one_of(
    st.builds(
        RequestHeaders,
        st.sampled_from(["GET", "POST"]),
        st.sampled_from([CHAT_PATH, "/v1/embeddings", "/v1/models", ""]),
        st.none() | st.integers(0, 3000),
        st.text(max_size=3),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(RequestBody, st.binary(max_size=1500) | st.just(chat()), st.booleans()),
    st.just(RequestTrailers()),
    st.just(ResponseMessage()),
)


@given(
    streams=st.lists(st.lists(EVENTS, max_size=6), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
    recovers=st.booleans(),
)
def test_no_conversation_raises_or_leaks(streams: list[list[Event]], order: Any, recovers: bool) -> None:
    """Streams interleave, claims lie, messages repeat: every message is answered and in the end all is given back."""
    fleet = balancer(snapshot("a"), snapshot("b", kv_usage=0.99))
    budget = BodyBudget(4000)
    talks = [Talk(fleet, budget=budget, body_bytes_max=2000, request_id=str(number)) for number in range(len(streams))]
    turns = [number for number, events in enumerate(streams) for _ in events]
    order.shuffle(turns)
    waiting = [iter(events) for events in streams]
    for number in turns:
        decided = talks[number].session.decided
        action = talks[number].say(next(waiting[number]))
        if decided or isinstance(action, Acknowledge):
            assert action == ACKNOWLEDGE
        else:
            assert talks[number].session.decided
        if isinstance(action, Respond):
            assert 400 <= action.status <= 503
        assert 0 <= budget.bytes_claimed <= 4000
        assert 0 <= budget.bytes_held <= 4000
    for talk in talks:
        if recovers:
            talk.session.recover(NOW_S)
        talk.session.close()
    assert budget.bytes_reserved == 0
    assert fleet.requests_open == 0


def test_the_prefix_of_a_path_does_not_matter() -> None:
    talk = Talk(balancer(snapshot("a")))
    body = b'{"model": "llama", "input": [1, 2, 3]}'
    assert destination_of(talk.say(headers("/batch/v1/embeddings?x=1"), whole(body)))
    assert talk.asked == [CountTokens(MODEL, Prompt(token_ids=3), len(body))]
