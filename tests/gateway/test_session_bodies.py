"""What a session makes of bodies: their pieces, their limits, and the memory set aside for them."""

import pytest

from extproc.gateway.budget import BodyBudget
from extproc.gateway.conversation import (
    BodyMode,
    RequestBody,
    RequestTrailers,
    Respond,
)
from extproc.gateway.openai import items_of
from tests.core.fleet import NOW_S, balancer, snapshot
from tests.gateway.talk import ACKNOWLEDGE, Talk, chat, destination_of, error_of, headers, whole


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
    fits.session.close(NOW_S)
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
    idle.session.close(NOW_S)
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
    talk.say(headers(mode=BodyMode.BUFFERED))
    assert destination_of(talk.say(RequestBody(chat(), end_of_stream=False)))
    assert talk.say(RequestTrailers()) == ACKNOWLEDGE


def test_trailers_before_the_body_is_whole_end_the_wait_for_it() -> None:
    talk = Talk(balancer(snapshot("a")))
    talk.say(headers(content_length=500), RequestBody(b"{", end_of_stream=False))
    assert talk.say(RequestTrailers()) == ACKNOWLEDGE
    assert talk.session.decided
    assert talk.budget.bytes_reserved == 0
