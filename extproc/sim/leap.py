"""Steps in a row that differ only in how far their sequences have decoded: known in closed form.

While nobody joins or leaves the batch each step reads one more token of KV cache per sequence than the one before, so
the i-th step (from 0) lasts first + i·growth, and n steps last n·first + n(n−1)/2·growth. A leap may end anywhere
within: its times come from its beginning alone, so it does not matter in how many parts it is passed.
"""

from bisect import bisect_right
from dataclasses import dataclass

from extproc.sim.counters import Histogram


@dataclass(slots=True)
class Leap:
    """The step in flight and those that are known to follow it; a step with prefill is a leap of one."""

    begun_s: float
    first_s: float
    """How long its first step lasts."""
    growth_s: float
    """By how much each further step is longer; not under 0."""
    steps: int
    """Of the whole leap, at least 1. At the last one's end something other than one token each may happen."""
    sequences: int
    """How many get a token at each step's end and got one at its beginning."""
    gaps_before_s: float
    """Σ gaps between tokens that the engine had counted when it began."""
    done: int = 0
    """Steps that have ended; always less than `steps`."""

    def end_s(self, steps: int) -> float:
        """When so many of its steps have ended."""
        return self.begun_s + self._seconds(steps)

    def ended_by(self, now_s: float) -> int:
        """How many of its steps have ended then."""
        if self.end_s(self.steps) <= now_s:
            return self.steps
        return self.done + bisect_right(range(self.done + 1, self.steps), now_s, key=self.end_s)

    def cut(self) -> None:
        """Let it end with the step in flight."""
        self.steps = self.done + 1

    def pass_by(self, steps: int, gaps: Histogram) -> None:
        """So many further steps have ended, at least one; each was a gap between two tokens of every sequence."""
        self._observe(self.done, self.done + steps - 1, gaps)
        self.done += steps
        # From the beginning, so that rounding does not depend on the parts in which a leap is passed.
        gaps.sum = self.gaps_before_s + self.sequences * self._seconds(self.done)

    def gap_s(self, step: int) -> float:
        """How long this step lasts, counted from 0."""
        return self.first_s + self.growth_s * step

    def _seconds(self, steps: int) -> float:
        return steps * self.first_s + steps * (steps - 1) // 2 * self.growth_s

    def _observe(self, first: int, last: int, gaps: Histogram) -> None:
        bucket = gaps.bucket_of(self.gap_s(first))
        if bucket == gaps.bucket_of(self.gap_s(last)):
            gaps.in_bucket[bucket] += (last - first + 1) * self.sequences
        else:
            middle = (first + last) // 2
            self._observe(first, middle, gaps)
            self._observe(middle + 1, last, gaps)
