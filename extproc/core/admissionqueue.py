"""Requests that cannot go now and may wait: who is next, for how long, and how many there may be."""

from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from extproc.core.admissionsettings import PriorityClass
from extproc.core.fairqueue import FairQueue, Shares
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest


class Lane(NamedTuple):
    """Requests that the same nodes can serve, and that have the same rank."""

    rank: int
    """Of their class, 0 is the highest."""
    nodes: frozenset[str]
    """Which nodes these are: they serve the model, and hold prompt and answer."""
    spare: frozenset[str] = frozenset()
    """The same of the model that serves instead where the policy names one."""


class Waiting(Struct, frozen=True):
    """A request that waits."""

    request: InferenceRequest
    policy: RoutingPolicy
    lane: Lane
    tokens: int
    """What it costs its tenant: its prompt's and those of the expected answer."""
    since_s: float
    until_s: float


class AdmissionQueue:
    """One queue of all classes, bounded in requests and bytes by each.

    Served by class, then fairly between tenants, then first come (`FairQueue`). Requests that other nodes can serve
    have a lane of their own, and a tenant's share is one over all of them; `Turns` says when they overtake.

    State: the lanes, when each request's time is up, and what each class holds.
    """

    def __init__(self, classes: Mapping[str, PriorityClass]) -> None:
        self._names = tuple(classes)
        self._classes = tuple(classes.values())
        self._lanes: dict[Lane, FairQueue[Waiting]] = {}
        self._waiting: dict[str, Waiting] = {}
        self._deadlines: list[tuple[float, str]] = []
        """Those of requests that wait, and a few that do not any more."""
        self._shares = [Shares() for _ in self._classes]
        """Of tenants, over all lanes of a class."""
        self._requests = [0] * len(self._classes)
        self._bytes = [0] * len(self._classes)

    def __len__(self) -> int:
        return len(self._waiting)

    def why_not(self, rank: int, body_bytes: int) -> str | None:
        """Why a request of this class may not wait now; `None` if it may."""
        one = self._classes[rank]
        if not one.queue_ms_max:
            return f"requests of class {self._names[rank]} do not wait"
        if self._requests[rank] >= one.queue_requests_max:
            return f"{one.queue_requests_max} requests of class {self._names[rank]} wait already"
        if self._bytes[rank] + body_bytes > one.queue_bytes_max:
            return f"those of class {self._names[rank]} that wait have {self._bytes[rank]} bytes already"
        return None

    def offer(self, waiting: Waiting) -> None:
        """It waits from now on; `why_not` had no reason against it, and its id is new."""
        request, rank = waiting.request, waiting.lane.rank
        assert request.request_id not in self._waiting, "request ids are ours and unique"
        self._waiting[request.request_id] = waiting
        self._requests[rank] += 1
        self._bytes[rank] += request.body_bytes
        self._line_up(waiting)
        heappush(self._deadlines, (waiting.until_s, request.request_id))

    def get(self, request_id: str) -> Waiting | None:
        """One that waits."""
        return self._waiting.get(request_id)

    def overtakes(self, request_id: str) -> bool:
        """Whether one that has come now stands before others of its class: its tenant has had less than theirs."""
        waiting = self._waiting.get(request_id)
        if waiting is None or self.head(waiting.lane) is not waiting:
            return False
        rank, turn = waiting.lane.rank, self.turn(waiting.lane)
        others = (lane for lane in self._lanes if lane.rank == rank and lane != waiting.lane)
        return len(self._lanes[waiting.lane]) > 1 or any(self.turn(lane) > turn for lane in others)

    def recount(self, request: InferenceRequest) -> None:
        """One that waits turned out to have other tokens. It keeps its place, and its price."""
        before = self._waiting[request.request_id]
        counted = replace(before.request, prompt=request.prompt)  # what its class and tenant hold stays the same
        waiting = self._waiting[request.request_id] = replace(before, request=counted)
        self._lanes[before.lane].replace(counted.tenant, counted.request_id, waiting)

    def line_up_anew(self, lane_of: Callable[[Waiting], Lane]) -> None:
        """Other nodes can serve some of them now: all go into the lanes of these, in the order in which they came.

        So who had less than its share, or more by one request at most, begins anew too.
        """
        lanes = {request_id: lane_of(one) for request_id, one in self._waiting.items()}
        if any(one.lane != lanes[request_id] for request_id, one in self._waiting.items()):
            self._lanes.clear()
            self._shares = [Shares() for _ in self._classes]
            for request_id, lane in lanes.items():
                waiting = self._waiting[request_id] = replace(self._waiting[request_id], lane=lane)
                self._line_up(waiting)

    def head(self, lane: Lane) -> Waiting | None:
        """Who is next in the lane."""
        queue = self._lanes.get(lane)
        return None if queue is None else queue.head()

    def turn(self, lane: Lane) -> tuple[float, int]:
        """Of the next one in a lane where somebody waits: among those of one class the least comes first."""
        return self._lanes[lane].turn

    def pop(self, lane: Lane) -> Waiting:
        """The same, who goes now."""
        waiting = self._lanes[lane].pop()
        self._gone(waiting)
        return waiting

    def remove(self, request_id: str) -> Waiting | None:
        """It waits no longer, wherever it stands; `None` if it did not."""
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            self._lanes[waiting.lane].remove(waiting.request.tenant, request_id)
            self._gone(waiting)
        return waiting

    def expired(self, now_s: float) -> Iterator[Waiting]:
        """Those whose time is up; they wait no longer."""
        while (until_s := self.next_deadline_s) is not None and until_s <= now_s:
            waiting = self.remove(self._deadlines[0][1])
            assert waiting is not None, "the first deadline is of one that waits"
            yield waiting

    @property
    def next_deadline_s(self) -> float | None:
        """When the next one's time is up; `None`: nobody waits."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] not in self._waiting:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def lanes(self, rank_max: int | None = None) -> list[Lane]:
        """The lanes in which somebody waits, of this rank or higher; in no order."""
        return [lane for lane in self._lanes if rank_max is None or lane.rank <= rank_max]

    def tokens_waiting(self, rank_max: int, nodes: frozenset[str]) -> float:
        """Tokens of those that wait for some of these nodes, of this rank or higher."""
        return sum(self._lanes[lane].tokens for lane in self.lanes(rank_max) if not lane.nodes.isdisjoint(nodes))

    def clear(self) -> Iterator[Waiting]:
        """All; they wait no longer."""
        for request_id in list(self._waiting):
            waiting = self.remove(request_id)
            assert waiting is not None, "it was there a moment ago"
            yield waiting

    def depths(self) -> dict[str, tuple[int, int]]:
        """How many wait of each class, and with how many bytes."""
        return dict(zip(self._names, zip(self._requests, self._bytes, strict=True), strict=True))

    def _line_up(self, waiting: Waiting) -> None:
        lane = self._lanes.get(waiting.lane)
        if lane is None:
            lane = self._lanes[waiting.lane] = FairQueue(self._shares[waiting.lane.rank])
        lane.push(waiting.request.tenant, waiting.request.request_id, waiting, waiting.tokens)

    def _gone(self, waiting: Waiting) -> None:
        rank = waiting.lane.rank
        del self._waiting[waiting.request.request_id]
        self._requests[rank] -= 1
        self._bytes[rank] -= waiting.request.body_bytes
        if not self._lanes[waiting.lane]:
            del self._lanes[waiting.lane]
        if len(self._deadlines) > 2 * len(self._waiting) + 64:
            self._deadlines = [(one.until_s, request_id) for request_id, one in self._waiting.items()]
            heapify(self._deadlines)
