"""What a session answers clients itself, by what the balancer or the body says."""

from typing import Any

import pytest

from extproc.core.request import TokenCount
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeState
from extproc.gateway.conversation import Respond
from tests.core.fleet import balancer, snapshot
from tests.gateway.talk import CHAT_PATH, Talk, chat, destination_of, error_of, headers, whole


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


@pytest.mark.parametrize(
    ("path", "fields", "prompt", "param"),
    [
        (CHAT_PATH, {"max_tokens": 1_000_000_000}, TokenCount(10, exact=True), "max_tokens"),
        (CHAT_PATH, {"max_tokens": 1_000_000_000}, TokenCount(10, exact=False), "max_tokens"),
        (
            CHAT_PATH,
            {"max_tokens": 1, "max_completion_tokens": 9000},
            TokenCount(10, exact=True),
            "max_completion_tokens",
        ),
        ("/v1/completions", {"max_tokens": 9000}, TokenCount(10, exact=True), "max_tokens"),
        ("/v1/responses", {"max_output_tokens": 9000}, TokenCount(10, exact=True), "max_output_tokens"),
        (CHAT_PATH, {"max_tokens": 4097}, TokenCount(4096, exact=True), "max_tokens"),
        (CHAT_PATH, {"max_tokens": 4097}, TokenCount(4097, exact=True), "messages"),
        (CHAT_PATH, {"max_tokens": -1}, TokenCount(9000, exact=True), "messages"),
        ("/v1/embeddings", {"max_tokens": 10_000}, TokenCount(9000, exact=True), "input"),
    ],
)
def test_of_prompt_and_answer_the_one_that_takes_more_of_the_context_is_named(
    path: str, fields: dict[str, Any], prompt: TokenCount, param: str
) -> None:
    talk = Talk(balancer(snapshot("a")), tokens=prompt)
    error = error_of(talk.say(headers(path), whole(chat(prompt="x", input="x", **fields))))
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)


def test_a_batch_of_prompts_may_be_longer_than_a_context() -> None:
    talk = Talk(balancer(snapshot("a")), tokens=TokenCount(9000, exact=True))
    body = b'{"model": "llama", "input": ["many", "texts"]}'
    assert destination_of(talk.say(headers("/v1/embeddings"), whole(body)))


def test_full_nodes_are_429_and_loading_ones_503_both_with_retry_after() -> None:
    settings = BalancerSettings(retry_after_s=7)
    full = balancer(snapshot("a", requests_waiting=100), settings=settings)
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
