"""Another model than a body names: aliases, and fallbacks where the own model is overloaded."""

import json
from collections import Counter
from typing import Any

import pytest

from extproc.core.balancer import Balancer
from extproc.core.policy import RoutingPolicy, policy_from_mapping
from extproc.core.request import TokenCount
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeReported, ServedModel, Snapshot
from extproc.gateway.conversation import Action, BodyMode, Continue, RequestBody, SetDestination, Wait
from tests.core.fleet import MODEL, NOW_S, balancer, snapshot
from tests.gateway.talk import ACKNOWLEDGE, Talk, admit, chat, destination_of, error_of, headers, told, whole

BODY = (
    b'{"messages": [{"content": "h\\u00e9", "role":"user"}],  "seed": 12345678901234567890, '
    b'"model" : "fast", "top_p": 1e-3}'
)
"""What a reader that is careless about bytes would change."""


def policy(**fields: Any) -> RoutingPolicy:
    made = policy_from_mapping(fields)
    assert isinstance(made, RoutingPolicy), made
    return made


def node(node_id: str, model: str, **changes: Any) -> Snapshot:
    return snapshot(node_id, models=(ServedModel(model, context_length_tokens=8192),), **changes)


def asking(model: str) -> bytes:
    return chat(model=model)


def body_of(action: Action) -> dict[str, Any]:
    """The body that the node gets instead."""
    assert isinstance(action, SetDestination | Continue), action
    assert action.body is not None
    found: dict[str, Any] = json.loads(action.body)
    return found


def test_the_node_gets_the_model_that_an_alias_stands_for_and_not_a_byte_else_is_changed() -> None:
    talk = Talk(balancer(snapshot("a")), policy=policy(aliases={"fast": MODEL}))
    action = talk.say(headers(mode=BodyMode.BUFFERED), whole(BODY))
    assert destination_of(action) == snapshot("a").host
    assert isinstance(action, SetDestination)
    assert action.body is not None
    for field in (b'[{"content": "h\\u00e9", "role":"user"}]', b"12345678901234567890", b"1e-3", b'"llama"'):
        assert field in action.body
    assert body_of(action) == json.loads(BODY) | {"model": MODEL}
    assert list(body_of(action)) == ["messages", "seed", "model", "top_p"]
    assert told(action).items() >= {"model": MODEL, "model_asked": "fast", "outcome": "chosen"}.items()
    (asked,) = talk.asked
    assert (asked.model, asked.body_bytes) == (MODEL, len(BODY)), "counted as the model that serves"
    assert talk.budget.bytes_reserved == 0


@pytest.mark.parametrize("asked", [MODEL, "another"])
def test_a_model_without_an_alias_passes_as_it_came_and_its_bytes_are_not_even_kept(asked: str) -> None:
    aliased = policy(aliases={"fast": MODEL}, fallback_models={"third": MODEL})
    for one in (RoutingPolicy(), aliased):
        talk = Talk(balancer(snapshot("a"), node("b", "another")), policy=one)
        session = talk.session
        session.receive(headers(mode=BodyMode.BUFFERED), NOW_S)
        session.receive(whole(asking(asked)), NOW_S)
        assert session._upload._chunks == []
        assert talk.budget.bytes_reserved == len(asking(asked)), "Envoy still has it"
        talk = Talk(balancer(snapshot("a"), node("b", "another")), policy=one, request_id="r2")
        action = talk.say(headers(mode=BodyMode.BUFFERED), whole(asking(asked)))
        assert isinstance(action, SetDestination)
        assert action.body is None
        assert "model_asked" not in told(action)


@pytest.mark.parametrize("pieces", [1, 2])
def test_in_a_body_that_does_not_come_in_one_message_no_model_is_another(pieces: int) -> None:
    """Its first pieces have gone on to the node, or will."""
    body = asking("fast")
    cut = len(body) if pieces == 1 else 20
    events = [RequestBody(body[:cut], end_of_stream=pieces == 1)] + [whole(body[cut:])] * (pieces - 1)
    fleet = balancer(snapshot("a"), node("full", "fast", requests_waiting=100))
    for one in (policy(aliases={"fast": MODEL}), policy(fallback_models={"fast": MODEL})):
        talk = Talk(fleet, policy=one)
        action = talk.say(headers(), *events)
        assert [one.model for one in talk.asked] == ["fast"]
        assert error_of(action)["code"] == "overloaded"
    unknown = Talk(balancer(snapshot("a")), policy=policy(aliases={"fast": MODEL}))
    assert error_of(unknown.say(headers(), *events))["code"] == "model_not_found"


