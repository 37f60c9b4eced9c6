import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.correlate.ranks import BLOCKS, PAIRS_MIN, beside, groups, medians_of_fifths, ranks, rho

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False) | st.integers(0, 5).map(float)
LISTS = st.lists(NUMBERS, min_size=2, max_size=40)
ENOUGH = st.integers(PAIRS_MIN, 50)


def columns(count: int) -> st.SearchStrategy[list[list[float]]]:
    """So many lists of the same length."""
    return ENOUGH.flatmap(
        lambda pairs: st.lists(st.lists(NUMBERS, min_size=pairs, max_size=pairs), min_size=count, max_size=count)
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], []), ([5.0], [0]), ([3, 1, 2], [1, -1, 0]), ([1, 1, 2], [-0.5, -0.5, 1]), ([7, 7, 7], [0, 0, 0])],
)
def test_equal_values_share_the_mean_of_their_places(values: list[float], expected: list[float]) -> None:
    assert ranks(values) == expected


@given(LISTS)
def test_ranks_keep_the_order_and_their_sum_is_0(values: list[float]) -> None:
    found = ranks(values)
    assert sum(found) == 0
    for one, place in zip(values, found, strict=True):
        below = sum(other < one for other in values)
        same = values.count(one)
        assert place == below + (same - 1) / 2 - (len(values) - 1) / 2


@given(columns(2))
def test_it_is_pearsons_correlation_of_ranks(lists: list[list[float]]) -> None:
    one, other = map(ranks, lists)
    found = rho(one, other)
    if len(set(lists[0])) == 1 or len(set(lists[1])) == 1:
        assert found is None
    else:
        assert found is not None
        assert found.value == pytest.approx(statistics.correlation(one, other))
        assert -1 <= found.low <= found.value <= found.high <= 1


@given(st.lists(NUMBERS, min_size=PAIRS_MIN, max_size=40))
def test_what_rises_together_is_1_and_what_falls_is_minus_1(values: list[float]) -> None:
    found = rho(ranks(values), ranks([value * 3 for value in values]))
    fallen = rho(ranks(values), ranks([-value for value in values]))
    if len(set(values)) == 1:
        assert found is fallen is None
    else:
        assert found is not None
        assert fallen is not None
        assert found.value == pytest.approx(1)
        assert fallen.value == pytest.approx(-1)


def test_a_published_example() -> None:
    # IQ and hours of television of ten people: https://en.wikipedia.org/wiki/Spearman's_rank_correlation_coefficient
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    found = rho(ranks(iq * 2), ranks(hours * 2))
    assert found is not None
    assert found.value == pytest.approx(-29 / 165)


@given(columns(3))
def test_what_is_left_beside_a_third_is_the_correlation_of_what_it_does_not_explain(lists: list[list[float]]) -> None:
    one, target, third = map(ranks, lists)
    if 1 in {len(set(values)) for values in lists}:
        return
    left = rho(one, target, third)
    rests = [_rest(one, third), _rest(target, third)]
    if min(sum(value**2 for value in rest) for rest in rests) < 1e-3:
        return  # nothing is left but rounding
    assert left is not None
    assert left.value == pytest.approx(statistics.correlation(*rests), abs=1e-6)
    assert -1 <= left.low <= left.value <= left.high <= 1


def _rest(values: list[float], third: list[float]) -> list[float]:
    """What a straight line by the third leaves of the values."""
    fitted = statistics.linear_regression(third, values)
    return [value - fitted.intercept - fitted.slope * one for one, value in zip(third, values, strict=True)]


def test_beside_what_explains_everything_nothing_can_be_said() -> None:
    assert beside(0.5, 1.0, 0.5) is None
    up, chance = ranks(range(40)), random.Random(1)
    assert rho(up, ranks([chance.random() for _ in up]), up) is None


def test_a_third_that_never_changes_is_fixed_as_it_is() -> None:
    chance = random.Random(1)
    one, other = (ranks([chance.random() for _ in range(60)]) for _ in range(2))
    assert rho(one, other, [0.0] * 60) == rho(one, other)


def _recording(chance: random.Random, requests: int, stays: float) -> list[float]:
    """A number that keeps so much of itself from one request to the next."""
    value, found = chance.gauss(0, 1), []
    for _ in range(requests):
        value = stays * value + math.sqrt(1 - stays**2) * chance.gauss(0, 1)
        found.append(value)
    return found


@pytest.mark.parametrize("stays", [0.0, 0.9])
def test_the_interval_holds_what_is_true_in_most_recordings_even_where_requests_are_like_those_before(
    stays: float,
) -> None:
    chance, held = random.Random(7), 0
    for _ in range(200):
        found = rho(*(ranks(_recording(chance, 400, stays)) for _ in range(2)))
        assert found is not None
        held += found.low <= 0 <= found.high
    assert 180 <= held <= 198, "about 95 of 100; a formula for independent pairs holds it in 101 of 200 at 0.9"


def test_more_requests_make_it_narrower() -> None:
    chance = random.Random(3)
    widths = []
    for requests in (100, 6400):
        found = rho(*(ranks(_recording(chance, requests, 0.0)) for _ in range(2)))
        assert found is not None
        widths.append(found.high - found.low)
    assert 4 < widths[0] / widths[1] < 16


@pytest.mark.parametrize(("rushes", "sure"), [(1, False), (4, True)])
def test_what_one_rush_alone_shows_is_not_sure(rushes: int, sure: bool) -> None:
    chance = random.Random(1)
    queue = [0.0] * 400
    for rush in range(rushes):
        begin = rush * 100 + 45
        queue[begin : begin + 10] = [float(place) for place in range(1, 11)]
    found = rho(ranks(queue), ranks([one + chance.random() for one in queue]))
    assert found is not None
    assert found.value > 0.1
    assert (found.low > 0) is sure


def test_there_are_no_more_stretches_than_pairs() -> None:
    assert BLOCKS <= PAIRS_MIN


def test_fifths_go_from_the_lowest_to_the_highest() -> None:
    values = [float(value) for value in range(10)]
    assert medians_of_fifths(values, [value * 10 for value in values]) == (5, 25, 45, 65, 85)
    assert medians_of_fifths([3, 1, 2], [30, 10, 20]) == (10, 20, 30)


@pytest.mark.parametrize(
    ("values", "sizes"),
    [
        ([0.0] * 90 + [1.0] * 10, [90, 10]),
        ([0.0] * 10 + [1.0] * 90, [10, 90]),
        ([0.0] * 45 + [1.0] * 55, [45, 55]),
        ([5.0] * 10, [10]),
    ],
)
def test_equal_values_are_in_one_part(values: list[float], sizes: list[int]) -> None:
    assert [len(group) for group in groups(values)] == sizes


@given(st.lists(NUMBERS, min_size=1, max_size=60))
def test_parts_are_all_of_it_in_order(values: list[float]) -> None:
    found = groups(values)
    assert sorted(place for group in found for place in group) == list(range(len(values)))
    ends = [(min(values[place] for place in group), max(values[place] for place in group)) for group in found]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))
    assert len(found) <= 5
