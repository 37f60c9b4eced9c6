"""How far two numbers rise together, by their ranks: so that neither units nor a few huge values matter.

Spearman's ρ is Pearson's correlation of ranks. What is left of it when a third number is held fixed is the partial
correlation (Yule, 1907) of the ranks.

Requests that come one after another are alike: they see the same snapshots, and the same rush. An interval that takes
each for a witness of its own is far too narrow. So it is found by leaving out, in turn, each of `BLOCKS` stretches of
time (the block jackknife: Künsch, 1989), on Fisher's scale, with Student's t of so many stretches. What one rush alone
shows is thus not sure.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import mul
from statistics import median
from typing import Final

from msgspec import Struct

PAIRS_MIN: Final = 20
"""Of fewer pairs nothing is said."""
BLOCKS: Final = 20
"""Stretches of time with the same number of pairs; no more than `PAIRS_MIN`."""
T_BLOCKS: Final = 2.093
"""Of Student's t with `BLOCKS` - 1 degrees of freedom, 95 % lie within."""
FIFTHS: Final = 5
_LEAST_VARIANCE: Final = 1e-12
"""Of the mean square: below it there is nothing but rounding."""
_MOST: Final = 1 - 1e-12
"""Fisher's scale has no place for 1."""


class Rho(Struct, frozen=True):
    """A rank correlation, -1..1."""

    value: float
    low: float
    """With `high` the interval that holds the true one in about 95 of 100 such recordings."""
    high: float


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each in their order, less the mean place; equal ones share the mean of theirs. No NaN among them."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    middle = (len(values) - 1) / 2
    begin = 0
    while begin < len(order):
        end = begin
        while end + 1 < len(order) and values[order[end + 1]] == values[order[begin]]:
            end += 1
        for place in range(begin, end + 1):
            found[order[place]] = (begin + end) / 2 - middle
        begin = end + 1
    return found


def rho(one: Sequence[float], other: Sequence[float], third: Sequence[float] | None = None) -> Rho | None:
    """Spearman's ρ of two lists of ranks in the order of time, `PAIRS_MIN` at least, a third one held fixed if given.

    `None`: one of them never changes, or the third says all of it.
    """
    columns = [one, other] if third is None else [one, other, third]
    bounds = [len(one) * block // BLOCKS for block in range(BLOCKS + 1)]
    blocks = [_sums([column[low:high] for column in columns]) for low, high in pairwise(bounds)]
    whole = [math.fsum(parts) for parts in zip(*blocks, strict=True)]
    value = _of_sums(whole)
    if value is None:
        return None
    if abs(value) >= _MOST:
        return Rho(value, value, value)
    # Where nothing changes without a block, that block is the only witness: the others show nothing.
    left = [_of_sums([all_ - part for all_, part in zip(whole, block, strict=True)]) or 0.0 for block in blocks]
    return Rho(value, *_interval(value, left))


def _interval(value: float, left: Sequence[float]) -> tuple[float, float]:
    scaled = [math.atanh(max(-_MOST, min(_MOST, one))) for one in left]
    mean = math.fsum(scaled) / BLOCKS
    error = math.sqrt((BLOCKS - 1) / BLOCKS * math.fsum((one - mean) ** 2 for one in scaled))
    middle, half = math.atanh(value), T_BLOCKS * error
    return min(value, math.tanh(middle - half)), max(value, math.tanh(middle + half))


def _sums(columns: Sequence[Sequence[float]]) -> list[float]:
    """How many there are, the sum of each column, and that of each product of two."""
    products = [
        math.fsum(map(mul, column, other)) for place, column in enumerate(columns) for other in columns[: place + 1]
    ]
    return [float(len(columns[0])), *map(math.fsum, columns), *products]


def _of_sums(sums: Sequence[float]) -> float | None:
    """The correlation of the first two columns, the third held fixed if there is one."""
    if len(sums) == 1 + 2 + 3:
        count, a, b, aa, ab, bb = sums
        return _correlation(count, a, b, aa, bb, ab)
    count, a, b, c, aa, ab, bb, ac, bc, cc = sums
    plain = _correlation(count, a, b, aa, bb, ab)
    with_third, other_with_third = _correlation(count, a, c, aa, cc, ac), _correlation(count, b, c, bb, cc, bc)
    if plain is None or with_third is None or other_with_third is None:
        return plain  # the third never changes: it is fixed as it is
    return beside(plain, with_third, other_with_third)


def _correlation(
    count: float, one: float, other: float, squares: float, others: float, products: float
) -> float | None:
    variance, of_other = squares - one * one / count, others - other * other / count
    if variance <= _LEAST_VARIANCE * squares or of_other <= _LEAST_VARIANCE * others:
        return None
    return max(-1.0, min(1.0, (products - one * other / count) / math.sqrt(variance) / math.sqrt(of_other)))


def beside(with_target: float, with_third: float, target_with_third: float) -> float | None:
    """What is left of ρ with the target when a third number, with which both correlate, is held fixed."""
    left = (1 - with_third**2) * (1 - target_with_third**2)
    if left <= _LEAST_VARIANCE:
        return None
    return max(-1.0, min(1.0, (with_target - with_third * target_with_third) / math.sqrt(left)))


def medians_of_fifths(by: Sequence[float], of: Sequence[float]) -> tuple[float, ...]:
    """Median of the second list where the first is lowest, and so on up to where it is highest: see `groups`."""
    return tuple(median(of[place] for place in group) for group in groups(by))


def groups(values: Sequence[float]) -> list[list[int]]:
    """The places of the lowest fifth of the values, and so on up to the highest.

    Equal values are kept together, so that time does not choose among them: there may be fewer parts than five, and
    they are fifths only about.
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    ordered = [values[place] for place in order]
    bounds = sorted({_edge(ordered, len(order) * fifth // FIFTHS) for fifth in range(FIFTHS + 1)})
    return [order[low:high] for low, high in pairwise(bounds)]


def _edge(ordered: Sequence[float], place: int) -> int:
    """The nearest place where another value begins, or the end."""
    if place >= len(ordered):
        return len(ordered)
    begin, end = bisect_left(ordered, ordered[place]), bisect_right(ordered, ordered[place])
    return begin if place - begin <= end - place else end
