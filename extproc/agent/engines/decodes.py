"""How many of vLLM's running requests are past their first token: a number that it has no gauge for.

Two counters know it nearly: requests that got their first token, less requests that finished. Their difference
is the active decodes plus an offset, and the offset drifts: an aborted request got its first token and never
counts as finished, a preempted one leaves the batch and comes back, a pooling request finishes without any token.
So only differences are used, and the offset is set anew

- whenever the engine is idle, since then there are no decodes, and the engine's own start is such a moment;
- whenever the result is not in 0..running, to the nearest bound. After `VIOLATIONS_MAX` of these without an
  idle moment between them the drift is faster than the corrections, and the count is absent until the next one.
"""

from dataclasses import dataclass

VIOLATIONS_MAX = 3


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
    if decodes == estimate:
        return int(decodes), before
    after = Drift(offset=difference - decodes, violations=before.violations + 1)
    return (int(decodes) if after.violations < VIOLATIONS_MAX else None), after
