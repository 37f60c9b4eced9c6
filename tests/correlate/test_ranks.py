import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.correlate.ranks import beside, medians_of_fifths, of_ranks, ranks, with_interval

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)
LISTS = st.lists(NUMBERS, min_size=2, max_size=40)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], []), ([5.0], [1]), ([3, 1, 2], [3, 1, 2]), ([1, 1, 2], [1.5, 1.5, 3]), ([7, 7, 7], [2, 2, 2])],
)
def test_equal_values_share_the_mean_of_their_places(values: list[float], expected: list[float]) -> None:
    assert ranks(values) == expected


@given(LISTS)
def test_ranks_keep_the_order_and_their_sum(values: list[float]) -> None:
    found = ranks(values)
    assert sum(found) == len(values) * (len(values) + 1) / 2
    for one, place in zip(values, found, strict=True):
        below = sum(other < one for other in values)
        same = values.count(one)
        assert place == below + (same + 1) / 2


@given(LISTS)
def test_what_rises_together_is_1_and_what_falls_is_minus_1(values: list[float]) -> None:
    found = of_ranks(ranks(values), ranks([value * 3 for value in values]))
    fallen = of_ranks(ranks(values), ranks([-value for value in values]))
    if len(set(values)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(1)
        assert fallen == pytest.approx(-1)


def test_a_published_example() -> None:
    # IQ and hours of television of ten people: https://en.wikipedia.org/wiki/Spearman's_rank_correlation_coefficient
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    assert of_ranks(ranks(iq), ranks(hours)) == pytest.approx(-29 / 165)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=4, max_size=40))
def test_what_is_left_beside_a_third_is_the_correlation_of_what_it_does_not_explain(
    rows: list[tuple[float, float, float]],
) -> None:
    one, target, third = (ranks([row[place] for row in rows]) for place in range(3))
    correlations = of_ranks(one, target), of_ranks(one, third), of_ranks(target, third)
    if None in correlations:
        return
    left = beside(*(value for value in correlations if value is not None))
    if left is None:
        return
    rests = [_rest(one, third), _rest(target, third)]
    if min(sum(value**2 for value in rest) for rest in rests) < 1e-3:
        return  # nothing is left but rounding
    assert left == pytest.approx(of_ranks(*rests), abs=1e-6)


def _rest(values: list[float], third: list[float]) -> list[float]:
    """What a straight line by the third leaves of the values."""
    mean, third_mean = sum(values) / len(values), sum(third) / len(third)
    spread = sum((one - third_mean) ** 2 for one in third)
    slope = sum((one - third_mean) * (value - mean) for one, value in zip(third, values, strict=True)) / spread
    return [value - mean - slope * (one - third_mean) for one, value in zip(third, values, strict=True)]


def test_beside_what_explains_everything_nothing_can_be_said() -> None:
    assert beside(0.5, 1.0, 0.5) is None


@given(st.floats(-1, 1), st.integers(4, 10_000))
def test_the_interval_holds_the_value_and_narrows(value: float, pairs: int) -> None:
    rho, more = with_interval(value, pairs), with_interval(value, pairs * 4)
    assert -1 <= rho.low <= rho.value <= rho.high <= 1
    assert more.high - more.low <= rho.high - rho.low


def test_the_interval_of_no_correlation_is_even() -> None:
    rho = with_interval(0.0, 103)
    assert rho.high == -rho.low == pytest.approx(math.tanh(1.96 * 1.03 / 10))


def test_fifths_go_from_the_lowest_to_the_highest() -> None:
    values = [float(value) for value in range(10)]
    assert medians_of_fifths(values, [value * 10 for value in values]) == (5, 25, 45, 65, 85)
    assert medians_of_fifths([3, 1, 2], [30, 10, 20]) == (10, 20, 30)
