"""A part of the event loop's time, and no more: whatever others send us, requests have the rest of it."""

from collections.abc import Callable

PART = 0.25
"""Of the loop's time (0..1), for each of those who read messages and who handle them, while more are there."""
SLICE_S = 0.002
"""Work goes on for so long at a time, and then rests until it has taken no more than its part."""
REST_S_MAX = 0.1
"""It never rests longer: a process that was held up meanwhile has not worked."""


class Share:
    """Of one who works on the event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._fair_s = float("-inf")
        """When its work so far would have ended, had it always taken its part and no more."""

    def rest_s(self, took_s: float) -> float:
        """Work has just taken so many seconds; how many to rest before more of it, 0: go on."""
        now_s = self._clock()
        self._fair_s = min(max(self._fair_s, now_s - took_s) + took_s / PART, now_s + REST_S_MAX)
        ahead_s = self._fair_s - now_s
        return ahead_s if ahead_s >= SLICE_S / PART - SLICE_S else 0.0
