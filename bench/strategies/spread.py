"""Figures of many runs as one: the mean of the seeds, and the spread from the least to the greatest."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from bench.strategies.cases import Case
from bench.strategies.running import Figures
from extproc.sim.measures import Measures


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a table is of."""

    name: str
    of: Callable[[Measures], float | None]
    digits: int
    """After the point."""
    more_is_better: bool


NGOOD = Quantity("ngood", lambda measures: measures.ngood, 3, more_is_better=True)
SLOWDOWN = Quantity("slowdown", lambda measures: measures.slowdown, 2, more_is_better=False)
TTFT_P90_S = Quantity("TTFT p90, s", lambda measures: measures.ttft_p90_s, 2, more_is_better=False)
TTFT_P99_S = Quantity("TTFT p99, s", lambda measures: measures.ttft_p99_s, 1, more_is_better=False)
HITS = Quantity("prefix hits", lambda measures: measures.prefix_hit_share, 2, more_is_better=True)
FAILED = Quantity("saw an error", lambda measures: measures.failed, 0, more_is_better=False)
REFUSED = Quantity("refused", lambda measures: measures.refused / measures.requests, 3, more_is_better=False)
MISSED = Quantity(
    "outside the objectives",
    lambda measures: round(measures.requests * (1 - measures.ngood)),
    0,
    more_is_better=False,
)


@dataclass(frozen=True, slots=True)
class Spread:
    """One value for each seed, in their order; at least one."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of the seeds."""
        return math.fsum(self.values) / len(self.values)

    @property
    def width(self) -> float:
        """The greatest less the least."""
        return max(self.values) - min(self.values)

    def shown(self, digits: int) -> str:
        """The mean, and in brackets the width."""
        return f"{self.mean:.{digits}f} ({trimmed(self.width, digits)})"


def change(before: Spread, after: Spread, digits: int) -> str:
    """Both means, and in brackets the width of the differences of the same seeds."""
    each = Spread(tuple(one - other for one, other in zip(after.values, before.values, strict=True)))
    return f"{before.mean:.{digits}f} → {after.mean:.{digits}f} ({trimmed(each.width, digits)})"


def percent(share: float) -> str:
    """A load, as tables show it."""
    return f"{share * 100:g} %"


def trimmed(value: float, digits: int) -> str:
    """A number of which readers know that it is small: `.012`, `0`."""
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        return "0"
    return text.removeprefix("0") if text.startswith("0.") else text


def mean_over(figures: Mapping[Case, Figures], cases: Iterable[Case], quantity: Quantity, seeds: int) -> Spread | None:
    """The mean of several cases with each seed; `None` unless all have it. The seeds of the cases do not matter."""
    distinct = dict.fromkeys(replace(case, seed=0) for case in cases)
    if not distinct:
        return None
    values = []
    for seed in range(seeds):
        found = [figures.get(replace(case, seed=seed)) for case in distinct]
        each = [None if one is None else quantity.of(one.measures) for one in found]
        known = [value for value in each if value is not None]
        if len(known) < len(each):
            return None
        values.append(math.fsum(known) / len(known))
    return Spread(tuple(values))


def ranked(means: Mapping[str, Spread], quantity: Quantity) -> list[str]:
    """The names, best first."""
    return sorted(means, key=lambda name: means[name].mean, reverse=quantity.more_is_better)


def seeds_ahead(ours: Spread, theirs: Spread, quantity: Quantity) -> int:
    """With how many of the seeds ours is better."""
    pairs = zip(ours.values, theirs.values, strict=True)
    return sum(one > other if quantity.more_is_better else one < other for one, other in pairs)
