"""What comes first where not all can go.

A request goes when the router finds a node with room for it. Else it waits, if its class may, or is refused. Those who
wait claim the nodes that could serve them: who comes behind them, by class and by turn, takes other nodes only. So
nobody of a lower class takes room for which one of a higher class waits, and a long prompt is not starved by short
ones; but models that live on different nodes do not hold up each other.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace
from math import fsum

from msgspec.structs import replace

from extproc.core.ablenodes import AbleNodes
from extproc.core.admissionqueue import AdmissionQueue, Lane, Waiting
from extproc.core.decision import Queued, Refusal, Refused
from extproc.core.filters import tokens_at_least
from extproc.core.policy import RoutingPolicy
from extproc.core.request import NOWHERE, InferenceRequest
from extproc.core.router import ALONE, Standing
from extproc.core.settings import BalancerSettings

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
        self._able = AbleNodes()

    def rank(self, request: InferenceRequest) -> int:
        """Its class's place, 0 is the highest."""
        return self._ranks.get(request.priority, self._default_rank)

    def name(self, request: InferenceRequest) -> str:
        """Its class."""
        return self._names[self.rank(request)]

    def standing(self, request: InferenceRequest) -> Standing:
        """Where a request stands that comes now."""
        rank = self.rank(request)
        share = self._shares[rank]
        if not self.queue:
            return ALONE if share == 1 else Standing(share)
        claimed = frozenset[str]().union(*(lane.nodes for lane in self.queue.lanes(rank)))
        mine = self._able.to_serve(request.model, tokens_at_least(request), request.subset)
        return Standing(share, claimed, self.queue.tokens_waiting(rank, mine))

    def would_wait(self, request: InferenceRequest, refused: Refused, now_s: float) -> Queued | Refused:
        """What a request is told that cannot go now."""
        rank = self.rank(request)
        if refused.refusal not in WAITABLE or not self._queue_s_max[rank] or request.subset == NOWHERE:
            return refused
        why_not = self.queue.why_not(rank, request.body_bytes)
        if why_not is not None:
            return replace(refused, message=f"{refused.message} It cannot wait: {why_not}.")
        return Queued(refused.message, now_s + self._queue_s_max[rank])

    def wait(
        self,
        request: InferenceRequest,
        policy: RoutingPolicy,
        tokens: int,
        until_s: float,
        now_s: float,
    ) -> None:
        """It waits from now on, as `would_wait` said; it costs its tenant so many tokens, at least 1."""
        lane = self._lane_of(request, policy)
        self.queue.offer(Waiting(request, policy, lane, tokens, now_s, until_s))

    def recount(self, request: InferenceRequest) -> None:
        """One that waits turned out to have other tokens, which may be too many for some nodes."""
        self.queue.recount(request)
        waiting = self.queue.get(request.request_id)
        assert waiting is not None, "it waits"
        if waiting.lane != self._lane_of(request, waiting.policy):
            self._line_up_anew()

    def serves(self, node_id: str, host: str, models: Mapping[str, int | None] | None) -> None:
        """What a member serves now, and where, with context lengths; `None`: that is not known."""
        if self._able.serves(node_id, host, models):
            self._line_up_anew()

    def forget(self, node_id: str) -> None:
        """The node is a member no more."""
        if self._able.forget(node_id):
            self._line_up_anew()

    def turns(self) -> "Turns":
        """Those who wait, in the order in which they may go now."""
        return Turns(self.queue, self._shares)

    def _line_up_anew(self) -> None:
        if self.queue:
            self.queue.line_up_anew(lambda one: self._lane_of(one.request, one.policy))

    def _lane_of(self, request: InferenceRequest, policy: RoutingPolicy) -> Lane:
        subset = request.subset
        nodes = self._able.to_serve(request.model, tokens_at_least(request), subset)
        fallback = None if request.model_fixed else policy.fallback_models.get(request.model)
        if fallback is None:
            return Lane(self.rank(request), nodes)
        return Lane(self.rank(request), nodes, self._able.to_serve(fallback, request.output_tokens_max or 0, subset))


class Turns:
    """One round over those who wait: by class, in it whose tenant had least, and each lane until it is held up."""

    def __init__(self, queue: AdmissionQueue, shares: list[float]) -> None:
        self._queue = queue
        self._shares = shares
        self._claimed: set[str] = set()
        self._lanes = [self._entry(lane) for lane in queue.lanes()]
        heapify(self._lanes)

    def next(self) -> Waiting | None:
        """Whose turn it is; `None`: nobody's. `goes` or `held_up` must follow."""
        while self._lanes:
            lane = self._lanes[0][3]
            if lane.nodes and self._claimed.issuperset(lane.nodes | lane.spare):
                heappop(self._lanes)  # those before it wait for all that it could have
                continue
            entry = self._entry(lane)
            if entry == self._lanes[0]:
                return self._head(lane)
            heapreplace(self._lanes, entry)  # its tenant has had something in another lane meanwhile
        return None

    def standing(self) -> Standing:
        """Where that request stands."""
        return self.standing_of(self._lanes[0][3])

    def standing_of(self, lane: Lane) -> Standing:
        """Where the requests of a lane stand, after those whose turn it was."""
        tokens = self._queue.tokens_waiting(lane.rank, lane.nodes)
        return Standing(self._shares[lane.rank], self._claimed, tokens)

    def goes(self) -> None:
        """It has room: it waits no longer."""
        *_, lane = heappop(self._lanes)
        self._queue.pop(lane)
        if self._queue.head(lane) is not None:
            heappush(self._lanes, self._entry(lane))

    def held_up(self) -> None:
        """It has none, so nobody behind it gets what it waits for."""
        *_, lane = heappop(self._lanes)
        self._claimed |= lane.nodes

    def _head(self, lane: Lane) -> Waiting:
        head = self._queue.head(lane)
        assert head is not None, "lanes are not empty"
        return head

    def _entry(self, lane: Lane) -> tuple[int, float, int, Lane]:
        return lane.rank, *self._queue.turn(lane), lane
