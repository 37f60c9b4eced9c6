"""Engines whose every step lasts a second, so that a time is a number of steps, and what they tell."""

from extproc.sim.engine import Engine, EngineSettings
from extproc.sim.events import Event, Finished, FirstToken, Token
from extproc.sim.steptime import StepCost

SECOND_PER_STEP = StepCost(1.0, 0.0, 0.0, 0.0, 0.0)


def engine_of(kv_blocks: int = 100, context: int = 512, sequences: int = 8, step_tokens: int = 64) -> Engine:
    """Every step lasts a second, so a time is a number of steps."""
    return Engine(
        EngineSettings(
            kv_blocks=kv_blocks,
            context_length_tokens=context,
            sequences_max=sequences,
            step_tokens_max=step_tokens,
            cost=SECOND_PER_STEP,
        )
    )


def keys(family: int, blocks: int) -> tuple[int, ...]:
    return tuple(family * 1000 + index for index in range(blocks))


def drained(engine: Engine) -> list[Event]:
    events = []
    while (end_s := engine.next_step_end_s) is not None:
        events += engine.advance(end_s)
    return events


def times(events: list[Event], request_id: str) -> list[float]:
    return [e.at_s for e in events if e.request_id == request_id and isinstance(e, FirstToken | Token)]


def finish_times(events: list[Event]) -> dict[str, float]:
    return {e.request_id: e.at_s for e in events if isinstance(e, Finished)}
