"""One conversation in a line, for tests of the session and the server."""

import json
from typing import Any

from extproc.config import ServeLimits
from extproc.core.balancer import Balancer
from extproc.core.policy import RoutingPolicy
from extproc.core.request import TokenCount
from extproc.gateway.budget import BodyBudget
from extproc.gateway.conversation import (
    Acknowledge,
    Action,
    Admitted,
    BodyMode,
    Continue,
    CountTokens,
    Event,
    Metadata,
    RequestBody,
    RequestHeaders,
    Respond,
    SetDestination,
    TokensCounted,
    Wait,
)
from extproc.gateway.session import Session
from extproc.prompt import CountedPrompt
from tests.core.fleet import MODEL, NOW_S, balancer, snapshot

CHAT_PATH = "/v1/chat/completions"
POLICY = RoutingPolicy()
ACKNOWLEDGE = Acknowledge()
WAITS_S = 30.0
"""How long the class `batch` may wait."""


def chat(content: str = "hello", **fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}]} | fields).encode()


def headers(path: str = CHAT_PATH, **changes: Any) -> RequestHeaders:
    return RequestHeaders("POST", path, **changes)


def whole(data: bytes) -> RequestBody:
    return RequestBody(data, end_of_stream=True)


class Talk:
    """A session, the tokens it is told, and what it answered."""

    def __init__(
        self,
        balancer: Balancer,
        *,
        budget: BodyBudget | None = None,
        body_bytes_max: int = 10_000,
        body_items_max: int = 1000,
        body_claim_bytes_min: int = 0,
        policy: RoutingPolicy = POLICY,
        policy_fault: str | None = None,
        tokens: TokenCount = TokenCount(10, exact=True),  # noqa: B008
        request_id: str = "r1",
        strict: bool = False,
    ) -> None:
        self.budget = budget or BodyBudget(100_000)
        limits = ServeLimits(
            body_bytes_max=body_bytes_max, body_items_max=body_items_max, body_claim_bytes_min=body_claim_bytes_min
        )
        self.session = Session(balancer, policy, policy_fault, self.budget, limits, request_id, strict=strict)
        self.tokens = tokens
        self.asked: list[CountTokens] = []

    def say(self, *events: Event, now_s: float = NOW_S) -> Action:
        """The answer to the last of these."""
        for event in events:
            action = self.session.receive(event, now_s)
            if isinstance(action, CountTokens):
                self.asked.append(action)
                action = self.session.receive(TokensCounted(CountedPrompt(self.tokens)), now_s)
        return action


def full(**changes: Any) -> Balancer:
    """A fleet of one node, which has no room."""
    return balancer(snapshot("a", requests_waiting=100), **changes)


def waiting(fleet: Balancer, request_id: str = "r1", body: bytes = chat(), **changes: Any) -> Talk:
    """A conversation that has come to its wait."""
    changes.setdefault("policy", RoutingPolicy(priority="batch"))
    talk = Talk(fleet, request_id=request_id, **changes)
    assert talk.say(headers(content_length=len(body), mode=BodyMode.BUFFERED)) == ACKNOWLEDGE
    told = talk.say(whole(body))
    assert isinstance(told, Wait)
    assert (told.since_s, told.until_s) == (NOW_S, NOW_S + WAITS_S)
    assert not talk.session.decided
    assert talk.session.decision is None
    return talk


def admit(fleet: Balancer, *talks: Talk, now_s: float = NOW_S) -> dict[str, Action]:
    """Look once who of these may go; what is told about them, in the order in which they went."""
    sessions = {one.session.request_id: one.session for one in talks}
    decisions = fleet.admit(now_s)
    return {one.request_id: sessions[one.request_id].receive(Admitted(one), now_s) for one in decisions}


def error_of(action: Action) -> dict[str, Any]:
    assert isinstance(action, Respond), action
    error = json.loads(action.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == action.code == action.metadata["outcome"]
    assert ("content-type", "application/json") in action.headers
    return {"status": action.status, **error}


def told(action: Action) -> Metadata:
    """What access logs see."""
    assert isinstance(action, SetDestination | Continue | Respond), action
    return action.metadata


def destination_of(action: Action) -> str:
    assert isinstance(action, SetDestination), action
    return action.hosts[0]
