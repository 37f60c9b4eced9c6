"""A balancer before which a crowd waits, for tests of admission: each call in one line."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from extproc.core.admissionsettings import PriorityClass
from extproc.core.balancer import Balancer
from extproc.core.decision import Chosen, Decision, Outcome, Queued, Refused
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeLeft, NodeReported, ServedModel
from tests.core.fleet import MODEL, NOW_S, POLICY, request, snapshot

CLASSES = {
    "high": PriorityClass(queue_ms_max=10_000),
    "mid": PriorityClass(queue_ms_max=20_000),
    "low": PriorityClass(queue_ms_max=30_000),
    "never": PriorityClass(),
}
QUEUE_FULL = 100
"""The default `requests_waiting_max`."""


def models(*names: str, length_tokens: int | None = 8192) -> tuple[ServedModel, ...]:
    return tuple(ServedModel(name, context_length_tokens=length_tokens) for name in names or (MODEL,))


class Crowd:
    """A balancer of which `rooms` counts how often it said that there may be room."""

    def __init__(self, classes: dict[str, PriorityClass] | None = None, **settings: Any) -> None:
        made = BalancerSettings(classes=classes or CLASSES, default_class="low", **settings)
        self.balancer = Balancer(made, NOW_S - 60)
        self.balancer.on_room = self._room
        self.now_s = NOW_S
        self.rooms = 0
        self._sequence = count(1)

    def node(self, node_id: str, places: int, **changes: Any) -> None:
        """The node reports now; so many more requests, under 100, make it full until it reports again."""
        number = next(self._sequence)
        changes.setdefault("requests_waiting", QUEUE_FULL - places)
        # No report says what the one before said: each takes over what was sent before.
        told = snapshot(node_id, sequence=number, first_tokens_total=number, **changes)
        self.balancer.observe(NodeReported(told), self.now_s)

    def leaves(self, node_id: str) -> None:
        self.balancer.observe(NodeLeft(node_id, "boot-1"), self.now_s)

    def comes(
        self, request_id: str, priority: str = "low", policy: RoutingPolicy = POLICY, tokens: int = 100, **changes: Any
    ) -> Outcome:
        asked = request(request_id, tokens, priority=priority, **changes)
        return self.balancer.route(asked, policy, self.now_s).outcome

    def waits(self, *request_ids: str, **changes: Any) -> None:
        """They come, and must wait."""
        for request_id in request_ids:
            outcome = self.comes(request_id, **changes)
            assert isinstance(outcome, Queued), outcome

    def admitted(self) -> list[str]:
        """Who goes now, and whereto: "r1 to a", or "r1: " and why not."""
        return [shown(decision) for decision in self.balancer.admit(self.now_s)]

    def places(self) -> dict[str, tuple[int, int]]:
        return {name: held for name, held in self.balancer.waiting.items() if held[0]}

    def nothing_is_left(self) -> bool:
        queue = self.balancer._admission.queue
        return not (len(queue) or self.places() or queue._lanes or queue.next_deadline_s or queue._deadlines)

    def _room(self) -> None:
        self.rooms += 1


def shown(decision: Decision) -> str:
    match decision.outcome:
        case Chosen(node_id=node_id):
            return f"{decision.request_id} to {node_id}"
        case Refused(refusal=refusal):
            return f"{decision.request_id}: {refusal.value}"
        case other:
            return f"{decision.request_id}: {type(other).__name__.lower()}"


def order(shown_ones: Sequence[str]) -> list[str]:
    """Who went, without where."""
    return [one.split(" to ")[0] for one in shown_ones]
