"""What came for one model lately, second by second, and how it came: level, trend and bursts."""

from array import array
from collections.abc import Sequence
from math import fsum, sqrt
from typing import Final

from msgspec import Struct

from extproc.core.capacity import SPANS_S

SPREAD_S: Final = 64
"""A prompt's work is spread over so many seconds at most."""
YOUNG_S: Final = 16
"""Soon after our start the seconds before it count as empty, up to so many: one request makes no rate."""
TREND_SPAN_S: Final = 32
"""Over so long sums are taken before a line is laid through them: longer than most bursts."""
TREND_ERRORS: Final = 2.0
"""Of a slope so many standard errors are left out: what remains is a trend and no chance."""
BLOCKS_MIN: Final = 4
"""Fewer sums say nothing of how they spread."""


class Lately(Struct, frozen=True):
    """What came in each past second, oldest first."""

    sequences: Sequence[float]
    uncached_tokens: Sequence[float]
    """Of prompts, to be computed."""
    prompt_tokens: float
    """All of the prompts in all of the seconds, cached or not."""


class Arrivals:
    """Counts of the last `window_s` seconds, and of the next `SPREAD_S` in which long prompts are still computed.

    A node computes a prompt one step after the other, so a long one is no burst: of its tokens `pace_tokens_per_s`
    count in the second of its arrival, as many in the next, and so on.

    State: rings of seconds, numbered on the clock that `now_s` is of. Memory is bounded by the window.
    """

    __slots__ = ("_first", "_last", "_pace", "_prompts", "_sequences", "_size", "_tokens", "_window_s")

    def __init__(self, window_s: int, pace_tokens_per_s: float, started_s: float) -> None:
        self._window_s = window_s
        self._pace = pace_tokens_per_s
        self._size = window_s + SPREAD_S + 1
        self._sequences, self._tokens, self._prompts = (array("d", bytes(8 * self._size)) for _ in range(3))
        self._first = int(started_s)
        """The second in which we began to see arrivals."""
        self._last = self._first
        """The latest second; all after it and its spread are empty, whatever stands in the ring."""

    def add(self, sequences: int, uncached_tokens: int, prompt_tokens: int, now_s: float) -> None:
        """A request came; time never goes back, and if it seems to it stands still."""
        self._advance(int(now_s))
        second, size = self._last, self._size
        self._sequences[second % size] += sequences
        self._prompts[second % size] += prompt_tokens
        left = float(uncached_tokens)
        for place in range(second, second + SPREAD_S):
            if left <= self._pace:
                break
            self._tokens[place % size] += self._pace
            left -= self._pace
        else:
            place = second + SPREAD_S
        self._tokens[place % size] += left

    def idle(self, now_s: float) -> bool:
        """Whether nothing came within the window."""
        return int(now_s) - self._last > self._window_s + SPREAD_S

    def lately(self, now_s: float) -> Lately:
        """The whole seconds before this one, as many as the window has or as there were since our start."""
        now = int(now_s)
        count = min(max(now - self._first, YOUNG_S), self._window_s)
        seconds, filled = range(now - count, now), self._last + SPREAD_S
        places = [second % self._size if self._first <= second <= filled else -1 for second in seconds]

        def read(ring: "array[float]") -> list[float]:
            return [ring[place] if place >= 0 else 0.0 for place in places]

        return Lately(read(self._sequences), read(self._tokens), fsum(read(self._prompts)))

    def _advance(self, second: int) -> None:
        """Empty the places of the seconds that come into sight."""
        if second <= self._last:
            return
        for new in range(max(self._last + 1, second - self._size + 1), second + 1):
            place = (new + SPREAD_S) % self._size
            self._tokens[place] = self._sequences[place] = self._prompts[place] = 0.0
        self._last = second


class Course(Struct, frozen=True):
    """How work comes: a line through what came, and how far it spreads around it."""

    level: float = 0.0
    """In a second, at the end of the line: now."""
    slope: float = 0.0
    """By which the level rises in a second, as far as it is certain."""
    variances: tuple[float, ...] = ()
    """Of the sums over each of `capacity.SPANS_S`, without the line's rise; as many as there were enough sums for."""
    peaks: tuple[float, ...] = ()
    """The most of these sums."""


def course_of(work: Sequence[float]) -> Course:
    """The course of what came in each second, oldest first; at least one.

    The line is that of least squares through sums of `TREND_SPAN_S`, less steep by `TREND_ERRORS` standard errors of
    its slope: for a level that only spreads it is flat, and its end is the mean.
    """
    slope = _slope(work)
    variances, peaks, sums = [], [], list(work)
    for span_s in SPANS_S:
        count = len(sums)
        if count < BLOCKS_MIN:
            break
        mean = fsum(sums) / count
        spread = fsum([(one - mean) ** 2 for one in sums]) / (count - 1)
        # What a line of this slope alone would give, its sums being evenly apart.
        variances.append(max(0.0, spread - (slope * span_s * span_s) ** 2 * count * (count + 1) / 12))
        peaks.append(max(sums))
        sums = _paired(sums)
    level = fsum(work) / len(work) + slope * len(work) / 2
    return Course(max(0.0, level), slope, tuple(variances), tuple(peaks))


def _paired(sums: list[float]) -> list[float]:
    """Sums of neighbours, the newest whole."""
    odd = len(sums) % 2
    return [one + other for one, other in zip(sums[odd::2], sums[odd + 1 :: 2], strict=True)]


def _slope(work: Sequence[float]) -> float:
    sums = list(work)
    for _ in range(TREND_SPAN_S.bit_length() - 1):
        sums = _paired(sums)
    count = len(sums)
    if count < BLOCKS_MIN:
        return 0.0
    mean, middle = fsum(sums) / count, (count - 1) / 2
    spread = count * (count * count - 1) / 12
    rise = fsum([(place - middle) * one for place, one in enumerate(sums)]) / spread
    rest = fsum([(one - mean - rise * (place - middle)) ** 2 for place, one in enumerate(sums)])
    certain = max(0.0, abs(rise) - TREND_ERRORS * sqrt(rest / (count - 2) / spread))
    return (certain if rise > 0 else -certain) / TREND_SPAN_S**2
