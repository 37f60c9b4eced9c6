"""What a session does where the policy or Envoy only observes."""

from typing import Any

import pytest

from extproc.core.balancer import Balancer
from extproc.core.policy import RoutingPolicy
from extproc.core.snapshot import ServedModel
from extproc.gateway.conversation import (
    Action,
    BodyMode,
    Continue,
    RequestBody,
    RequestTrailers,
    ResponseHeaders,
)
from tests.core.fleet import MODEL, NOW_S, balancer, snapshot
from tests.gateway.talk import ACKNOWLEDGE, Talk, chat, full, headers, told, whole

NAMED = {"x-model": MODEL}
OBSERVE = RoutingPolicy(mode="observe")


def fleet() -> Balancer:
    return balancer(snapshot("a"), snapshot("b", models=(ServedModel("other"),)))


OBSERVED: list[dict[str, Any]] = [{"policy": OBSERVE}, {}]


def observed(talk: Talk, **changes: Any) -> list[Action]:
    """The answers to head and body of a request that is only observed, by the policy or by Envoy."""
    by_envoy = talk.session._policy.mode != "observe"
    mode = BodyMode.STREAMED if by_envoy else BodyMode.BUFFERED
    body = changes.pop("body", chat())
    return [talk.say(headers(mode=mode, observed=by_envoy, **changes)), talk.say(whole(body))]


@pytest.mark.parametrize("how", OBSERVED)
def test_what_is_only_observed_is_decided_and_kept_and_nothing_is_done(how: dict[str, Any]) -> None:
    nodes = fleet()
    talk = Talk(nodes, **how)
    _, action = observed(talk)
    assert isinstance(action, Continue)
    assert (action.body, told(action)["node"], told(action)["arm"]) == (None, "a", "observed")
    assert nodes.requests_open == 0
    assert [one.arm for one in nodes.decisions(5)] == ["observed"]
    assert talk.session.decision is not None
    talk.say(ResponseHeaders(500, "10.9.9.9:80"))
    assert nodes.out_until_s == {}
    talk.session.close(NOW_S)


@pytest.mark.parametrize("how", OBSERVED)
@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"body": b"no json"}, "invalid_request"),
        ({"body": chat(model="nobody's")}, "model_not_found"),
        ({"content_length": 10_001}, "request_too_large"),
        ({"body": b"x" * 10_001}, "request_too_large"),
    ],
)
def test_what_is_only_observed_is_never_refused(how: dict[str, Any], changes: dict[str, Any], outcome: str) -> None:
    talk = Talk(fleet(), **how)
    actions = observed(talk, **changes)
    said = [one for one in actions if isinstance(one, Continue)]
    assert [told(one)["outcome"] for one in said] == [outcome]
    assert [one for one in actions if one not in said] == [ACKNOWLEDGE]
    assert talk.budget.bytes_reserved == 0


def test_what_a_policy_only_observes_is_decided_for_the_model_that_its_alias_stands_for() -> None:
    policy = RoutingPolicy(mode="observe", aliases={"fast": {MODEL: 1}})
    _, action = observed(Talk(fleet(), policy=policy), body=chat(model="fast"))
    assert isinstance(action, Continue)
    assert (told(action)["model"], told(action)["model_asked"], action.body) == (MODEL, "fast", None)


@pytest.mark.parametrize("how", OBSERVED)
def test_what_is_only_observed_never_waits(how: dict[str, Any]) -> None:
    policy = how.get("policy", RoutingPolicy()).model_copy(update={"priority": "batch"})
    _, action = observed(Talk(full(), policy=policy))
    assert isinstance(action, Continue)
    assert told(action)["outcome"] == "overloaded"


@pytest.mark.parametrize("how", OBSERVED)
def test_what_is_no_inference_takes_no_turn_where_it_is_only_observed(how: dict[str, Any]) -> None:
    nodes = fleet()
    talk = Talk(nodes, **how)
    by_envoy = "policy" not in how
    action = talk.say(headers("/upload", observed=by_envoy))
    assert isinstance(action, Continue)
    assert told(action)["outcome"] == "uninspected"
    assert talk.session.decision is None


@pytest.mark.parametrize("how", OBSERVED)
def test_trailers_end_a_body_that_is_only_observed(how: dict[str, Any]) -> None:
    nodes = fleet()
    talk = Talk(nodes, **how)
    talk.say(headers(mode=BodyMode.STREAMED, observed=True), RequestBody(chat(), end_of_stream=False))
    action = talk.say(RequestTrailers())
    assert told(action)["node"] == "a"
    assert [one.arm for one in nodes.decisions(5)] == ["observed"]


def test_where_envoy_observes_and_shows_no_body_the_head_is_decided_about() -> None:
    nodes = fleet()
    action = Talk(nodes).say(headers(mode=BodyMode.NONE, named=NAMED, observed=True))
    assert told(action)["node"] == "a"
