"""One node of a simulation: an engine, what its plan does to it, and what an agent would see of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from extproc.core.snapshot import NodeState
from extproc.sim.engine import Engine, EngineSettings
from extproc.sim.events import Event, FirstToken, Request
from extproc.sim.fleetplan import FailureKind, PlannedNode
from extproc.sim.kv import BLOCK_SIZE_TOKENS
from extproc.sim.nodeclock import NodeClock
from extproc.sim.steptime import StepCost
from extproc.sim.traces import BLOCK_TOKENS, Arrival


class Node:
    """An engine in the simulation's time. Its calls may not go backwards in time."""

    def __init__(self, planned: PlannedNode, place: int, cost: StepCost) -> None:
        self.planned = planned
        self.name = planned.name
        self.place = place
        """In the fleet, from 0."""
        self.host = f"10.{place >> 16}.{place >> 8 & 255}.{place & 255}:8000"
        self.engine = Engine(in_arrivals_blocks(planned.engine, cost), tell_tokens=False)
        self.clock = NodeClock(planned.faults)
        self.first_tokens = 0
        self.first_token_waits_s = 0.0
        """Σ over the requests that got their first token of the time since they came, by the simulation's clock: the
        engine's own does not see that it hangs."""
        self._arrived_s: dict[str, float] = {}
        self._own_s = float("-inf")

    def state(self, now_s: float) -> NodeState:
        """What its agent says of it."""
        leaves_s, joins_s = self.planned.leaves_at_s, self.planned.joins_at_s
        if leaves_s is not None and now_s >= leaves_s:
            return NodeState.DRAINING
        if self.planned.ready_after_s and now_s < joins_s + self.planned.ready_after_s:
            return NodeState.LOADING
        return NodeState.READY

    def gone(self, now_s: float) -> bool:
        """Whether it has drained."""
        leaves_s = self.planned.leaves_at_s
        return leaves_s is not None and now_s >= leaves_s and not self.engine.requests_open

    def refuses(self, now_s: float) -> bool:
        """Whether a request that reaches it now gets an error: by a fault, while it loads, and when it is gone."""
        if self.gone(now_s) or self.state(now_s) is NodeState.LOADING:
            return True
        return any(
            fault.kind is FailureKind.ERROR and fault.at_s <= now_s < fault.at_s + fault.for_s
            for fault in self.planned.faults
        )

    def usable(self, now_s: float) -> bool:
        """Whether it is there, ready, and not failing now: what no router can know."""
        joined = now_s >= self.planned.joins_at_s
        ready = joined and self.state(now_s) is NodeState.READY
        return ready and not self.refuses(now_s) and self.clock.pace(now_s) > 0

    @property
    def next_event_s(self) -> float | None:
        """When `advance` may tell something next, unless something is submitted before; `None` if it has no work."""
        own_s = self.engine.next_event_s
        return None if own_s is None else self.clock.at_s(own_s)

    def cached_tokens(self, prompt_blocks: Sequence[int]) -> int:
        """Tokens of the prompt's beginning that the engine has in its cache now."""
        return len(self.engine.pool.cached_prefix(prompt_blocks, len(prompt_blocks))) * BLOCK_TOKENS

    def submit(self, request: Request, now_s: float) -> None:
        """A request reaches it; it must not refuse."""
        self._arrived_s[request.request_id] = now_s
        self.engine.submit(request, self._own(now_s))

    def advance(self, now_s: float) -> Iterator[tuple[Event, float]]:
        """All that happened until now and was not told yet, with the simulation's time of it."""
        for event in self.engine.advance(self._own(now_s)):
            at_s = min(now_s, self.clock.at_s(event.at_s))
            if isinstance(event, FirstToken):
                self.first_tokens += 1
                self.first_token_waits_s += at_s - self._arrived_s.pop(event.request_id)
            yield event, at_s

    def _own(self, now_s: float) -> float:
        own_s = self.clock.own_s(now_s)
        # What rounding would leave a moment in the future is due now.
        due_s = self.engine.next_event_s
        if due_s is not None and due_s > own_s and self.clock.at_s(due_s) <= now_s:
            own_s = due_s
        self._own_s = max(self._own_s, own_s)
        return self._own_s


def in_arrivals_blocks(engine: EngineSettings, cost: StepCost) -> EngineSettings:
    """The same engine with KV blocks as long as those of arrivals: a quarter of the work, and next to no difference.

    A sequence leaves half a block of its last one empty, which is 24 tokens more than with blocks of 16.
    """
    assert engine.block_size_tokens == BLOCK_SIZE_TOKENS
    usable = max(1, (engine.kv_blocks - 1) * BLOCK_SIZE_TOKENS // BLOCK_TOKENS)
    return replace(
        engine,
        kv_blocks=usable + 1,
        block_size_tokens=BLOCK_TOKENS,
        context_length_tokens=min(engine.context_length_tokens, usable * BLOCK_TOKENS),
        cost=cost,
    )


def within_context(arrival: Arrival, context_tokens: int) -> Arrival:
    """The arrival; or where it is too long for a context the same one, its prompt cut at the end."""
    if arrival.prompt_tokens + arrival.output_tokens <= context_tokens:
        return arrival
    output_tokens = min(arrival.output_tokens, context_tokens - 1)
    prompt_tokens = min(arrival.prompt_tokens, context_tokens - output_tokens)
    blocks = arrival.prompt_blocks[: prompt_tokens // BLOCK_TOKENS]
    return structs.replace(
        arrival, prompt_tokens=prompt_tokens, output_tokens=output_tokens, prompt_blocks=blocks, answer_blocks=()
    )