def test_an_alias_of_several_models_splits_requests_by_their_weights() -> None:
    fleet = balancer(snapshot("a"), node("b", "small"))
    split = policy(aliases={"fast": {MODEL: 3, "small": 1}})
    served: Counter[str] = Counter()
    for number in range(2000):
        talk = Talk(fleet, policy=split, request_id=f"boot-{number}")
        action = talk.say(headers(mode=BodyMode.BUFFERED), whole(asking("fast")))
        served[body_of(action)["model"]] += 1
        assert destination_of(action) == {MODEL: snapshot("a").host, "small": snapshot("b").host}[talk.asked[0].model]
        talk.session.close(NOW_S)
    assert served.total() == 2000
    assert abs(served["small"] - 500) < 5 * (2000 * 0.25 * 0.75) ** 0.5


def test_an_alias_may_stand_for_itself_and_then_passes_as_it_came() -> None:
    fleet = balancer(snapshot("a"), node("b", "small"))
    split = policy(aliases={MODEL: {MODEL: 1, "small": 1}})
    bodies = set()
    for number in range(64):
        action = Talk(fleet, policy=split, request_id=str(number)).say(headers(mode=BodyMode.BUFFERED), whole(chat()))
        assert isinstance(action, SetDestination)
        bodies.add(None if action.body is None else json.loads(action.body)["model"])
        assert ("model_asked" in told(action)) == (action.body is not None)
    assert bodies == {None, "small"}


def test_refusals_speak_of_the_model_that_the_alias_stands_for() -> None:
    talk = Talk(balancer(snapshot("a")), policy=policy(aliases={"fast": "gone"}))
    action = talk.say(headers(mode=BodyMode.BUFFERED), whole(asking("fast")))
    error = error_of(action)
    assert (error["status"], error["param"]) == (404, "model")
    assert "`gone`" in error["message"]
    assert told(action).items() >= {"model": "gone", "model_asked": "fast"}.items()


def test_before_any_node_reports_the_cluster_of_envoy_gets_the_real_model_too() -> None:
    fleet = Balancer(BalancerSettings(), NOW_S - 60)
    talk = Talk(fleet, policy=policy(aliases={"fast": MODEL}))
    action = talk.say(headers(mode=BodyMode.BUFFERED), whole(asking("fast")))
    assert isinstance(action, Continue)
    assert body_of(action)["model"] == MODEL


def test_after_an_error_of_ours_the_fallback_gets_the_real_model_too() -> None:
    talk = Talk(balancer(snapshot("a")), policy=policy(aliases={"fast": MODEL}))
    talk.session.receive(headers(mode=BodyMode.BUFFERED), NOW_S)
    talk.session.receive(whole(asking("fast")), NOW_S)
    action = talk.session.recover(NOW_S)
    assert destination_of(action) == snapshot("a").host
    assert body_of(action)["model"] == MODEL
    assert talk.budget.bytes_reserved == 0


def test_a_request_that_waits_goes_with_the_model_of_its_alias() -> None:
    fleet = balancer(snapshot("a", requests_waiting=100))
    talk = Talk(fleet, policy=policy(aliases={"fast": MODEL}, priority="batch"))
    assert isinstance(talk.say(headers(mode=BodyMode.BUFFERED), whole(BODY)), Wait)
    assert talk.budget.bytes_reserved == len(BODY)
    fleet.observe(NodeReported(snapshot("a", sequence=2)), NOW_S)
    (action,) = admit(fleet, talk).values()
    assert body_of(action) == json.loads(BODY) | {"model": MODEL}
    assert talk.budget.bytes_reserved == 0


