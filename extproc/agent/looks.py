"""What the latest looks at an engine showed: enough of it to tell whether a gauge moves as the counters say it must."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

LOOKS_MIN = 30
"""A gauge is judged by so many looks at least."""
LOOKS_MAX = 90
"""And by no more: older ones are forgotten."""
APART_S = 1.0
"""Looks that come faster than that are not all kept, so that those kept span half a minute at least."""
BUSY_SHARE_MIN = 0.5
"""In so many of the times between looks some counter must have moved: one burst while nobody looked proves nothing."""

_RUNS_OF = (
    "requests_running",
    "requests_waiting",
    "active_decodes",
    "pending_prefills",
    "kv_usage",
    "kv_blocks_available",
    "prefill_seconds_total",
)
_KEPT = frozenset(
    {
        *_RUNS_OF,
        "kv_blocks_total",
        "kv_block_size_tokens",
        "first_tokens_total",
        "prefill_tokens_total",
        "decode_ms_per_token",
    }
)


@dataclass(frozen=True, slots=True)
class Mark:
    """One look that is kept. `None`: absent."""

    at_s: float
    told: Mapping[str, float]
    decode_seconds_total: float | None


@dataclass(slots=True)
class Run:
    """How a signal went lately, by numbers of marks."""

    value: float
    constant_since: int
    """It has been the same in every look since this mark."""
    rising_since: int
    """It has not fallen since this mark."""
    rising_from: float
    """What it was then."""


class Window:
    """Some marks in a row, oldest first, at least two."""

    def __init__(self, marks: list[Mark]) -> None:
        self.marks = marks
        self.seconds = marks[-1].at_s - marks[0].at_s

    def known(self, signal: str) -> list[float]:
        """What was told of it, oldest first."""
        return [mark.told[signal] for mark in self.marks if signal in mark.told]

    def gained(self, signal: str) -> float | None:
        """What a total rose by; `None`: it is not known, or fell."""
        first, last = self.marks[0].told.get(signal), self.marks[-1].told.get(signal)
        return None if first is None or last is None or last < first else last - first

    @property
    def decode_seconds(self) -> float | None:
        """What requests decoded meanwhile, each for itself; `None`: not known."""
        first, last = self.marks[0].decode_seconds_total, self.marks[-1].decode_seconds_total
        return None if first is None or last is None or last < first else last - first

    @property
    def is_busy(self) -> bool:
        """Whether tokens were computed all the time, as far as the looks tell."""
        moved = sum(_counters(before) != _counters(after) for before, after in pairwise(self.marks))
        return moved >= BUSY_SHARE_MIN * (len(self.marks) - 1)


class Looks:
    """Takes one look after the other, of one engine since it began.

    State: the latest marks, and of each gauge since when it has stood still, and since when it has not fallen.
    """

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque(maxlen=LOOKS_MAX)
        self._number = 0
        """Of the latest mark; the first is 1."""
        self._runs: dict[str, Run] = {}

    def take(
        self, now_s: float, told: Mapping[str, float], decode_seconds_total: float | None, gauges_every_s: float
    ) -> bool:
        """Take a look; whether it was kept: gauges may not have been written since the one before."""
        kept = not self._marks or now_s - self._marks[-1].at_s >= max(APART_S, gauges_every_s)
        if kept:
            self._marks.append(Mark(now_s, {name: told[name] for name in _KEPT & told.keys()}, decode_seconds_total))
            self._number += 1
        since = self._number if kept else self._number + 1
        for name in _RUNS_OF:
            value, run = told.get(name), self._runs.get(name)
            if value is None:
                self._runs.pop(name, None)
            elif run is None:
                self._runs[name] = Run(value, since, since, value)
            elif value != run.value:
                if value < run.value:
                    run.rising_since, run.rising_from = since, value
                run.value, run.constant_since = value, since
        return kept

    def run(self, signal: str) -> Run | None:
        """How it went lately; `None`: it is absent."""
        return self._runs.get(signal)

    def latest(self) -> Window | None:
        """The latest `LOOKS_MIN`, or `None` if there are fewer."""
        return self._since(self._number - LOOKS_MIN + 1)

    def constant(self, signal: str) -> Window | None:
        """The latest `LOOKS_MIN` if the signal was the same in all of them."""
        run = self._runs.get(signal)
        return None if run is None or self._number - run.constant_since + 1 < LOOKS_MIN else self.latest()

    def rising(self, signal: str) -> Window | None:
        """All marks since it fell last, if they are `LOOKS_MIN` at least."""
        run = self._runs.get(signal)
        return None if run is None else self._since(run.rising_since)

    def _since(self, number: int) -> Window | None:
        count = self._number - number + 1
        marks = list(self._marks)[-count:] if count > 0 else []
        return Window(marks) if number > 0 and len(marks) >= LOOKS_MIN else None


def _counters(mark: Mark) -> tuple[float | None, ...]:
    told = mark.told
    return (
        told.get("first_tokens_total"),
        told.get("prefill_tokens_total"),
        told.get("prefill_seconds_total"),
        mark.decode_seconds_total,
    )
