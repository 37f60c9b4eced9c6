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
    CountTokens,
    Event,
    RequestBody,
    RequestHeaders,
    Respond,
    SetDestination,
    TokensCounted,
)
from extproc.gateway.session import Session
from extproc.prompt import CountedPrompt
from tests.core.fleet import MODEL, NOW_S

CHAT_PATH = "/v1/chat/completions"
POLICY = RoutingPolicy()
ACKNOWLEDGE = Acknowledge()


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
    ) -> None:
        self.budget = budget or BodyBudget(100_000)
        limits = ServeLimits(
            body_bytes_max=body_bytes_max, body_items_max=body_items_max, body_claim_bytes_min=body_claim_bytes_min
        )
        self.session = Session(balancer, policy, policy_fault, self.budget, limits, request_id)
        self.tokens = tokens
        self.asked: list[CountTokens] = []

    def say(self, *events: Event) -> Action:
        """The answer to the last of these."""
        for event in events:
            action = self.session.receive(event, NOW_S)
            if isinstance(action, CountTokens):
                self.asked.append(action)
                action = self.session.receive(TokensCounted(CountedPrompt(self.tokens)), NOW_S)
        return action


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
