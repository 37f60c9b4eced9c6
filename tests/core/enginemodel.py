"""One engine with exact state, an agent and the ways between: what the ledger is measured against.

Time runs in ticks of 1/1024 s, which floats add exactly. The engine serves prompts one after another, first come first
served, and decodes all at once.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from extproc.core.balancer import Balancer
from extproc.core.decision import Chosen
from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import BalancerSettings, ExpectedRates
from extproc.core.snapshot import NodeReported, NodeView
from tests.core.fleet import NOW_S, POLICY, balancer, request, snapshot

TICKS_PER_S = 1024


@dataclass(eq=False)
class Job:
    """A request at the engine, ours or another router's."""

    request_id: str
    tokens: int
    arrived: int
    first_tick: int
    end_tick: int
    is_ours: bool = True


@dataclass
class World:
    """A balancer with one node; `delay` is one way, in ticks."""

    delay: int = 0
    tells_first_tokens: bool = True
    tells_ends: bool = True
    now: int = 0
    boot: int = 1
    sequence: int = 1
    jobs: list[Job] = field(default_factory=list)
    open: dict[str, int] = field(default_factory=dict)
    """Our requests whose end was not told: their tokens."""
    unstarted: dict[str, int] = field(default_factory=dict)
    """Of these, those whose first token was not told."""
    sent_ticks: dict[str, int] = field(default_factory=dict)
    begun_ticks: dict[str, int] = field(default_factory=dict)
    """When the engine made, or will make, the first token of ours that have arrived."""
    first_tokens: int = 0
    free_tick: int = 0
    sent: int = 0
    rate: float = 8000.0
    """What the balancer takes the engine to compute, in tokens a second."""
    fleet: Balancer = field(init=False)
    _events: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _order: int = 0

    def __post_init__(self) -> None:
        settings = BalancerSettings(rates=ExpectedRates(prefill_tokens_per_s=self.rate))
        self.fleet = balancer(snapshot("a", kv_blocks_total=None), settings=settings)

    @property
    def now_s(self) -> float:
        return NOW_S + self.now / TICKS_PER_S

    @property
    def view(self) -> NodeView:
        (view,) = self.fleet.views()
        return view

    def wait(self, ticks: int) -> None:
        """Let time pass, and what falls into it happen in its order."""
        until = self.now + ticks
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def run_dry(self) -> None:
        """Let everything that is on its way arrive, and everything that runs end."""
        while self._events:
            self.wait(self._events[0][0] - self.now)

    def send(self, tokens: int, decode: int, policy: RoutingPolicy = POLICY) -> str:
        """A request of ours; it decodes for so many ticks. One token takes one tick to prefill."""
        self.sent += 1
        request_id = f"r{self.sent}"
        outcome = self.fleet.route(request(request_id, tokens), policy, self.now_s).outcome
        assert isinstance(outcome, Chosen), outcome
        self.open[request_id] = self.unstarted[request_id] = tokens
        self.sent_ticks[request_id] = self.now
        self._after(self.delay, lambda: self._arrive(request_id, tokens, decode, is_ours=True))
        return request_id

    def send_another(self, tokens: int, decode: int) -> None:
        """A request of another router, which is there at once."""
        self.sent += 1
        self._arrive(f"other{self.sent}", tokens, decode, is_ours=False)

    def abort(self, request_id: str) -> None:
        """Its client leaves: the balancer hears it at once, the engine after the way."""
        if request_id in self.open:
            self._told_end(request_id)
            self._after(self.delay, lambda: self._abort(request_id))

    def restart(self) -> None:
        """The engine begins anew; the streams of what it had are reset, which is told where ends are."""
        self.boot += 1
        self.free_tick = self.now
        gone, self.jobs = self.jobs, []
        for job in gone:
            if job.is_ours:
                self._tell_end(job.request_id)

    def there(self) -> list[Job]:
        """What a sample of this moment shows: what arrived before it, and did not end until it."""
        return [job for job in self.jobs if job.arrived < self.now]

    def sample(self, age: int = 0, *, is_lost: bool = False) -> None:
        """The agent looks now; the router hears of it after its age and the way."""
        self.sequence += 1
        jobs = self.there()
        pending = sum(job.first_tick > self.now for job in jobs)
        taken = snapshot(
            "a",
            boot_id=f"boot-{self.boot}",
            sequence=self.sequence,
            sample_age_s=age / TICKS_PER_S,
            round_trip_s=2 * self.delay / TICKS_PER_S,
            kv_blocks_total=None,
            requests_running=len(jobs) - max(0, pending - 1),
            requests_waiting=max(0, pending - 1),
            pending_prefills=pending,
            first_tokens_total=self.first_tokens,
        )
        if not is_lost:
            self._after(age + self.delay, lambda: self._observe(NodeReported(taken)))

    def _observe(self, event: NodeReported) -> None:
        self.fleet.observe(event, self.now_s)

    def _after(self, ticks: int, event: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now + ticks, self._order, event))

    def _arrive(self, request_id: str, tokens: int, decode: int, *, is_ours: bool) -> None:
        if is_ours and request_id not in self.open:
            return  # aborted on its way
        self.free_tick = max(self.free_tick, self.now) + tokens
        job = Job(request_id, tokens, self.now, self.free_tick, self.free_tick + decode, is_ours)
        self.begun_ticks[request_id] = job.first_tick
        self.jobs.append(job)
        self._after(job.first_tick - self.now, lambda: self._begin(job))
        self._after(job.end_tick - self.now, lambda: self._end(job))

    def _begin(self, job: Job) -> None:
        if job in self.jobs:
            self.first_tokens += 1
            if job.is_ours and self.tells_first_tokens:
                self._after(self.delay, lambda: self._told_first_token(job.request_id))

    def _end(self, job: Job) -> None:
        if job in self.jobs:
            self.jobs.remove(job)
            if job.is_ours:
                self._tell_end(job.request_id)

    def _abort(self, request_id: str) -> None:
        self.jobs = [job for job in self.jobs if job.request_id != request_id]

    def _tell_end(self, request_id: str) -> None:
        told = self._told_end if self.tells_ends else self._left
        self._after(self.delay, lambda: told(request_id))

    def _left(self, request_id: str) -> None:
        """Its stream was left, and the word about its end was lost."""
        self.fleet.leave(request_id, self.now_s)

    def _told_first_token(self, request_id: str) -> None:
        if self.unstarted.pop(request_id, None) is not None:
            self.fleet.first_token(request_id, self.now_s)

    def _told_end(self, request_id: str) -> None:
        self.unstarted.pop(request_id, None)
        if self.open.pop(request_id, None) is not None:
            self.fleet.answered(Answered(request_id, Ending.UNTOLD), self.now_s)
