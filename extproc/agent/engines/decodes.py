"""How many of vLLM's running requests are past their first token: a number that it has no gauge for.

Two counters know it nearly: requests that got their first token, less requests that finished. Their difference
is the active decodes plus an offset, and the offset drifts: an aborted request got its first token and never
counts as finished, a pooling request finishes without any token. So only differences are used, and the offset is set
anew

- whenever the engine is idle, since then there are no decodes, and the engine's own start is such a moment. It is not
  where tokens were made since the look before: a gauge that falsely says 0 would spoil the count until the next one;
- when the result was out of bounds in `TORN_LOOKS` looks in a row, by the least that it was beyond 0 or running. After
  `VIOLATIONS_MAX` of these without an idle moment between them the drift is faster than the corrections, and the count
  is absent until the next one.

A preempted request is past its first token and waits again, to be computed anew: it is no drift. vLLM counts it as
preempted only when it gets its next token, so any of the waiting requests may be one, and the bounds of those past
their first token are 0 and all requests. Those beyond the batch count as pending prefills, which they are.

A page may be torn: written while vLLM takes in a step, it has the gauges of the step before and the first tokens of
this one. So one look never moves the offset, unless it found the engine idle after a look that did not.
"""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from extproc.agent.engines.reading import count_of
from extproc.core.snapshot import REQUESTS_MAX

VIOLATIONS_MAX = 3
TORN_LOOKS = 2
"""So many looks in a row are not torn alike."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RequestCounts(Generic[T]):
    """What an engine tells of its requests; or the names of these metrics."""

    running: T
    waiting: T
    first_tokens: T
    """Requests that got their first token, since its start."""
    finished: T
    """Requests that ended, since its start."""


@dataclass(frozen=True, slots=True)
class Drift:
    """What is known of the offset."""

    offset: float = 0.0
    """First tokens less finished requests, when the engine had no decodes."""
    violations: int = 0
    """Times that the offset was moved since the engine was idle."""
    beyond: tuple[float, ...] = ()
    """How far the latest looks in a row, fewer than `TORN_LOOKS`, were over running or under 0."""
    idle_at: float | None = None
    """First tokens less finished requests of the latest look, if it found the engine idle."""


def count_decodes(
    before: Drift, *, first_tokens: float, finished: float, running: int, waiting: int, rested: bool = True
) -> tuple[int | None, Drift]:
    """Active decodes in 0..running, or `None` while they cannot be told; and the drift to pass in next time.

    `rested`: as far as is known, no token was made since the look before.
    """
    difference = first_tokens - finished
    if running + waiting == 0 and not rested:
        return 0, replace(before, beyond=(), idle_at=None)
    if running + waiting == 0:
        torn = before.idle_at is not None and before.idle_at != difference
        return 0, replace(before, beyond=(), idle_at=difference) if torn else Drift(difference, idle_at=difference)
    if before.violations >= VIOLATIONS_MAX:
        return None, replace(before, idle_at=None)
    estimate = difference - before.offset
    decodes = int(min(max(estimate, 0.0), float(running)))
    if 0 <= estimate <= running + waiting:
        return decodes, replace(before, beyond=(), idle_at=None)
    return _violated(before, estimate - decodes, decodes)


def _violated(before: Drift, beyond: float, decodes: int) -> tuple[int | None, Drift]:
    same_side = before.beyond and (before.beyond[0] > 0) == (beyond > 0)
    latest = (*before.beyond, beyond) if same_side else (beyond,)
    if len(latest) < TORN_LOOKS:
        return decodes, replace(before, beyond=latest, idle_at=None)
    after = Drift(before.offset + min(latest, key=abs), before.violations + 1)
    return (decodes if after.violations < VIOLATIONS_MAX else None), after


def decodes_over(
    engines: Mapping[str, RequestCounts[float | None]],
    names: RequestCounts[str],
    before: Mapping[str, Drift],
    at_work: Container[str] = (),
) -> tuple[int | str, dict[str, Drift]]:
    """Active decodes of all engines, and the drift of each to pass in next time.

    `at_work` are engines that made tokens since the look before, whatever their gauges say. If one engine's decodes
    cannot be told, neither can the sum: then the text is why.
    """
    after: dict[str, Drift] = {}
    decodes, reason = 0, None if engines else f"{names.running} is missing"
    for engine, told in engines.items():
        batch = count_of(told.running, REQUESTS_MAX, names.running)
        queue = count_of(told.waiting, REQUESTS_MAX, names.waiting)
        first, done = told.first_tokens, told.finished
        if first is None or done is None or not math.isfinite(first - done):
            reason = f"{names.first_tokens} or {names.finished} is missing or no number"
        elif isinstance(batch, str) or isinstance(queue, str):
            reason = batch if isinstance(batch, str) else str(queue)
        else:
            drift = before.get(engine, Drift())
            rested = engine not in at_work
            count, after[engine] = count_decodes(
                drift, first_tokens=first, finished=done, running=batch, waiting=queue, rested=rested
            )
            if count is None:
                reason = f"{names.first_tokens} and {names.finished} drift apart too fast"
            else:
                decodes += count
    return decodes if reason is None else reason, after
