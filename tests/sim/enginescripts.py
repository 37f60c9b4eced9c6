"""Scripts of calls to an engine, small engines that run out of everything, and what a run of one gave."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from extproc.sim.counters import Counters, Histogram
from extproc.sim.engine import Engine, EngineSettings
from extproc.sim.events import Event, Finished, Request
from extproc.sim.steptime import StepCost

CONTEXT_TOKENS = 96
EXACT_COST = StepCost(2**-6, 2**-12, 2**-10, 2**-14, 2**-16)
"""Every time is a sum of powers of two: no rounding, so times that are equal on paper are equal."""


@dataclass(frozen=True)
class Submit:
    gap_s: float
    prompt_tokens: int
    output_tokens: int
    family: int


@dataclass(frozen=True)
class Abort:
    gap_s: float
    which: int


@dataclass(frozen=True)
class Advance:
    gap_s: float


Call = Submit | Abort | Advance


def scripts(gaps: st.SearchStrategy[float]) -> st.SearchStrategy[list[Call]]:
    submits = submits_after(gaps)
    aborts = st.builds(Abort, gaps, st.integers(0, 20))
    # Long enough that many run out of blocks.
    return st.lists(st.one_of(submits, submits, submits, aborts, st.builds(Advance, gaps)), min_size=5, max_size=40)


def submits_after(gaps: st.SearchStrategy[float]) -> st.SearchStrategy[Submit]:
    return st.builds(Submit, gaps, st.integers(1, 60), st.integers(0, 36), st.integers(0, 2))


def small_engines(cost: StepCost, block_sizes: Sequence[int] = (16,)) -> st.SearchStrategy[EngineSettings]:
    """From one that just holds one whole context to one that holds two, in blocks of one of these sizes."""

    def sized(size: int, spare: float, sequences_max: int, step_tokens_max: int) -> EngineSettings:
        blocks = -(-CONTEXT_TOKENS // size)
        return EngineSettings(
            kv_blocks=1 + blocks + int(blocks * spare),
            block_size_tokens=size,
            context_length_tokens=CONTEXT_TOKENS,
            sequences_max=sequences_max,
            step_tokens_max=step_tokens_max,
            cost=cost,
        )

    return st.builds(sized, st.sampled_from(block_sizes), st.floats(0, 1.5), st.integers(1, 5), st.integers(5, 40))


@dataclass
class Run:
    """An engine, what was asked of it and what it told."""

    engine: Engine
    sharing: bool = True
    now_s: float = 0.0
    asked: dict[str, Request] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)

    def call(self, call: Call) -> None:
        self.now_s += call.gap_s
        match call:
            case Submit(_, prompt_tokens, output_tokens, family):
                size = self.engine.settings.block_size_tokens
                # Four blocks of 16 tokens: they reach into some answers.
                first = family * 1000
                keys = range(first, first + 64 // size) if self.sharing else ()
                request = Request(str(len(self.asked)), prompt_tokens, output_tokens, block_keys=keys)
                self.asked[request.request_id] = request
                self.engine.submit(request, self.now_s)
            case Abort(_, which):
                if self.asked:
                    request_id = str(which % len(self.asked))
                    self.events += self.engine.advance(self.now_s)
                    if request_id not in self.finished:
                        self.aborted.add(request_id)
                    self.engine.abort(request_id, self.now_s)
            case Advance():
                self.events += self.engine.advance(self.now_s)

    def drain(self) -> None:
        while (event_s := self.engine.next_event_s) is not None:
            self.now_s = max(self.now_s, event_s)
            self.events += self.engine.advance(self.now_s)

    @property
    def finished(self) -> list[str]:
        return [event.request_id for event in self.events if isinstance(event, Finished)]


def run_of(
    settings: EngineSettings,
    script: Sequence[Call],
    sharing: bool = True,
    engine_of: Callable[[EngineSettings], Engine] = Engine,
) -> Run:
    run = Run(engine_of(settings), sharing)
    for call in script:
        run.call(call)
    run.drain()
    return run


def totals(counters: Counters) -> list[float]:
    """Everything that may only grow."""
    grow: list[float] = [*counters.request_success.values()]
    for name in Counters.__dataclass_fields__:
        value = getattr(counters, name)
        if isinstance(value, Histogram):
            grow += [*value.in_bucket, value.sum]
        elif isinstance(value, int) and not name.startswith("num_requests"):
            grow.append(value)
    return grow


def shown(counters: Counters) -> list[float]:
    """All of them."""
    gauges = counters.num_requests_running, counters.num_requests_waiting, counters.kv_cache_usage
    return [*gauges, *totals(counters)]
