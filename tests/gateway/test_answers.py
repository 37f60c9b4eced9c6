import json

import pytest

from extproc.core.decision import Refusal
from extproc.gateway import answers
from extproc.gateway.conversation import Respond

STATUS = {
    "overloaded": 429,
    "rate_limit_exceeded": 429,
    "no_ready_node": 503,
    "model_not_found": 404,
    "context_length_exceeded": 400,
    "invalid_request": 400,
    "request_too_large": 413,
}
"""By which OpenAI's clients choose their exceptions."""


@pytest.mark.parametrize("code", [*(one.value for one in Refusal), answers.INVALID, answers.TOO_LARGE])
def test_each_refusal_has_a_status_and_a_body_that_openais_clients_know(code: str) -> None:
    answer = answers.error(code, "why", "model", None, {"outcome": code})
    assert (answer.status, answer.code, answer.metadata) == (STATUS[code], code, {"outcome": code})
    assert answer.headers == (("content-type", "application/json"),)
    error = json.loads(answer.body)["error"]
    assert error.pop("type") == {429: "rate_limit_error", 503: "server_error"}.get(
        answer.status, "invalid_request_error"
    )
    assert error == {"message": "why", "param": "model", "code": code}


def test_an_answer_carries_further_headers_after_its_own() -> None:
    left = (("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "6s"))
    answer = answers.error(answers.RATE_LIMITED, "no more", None, 6, {}, headers=left)
    assert isinstance(answer, Respond)
    assert answer.headers == (("content-type", "application/json"), ("retry-after", "6"), *left)


def test_access_logs_are_told_the_class_the_wait_and_the_model_asked_for() -> None:
    told = answers.metadata_of(
        "a-1", "overloaded", "full", "p", None, None, None, priority="batch", queued_ms=0, model_asked="fast"
    )
    assert told == {
        "request_id": "a-1",
        "outcome": "overloaded",
        "reason": "full",
        "policy": "p",
        "priority": "batch",
        "queued_ms": 0,
        "model_asked": "fast",
    }


def test_what_is_not_known_is_absent() -> None:
    told = answers.metadata_of("a-1", "unknown", "none", "p", None, None, None)
    assert told.keys() == {"request_id", "outcome", "reason", "policy"}


def test_only_some_refusals_are_about_a_field() -> None:
    fields = {refusal: answers.field_of(refusal, "messages") for refusal in Refusal}
    assert {refusal: field for refusal, field in fields.items() if field is not None} == {
        Refusal.MODEL_NOT_FOUND: "model",
        Refusal.CONTEXT_LENGTH_EXCEEDED: "messages",
    }
