"""How many of vLLM's running requests are past their first token: a number that it has no gauge for.

Two counters know it nearly: requests that got their first token, less requests that finished. Their difference
is the active decodes plus an offset, and the offset drifts: an aborted request got its first token and never
counts as finished, a pooling request finishes without any token. So only differences are used, and the offset is set
anew

- whenever the engine is idle, since then there are no decodes, and the engine's own start is such a moment;
- whenever the result is out of bounds, so that it becomes 0 or running, whichever is nearer. After `VIOLATIONS_MAX` of
  these without an idle moment between them the drift is faster than the corrections, and the count is absent until
  the next one.

A preempted request is past its first token and waits again, to be computed anew: it is no drift. vLLM counts it as
preempted only when it gets its next token, so any of the waiting requests may be one, and the bounds of those past
their first token are 0 and all requests. Those beyond the batch count as pending prefills, which they are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from extproc.agent.engines.reading import count_of
from extproc.core.snapshot import REQUESTS_MAX

VIOLATIONS_MAX = 3


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
    """Times that the bounds were violated since the engine was idle."""


def count_decodes(
    before: Drift, *, first_tokens: float, finished: float, running: int, waiting: int
) -> tuple[int | None, Drift]:
    """Active decodes in 0..running, or `None` while they cannot be told; and the drift to pass in next time."""
    difference = first_tokens - finished
    if running + waiting == 0:
        return 0, Drift(offset=difference)
    if before.violations >= VIOLATIONS_MAX:
        return None, before
    estimate = difference - before.offset
    decodes = min(max(estimate, 0.0), float(running))
    if 0 <= estimate <= running + waiting:
        return int(decodes), before
    after = Drift(offset=difference - decodes, violations=before.violations + 1)
    return (int(decodes) if after.violations < VIOLATIONS_MAX else None), after


def decodes_over(
    engines: Mapping[str, RequestCounts[float | None]], names: RequestCounts[str], before: Mapping[str, Drift]
) -> tuple[int | str, dict[str, Drift]]:
    """Active decodes of all engines, and the drift of each to pass in next time.

    If one engine's cannot be told, neither can the sum: then the text is why.
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
            count, after[engine] = count_decodes(drift, first_tokens=first, finished=done, running=batch, waiting=queue)
            if count is None:
                reason = f"{names.first_tokens} and {names.finished} drift apart too fast"
            else:
                decodes += count
    return decodes if reason is None else reason, after
