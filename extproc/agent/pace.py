"""When an engine is looked at: often while it has work, seldom while it rests, and each at its own moment."""

from typing import Any

import xxhash

from extproc.agent.engines.reading import MEASURED
from extproc.agent.watch import Sighting
from extproc.core.snapshot import NodeState


class Pace:
    """One engine's looks: at whole intervals from a moment within them that its node's name gives.

    So the looks of many engines, and of many agents, are spread over the interval. An engine rests that is ready and
    has told the same twice in a row, with nothing running or waiting: then looks are left out, as many as
    `idle_interval_s` allows. Whatever changes, fails or is not known brings the shorter interval back.
    """

    def __init__(self, node_id: str, interval_s: float, idle_interval_s: float) -> None:
        self._interval_s = interval_s
        self._idle_intervals = max(1, int(idle_interval_s / interval_s + 1e-9))
        self._phase = xxhash.xxh3_64_intdigest(node_id.encode()) / 2**64
        self._told: Any = None
        """By the look before, if it showed an engine without requests."""

    def next_s(self, sighting: Sighting, began_s: float) -> float:
        """When to look again, after a look that began then; it may be in the past, where the look took too long."""
        told = _told_at_rest(sighting, began_s)
        rests = told is not None and told == self._told
        self._told = told
        intervals = began_s / self._interval_s - self._phase + (self._idle_intervals if rests else 1)
        return (round(intervals) + self._phase) * self._interval_s


def _told_at_rest(sighting: Sighting, began_s: float) -> Any:
    reading = sighting.reading
    if (
        sighting.state is not NodeState.READY
        or sighting.sampled_at_s < began_s
        or reading.requests_running != 0
        or reading.requests_waiting != 0
    ):
        return None
    measured = tuple(getattr(reading, name) for name in MEASURED)
    return sighting.generation, sighting.models, sighting.models_fault, measured
