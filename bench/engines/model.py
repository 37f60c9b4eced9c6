"""Emulated engines in simulated time: what they can carry, found in a second, and what they should do alone.

The same step model as the emulator's, fed with the same requests, but no HTTP and no clock: what a measurement shows
beyond it is what the machine, Envoy and Python add.
"""

from collections.abc import Sequence

from bench.engines.workloads import Timed
from extproc.sim.engine import Engine, EngineSettings
from extproc.sim.events import Event, Finished, FirstToken
from extproc.sim.measures import Served, isolated

SATURATED_FROM, SATURATED_TO = 0.2, 0.8
"""Shares of the requests that are done: between them an engine is neither still filling nor running dry."""


def capacity_per_s(settings: EngineSettings, asked: Sequence[Timed]) -> float:
    """Requests per second that one engine finishes when all of these wait for it from the beginning, in their order."""
    engine = Engine(settings, tell_tokens=False)
    for one in asked:
        engine.submit(one.computed, 0.0)
    ended = sorted(event.at_s for event in _drained(engine) if isinstance(event, Finished))
    first, last = int(len(ended) * SATURATED_FROM), int(len(ended) * SATURATED_TO)
    return (last - first) / (ended[last] - ended[first])


def alone(settings: EngineSettings, asked: Sequence[Timed]) -> list[Served]:
    """What becomes of requests that one engine gets, each at its moment and at once."""
    engine = Engine(settings, tell_tokens=False)
    events: list[Event] = []
    for one in asked:
        engine.submit(one.computed, one.at_s)
        events += engine.advance(one.at_s)
    events += _drained(engine)
    first = {_number(event): event.at_s for event in events if isinstance(event, FirstToken)}
    ended = {_number(event): event.at_s for event in events if isinstance(event, Finished)}
    return [served(one, "", first[one.number], ended[one.number]) for one in asked]


def served(
    one: Timed, node: str, first_token_s: float | None, ended_s: float | None, *, refused: bool = False
) -> Served:
    """One request as the measures take it; its end is `None` where its answer never became whole."""
    lone = isolated(one.prompt_tokens, one.output_tokens, EngineSettings().cost)
    return Served(
        arrival=one.number,
        node=node,
        sent_s=one.at_s,
        first_token_s=first_token_s,
        finished_s=ended_s,
        prompt_tokens=one.prompt_tokens,
        output_tokens=one.output_tokens,
        cached_tokens=0,  # no client sees it: engines are asked for their sums
        refused=refused,
        failed=ended_s is None and not refused,
        isolated_prefill_s=lone.prefill_s,
        isolated_e2e_s=lone.e2e_s,
    )


def _drained(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while (at_s := engine.next_event_s) is not None:
        events += engine.advance(at_s)
    return events


def _number(event: Event) -> int:
    return int(event.request_id.partition("-")[0])
