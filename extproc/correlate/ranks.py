"""How far two numbers rise together, by their ranks: so that neither units nor a few huge values matter.

Spearman's ρ is Pearson's correlation of ranks, where equal values share the mean of theirs. Its standard error is
taken as 1.03 / √(n - 3) on Fisher's scale (Fieller, Hartley and Pearson, 1957). What is left of ρ when a third number
is held fixed is the partial correlation (Kendall, 1942).
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import StatisticsError, correlation, median
from typing import Final

from msgspec import Struct

PAIRS_MIN: Final = 20
"""Of fewer pairs nothing is said."""
SIGMAS: Final = 1.96
"""Of a normal distribution, 95 % lie within."""


class Rho(Struct, frozen=True):
    """A rank correlation, -1..1."""

    value: float
    low: float
    """With `high` the interval that holds the true one in 95 of 100 such samples."""
    high: float


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each in their order, from 1; equal ones share the mean of theirs. No NaN among them."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end + 1 < len(order) and values[order[end + 1]] == values[order[begin]]:
            end += 1
        for place in range(begin, end + 1):
            found[order[place]] = (begin + end) / 2 + 1
        begin = end + 1
    return found


def of_ranks(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's ρ of two lists of ranks; `None` where one of them never changes."""
    try:
        return max(-1.0, min(1.0, correlation(one, other)))
    except StatisticsError:
        return None


def beside(with_target: float, with_third: float, target_with_third: float) -> float | None:
    """What is left of ρ with the target when a third number, with which both correlate, is held fixed."""
    left = (1 - with_third**2) * (1 - target_with_third**2)
    if left <= 0:
        return None
    return max(-1.0, min(1.0, (with_target - with_third * target_with_third) / math.sqrt(left)))


def with_interval(value: float, pairs: int) -> Rho:
    """The correlation of so many pairs, more than 3."""
    if abs(value) >= 1:
        return Rho(value, value, value)
    middle, half = math.atanh(value), SIGMAS * 1.03 / math.sqrt(pairs - 3)
    return Rho(value, math.tanh(middle - half), math.tanh(middle + half))


def medians_of_fifths(by: Sequence[float], of: Sequence[float]) -> tuple[float, ...]:
    """Median of the second list where the first is lowest, and so on up to where it is highest."""
    order = sorted(range(len(by)), key=by.__getitem__)
    bounds = [len(order) * fifth // 5 for fifth in range(6)]
    return tuple(median(of[place] for place in order[low:high]) for low, high in pairwise(bounds) if high > low)
