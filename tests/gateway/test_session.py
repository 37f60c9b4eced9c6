from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.balancer import Balancer
from extproc.core.policy import RoutingPolicy
from extproc.gateway.budget import BodyBudget
from extproc.gateway.conversation import (
    Acknowledge,
    BodyMode,
    Continue,
    CountTokens,
    Event,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    Respond,
    ResponseBody,
    ResponseHeaders,
    ResponseMessage,
    SetDestination,
)
from extproc.prompt import Prompt, texts_of
from tests.core.fleet import MODEL, NOW_S, SETTINGS, balancer, snapshot
from tests.gateway.talk import ACKNOWLEDGE, CHAT_PATH, Talk, chat, destination_of, headers, whole


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
        "request_id": "r1",
        "outcome": "chosen",
        "reason": reason,
        "policy": "default",
        "priority": "standard",
        "strategy": "least-added-delay",
        "model": MODEL,
        "phase": "decode",
        "tokens": 10,
        "tokens_exact": True,
        "tokens_source": "counted",
        "sequences": 2,
        "node": "a",
        "host": snapshot("a").host,
    }
    (asked,) = talk.asked
    assert (asked.model, list(texts_of(asked.prompt))) == (MODEL, ["hello"])
    assert asked.body_bytes == len(chat(max_tokens=5, n=2))
    (decision,) = fleet.decisions(1)
    assert decision == talk.session.decision
    assert (decision.request_id, decision.trace_id, decision.prompt_tokens) == ("r1", "t-1", 10)
    assert fleet.requests_open == 1
    talk.session.close(NOW_S)
    talk.session.close(NOW_S)
    assert fleet.requests_open == 0


def test_the_route_policy_is_the_one_that_decides_and_its_fault_is_shown() -> None:
    talk = Talk(balancer(snapshot("a")), policy=RoutingPolicy(name="batch"), policy_fault="no such policy")
    action = talk.say(headers(), whole(chat()))
    assert isinstance(action, SetDestination)
    assert action.metadata["policy"] == "batch"
    assert action.metadata["x-extproc-policy-error"] == "no such policy"


@pytest.mark.parametrize(
    "events",
    [
        [headers("/v1/models")],
        [headers("/v1/audio/transcriptions", content_length=20)],
        [RequestHeaders("GET", CHAT_PATH, end_of_stream=True)],
        [RequestHeaders("GET", CHAT_PATH)],
        [headers(end_of_stream=True)],
        [headers(), RequestBody(b"", end_of_stream=True)],
        [headers(mode=BodyMode.BUFFERED), RequestBody(b"", end_of_stream=False)],
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
        assert not {"tokens", "sequences", "phase"} & set(action.metadata)
        assert talk.session.decided
        assert not talk.asked
    assert hosts == {snapshot("a").host, snapshot("b").host}
    assert fleet.requests_open == 0


def test_a_body_that_nobody_reads_takes_no_room() -> None:
    talk = Talk(balancer(snapshot("a")))
    assert isinstance(talk.say(headers("/upload", content_length=500)), SetDestination)
    assert talk.budget.bytes_reserved == 0, "Envoy is asked for no body, and what comes all the same is not held"
    assert talk.say(whole(b"x" * 500)) == ACKNOWLEDGE
    assert talk.budget.bytes_reserved == 0


def test_before_any_node_reports_the_request_continues_without_a_destination() -> None:
    for events in ([headers("/v1/models")], [headers(), whole(chat())]):
        action = Talk(Balancer(SETTINGS, NOW_S - 60)).say(*events)
        assert isinstance(action, Continue)
        assert action.metadata["outcome"] == "unknown"
        assert action.metadata["reason"] == "no node has reported yet"


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
    st.builds(ResponseHeaders, st.integers(0, 599)),
    st.builds(ResponseBody, st.booleans(), st.booleans()),
    st.just(ResponseMessage()),
)


@given(
    streams=st.lists(st.lists(EVENTS, max_size=6), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
    recovers=st.booleans(),
)
def test_no_conversation_raises_or_leaks(streams: list[list[Event]], order: Any, recovers: bool) -> None:
    """Streams interleave, claims lie, messages repeat: every message is answered and in the end all is given back."""
    fleet = balancer(snapshot("a"), snapshot("b", requests_waiting=100))
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
        talk.session.close(NOW_S)
    assert budget.bytes_reserved == 0
    assert fleet.requests_open == 0


def test_the_prefix_of_a_path_does_not_matter() -> None:
    talk = Talk(balancer(snapshot("a")))
    body = b'{"model": "llama", "input": [1, 2, 3]}'
    assert destination_of(talk.say(headers("/batch/v1/embeddings?x=1"), whole(body)))
    assert talk.asked == [CountTokens(MODEL, Prompt(token_ids=3, ids=(1, 2, 3)), len(body))]