def test_where_the_own_model_is_overloaded_its_fallback_serves_if_it_has_room() -> None:
    instead = policy(fallback_models={MODEL: "small"})
    with_room = balancer(snapshot("a", requests_waiting=100), node("b", "small"))
    talk = Talk(with_room, policy=instead, tokens=TokenCount(40, exact=True))
    action = talk.say(headers(mode=BodyMode.BUFFERED), whole(chat()))
    assert destination_of(action) == snapshot("b").host
    assert body_of(action)["model"] == "small"
    assert (
        told(action).items()
        >= {
            "model": "small",
            "model_asked": MODEL,
            "tokens_exact": False,
        }.items()
    )
    assert [one.model for one in talk.asked] == [MODEL]

    nowhere = balancer(snapshot("a", requests_waiting=100), node("b", "small", requests_waiting=100))
    error = error_of(Talk(nowhere, policy=instead).say(headers(mode=BodyMode.BUFFERED), whole(chat())))
    assert (error["status"], error["code"]) == (429, "overloaded")
    assert f"`{MODEL}`" in error["message"], "of the model that was asked for"

    not_needed = balancer(snapshot("a"), node("b", "small"))
    action = Talk(not_needed, policy=instead).say(headers(mode=BodyMode.BUFFERED), whole(chat()))
    assert destination_of(action) == snapshot("a").host
    assert isinstance(action, SetDestination)
    assert action.body is None


def test_a_fallback_is_looked_up_after_the_alias() -> None:
    fleet = balancer(snapshot("a", requests_waiting=100), node("b", "small"))
    talk = Talk(fleet, policy=policy(aliases={"fast": MODEL}, fallback_models={MODEL: "small"}))
    action = talk.say(headers(mode=BodyMode.BUFFERED), whole(asking("fast")))
    assert body_of(action)["model"] == "small"
    assert told(action).items() >= {"model": "small", "model_asked": "fast"}.items()


def test_a_request_that_waits_goes_to_its_fallback_once_that_has_room() -> None:
    fleet = balancer(snapshot("a", requests_waiting=100), node("b", "small", requests_waiting=100))
    talk = Talk(fleet, policy=policy(fallback_models={MODEL: "small"}, priority="batch"))
    assert isinstance(talk.say(headers(mode=BodyMode.BUFFERED), whole(chat())), Wait)
    fleet.observe(NodeReported(node("b", "small", sequence=2)), NOW_S)
    (action,) = admit(fleet, talk).values()
    assert destination_of(action) == snapshot("b").host
    assert body_of(action)["model"] == "small"


def test_a_body_that_cannot_be_written_anew_is_400_and_leaves_nothing_at_the_node() -> None:
    fleet = balancer(snapshot("a"))
    fields = b",".join(b'"%d":0' % number for number in range(1001))
    body = b'{"model": "fast", "messages": [], %b}' % fields
    talk = Talk(fleet, policy=policy(aliases={"fast": MODEL}), body_items_max=1000)
    error = error_of(talk.say(headers(mode=BodyMode.BUFFERED), whole(body)))
    assert (error["status"], error["code"]) == (400, "invalid_request")
    assert talk.budget.bytes_reserved == 0
    talk.session.close(NOW_S)
    assert fleet.requests_open == 0
    unaliased = Talk(fleet, body_items_max=1000, request_id="r2")
    passes = unaliased.say(headers(mode=BodyMode.BUFFERED), whole(body.replace(b"fast", MODEL.encode())))
    assert destination_of(passes), "only where it has to be written anew"


def test_a_model_of_the_clients_that_is_no_text_is_still_refused_as_before() -> None:
    talk = Talk(balancer(snapshot("a")), policy=policy(aliases={"fast": MODEL}))
    assert talk.say(headers(mode=BodyMode.BUFFERED)) == ACKNOWLEDGE
    error = error_of(talk.say(whole(b'{"model": ["fast"], "messages": []}')))
    assert (error["status"], error["param"]) == (400, "model")


def test_a_body_that_becomes_too_long_with_the_other_model_is_413() -> None:
    long = "m" * 200
    fleet = balancer(node("a", long))
    body = chat("x" * 1500, model="fast")
    talk = Talk(fleet, policy=policy(aliases={"fast": long}), body_bytes_max=len(body) + 100)
    assert talk.say(headers(content_length=len(body), mode=BodyMode.BUFFERED)) == ACKNOWLEDGE
    assert error_of(talk.say(whole(body)))["code"] == "request_too_large"
