"""What comes first where not all can go.

A request goes when the router finds a node with room for it. Else it waits, if its class may, or is refused. Those who
wait claim the nodes that could serve them: who comes behind them, by class and by turn, takes other nodes only. So
nobody of a lower class takes room for which one of a higher class waits, and a long prompt is not starved by short
ones; but models that live on different nodes do not hold up each other.
"""

from collections.abc import Collection
from heapq import heapify, heappop, heappush
from itertools import count
from math import fsum

from extproc.core.admissionqueue import AdmissionQueue, Lane, Waiting
from extproc.core.decision import Queued, Refusal, Refused
from extproc.core.filters import context_length_tokens, serving, tokens_at_least
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.router import ALONE, Standing
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeView

WAITABLE = (Refusal.OVERLOADED, Refusal.NO_READY_NODE)
"""What may be otherwise in a while."""


class Admission:
    """The classes, who waits of each, and where that leaves those who come."""

    def __init__(self, settings: BalancerSettings) -> None:
        classes = settings.classes
        self._names = tuple(classes)
        self._ranks = {name: rank for rank, name in enumerate(classes)}
        self._default_rank = self._ranks[settings.default_class]
        self._queue_s_max = [one.queue_ms_max / 1000 for one in classes.values()]
        reserved = [one.reserved_share for one in classes.values()]
        self._shares = [1.0 - fsum(reserved[:rank]) for rank in range(len(reserved))]
        """Of each node's room, what is left for each class by those above it."""
        self.queue = AdmissionQueue(classes)
        self._places = count()

    def rank(self, request: InferenceRequest) -> int:
        """Its class's place, 0 is the highest."""
        return self._ranks.get(request.priority, self._default_rank)

    def name(self, request: InferenceRequest) -> str:
        """Its class."""
        return self._names[self.rank(request)]

    def standing(self, request: InferenceRequest, nodes: Collection[NodeView]) -> Standing:
        """Where a request stands that comes now."""
        rank = self.rank(request)
        share = self._shares[rank]
        if not self.queue:
            return ALONE if share == 1 else Standing(share)
        claimed = set[str]()
        for lane in self.queue.lanes(rank):
            claimed |= claims(lane, nodes)
            if len(claimed) == len(nodes):
                break  # there may be hundreds of lanes, of adapters or of names that nobody knows
        return Standing(share, claimed, self.queue.tokens_waiting(rank))

    def would_wait(self, request: InferenceRequest, refused: Refused, now_s: float) -> Queued | Refused:
        """What a request is told that cannot go now."""
        rank = self.rank(request)
        if refused.refusal not in WAITABLE or self.queue.why_not(rank, request.body_bytes) is not None:
            return refused
        return Queued(refused.message, now_s + self._queue_s_max[rank])

    def wait(
        self,
        request: InferenceRequest,
        policy: RoutingPolicy,
        nodes: Collection[NodeView],
        tokens: int,
        until_s: float,
        now_s: float,
    ) -> None:
        """It waits from now on, as `would_wait` said; it costs its tenant so many tokens, at least 1."""
        lane = _lane(request, self.rank(request), nodes)
        self.queue.offer(Waiting(request, policy, lane, tokens, now_s, until_s, next(self._places)))

    def turns(self) -> "Turns":
        """Those who wait, in the order in which they may go now."""
        return Turns(self.queue, self._shares)


class Turns:
    """One round over those who wait: by class, in it whose turn is longest ago, and each lane until it is held up."""

    def __init__(self, queue: AdmissionQueue, shares: list[float]) -> None:
        self._queue = queue
        self._shares = shares
        self._claimed: set[str] = set()
        self._lanes = [self._entry(lane) for lane in queue.lanes()]
        heapify(self._lanes)

    def next(self) -> Waiting | None:
        """Whose turn it is; `None`: nobody's. `goes` or `held_up` must follow."""
        return self._head(self._lanes[0][2]) if self._lanes else None

    def standing(self) -> Standing:
        """Where that request stands."""
        return self.standing_of(self._lanes[0][2])

    def standing_of(self, lane: Lane) -> Standing:
        """Where the requests of a lane stand, after those whose turn it was."""
        return Standing(self._shares[lane.rank], self._claimed, self._queue.tokens_waiting(lane.rank))

    def goes(self) -> None:
        """It has room: it waits no longer."""
        _, _, lane = heappop(self._lanes)
        self._queue.pop(lane)
        if self._queue.head(lane) is not None:
            heappush(self._lanes, self._entry(lane))

    def held_up(self, nodes: Collection[NodeView]) -> None:
        """It has none, so nobody behind it gets what it waits for."""
        _, _, lane = heappop(self._lanes)
        self._claimed |= claims(lane, nodes)

    def _head(self, lane: Lane) -> Waiting:
        head = self._queue.head(lane)
        assert head is not None, "lanes are not empty"
        return head

    def _entry(self, lane: Lane) -> tuple[int, int, Lane]:
        return lane.rank, self._head(lane).place, lane


def claims(lane: Lane, nodes: Collection[NodeView]) -> set[str]:
    """The nodes that can serve those of a lane."""
    claimed = set()
    for node in serving(nodes, lane.model):
        length_tokens = context_length_tokens(node, lane.model)
        if length_tokens is None or length_tokens >= lane.context_tokens:
            claimed.add(node.snapshot.node_id)
    return claimed


def _lane(request: InferenceRequest, rank: int, nodes: Collection[NodeView]) -> Lane:
    wanted_tokens = tokens_at_least(request)
    lengths_tokens = [context_length_tokens(node, request.model) for node in serving(nodes, request.model)]
    known_tokens = [length for length in lengths_tokens if length is not None]
    too_many_tokens = max(known_tokens, default=-1) + 1  # where it is too long for all that tell their length
    enough = [length for length in known_tokens if length >= wanted_tokens]
    return Lane(rank, request.model, min(enough, default=too_many_tokens))
