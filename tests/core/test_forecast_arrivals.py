"""What came lately, the line through it and how it spreads."""

import sys
from math import fsum
from random import Random
from statistics import variance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.arrivals import SPREAD_S, YOUNG_S, Arrivals, Lately, course_of
from extproc.core.capacity import SPANS_S


def counted(one: Lately) -> tuple[float, float]:
    return fsum(one.sequences), fsum(one.uncached_tokens)


def test_whole_seconds_before_this_one_count() -> None:
    arrivals = Arrivals(64, 1000.0, 0.0)
    arrivals.add(1, 10, 30, 99.2)
    arrivals.add(2, 5, 50, 99.9)
    arrivals.add(1, 7, 7, 100.0)
    found = arrivals.lately(100.5)
    assert (found.sequences[-1], found.uncached_tokens[-1], found.prompt_tokens) == (3, 15, 80)
    assert counted(found) == (3, 15)
    assert len(found.sequences) == 64


def test_what_is_older_than_the_window_is_gone() -> None:
    arrivals = Arrivals(64, 1000.0, 0.0)
    arrivals.add(1, 10, 10, 100.0)
    assert counted(arrivals.lately(164.0)) == (1, 10)
    assert counted(arrivals.lately(165.0)) == (0, 0)
    assert not arrivals.idle(164.0)
    assert arrivals.idle(100.0 + 64 + SPREAD_S + 1)


def test_soon_after_the_start_there_are_no_seconds_before_it() -> None:
    arrivals = Arrivals(64, 1000.0, 50.0)
    arrivals.add(1, 10, 10, 50.0)
    assert len(arrivals.lately(51.0).sequences) == YOUNG_S
    assert len(arrivals.lately(90.0).sequences) == 40
    assert counted(arrivals.lately(51.0)) == (1, 10)


def test_a_long_prompt_counts_over_the_seconds_in_which_it_is_computed() -> None:
    arrivals = Arrivals(200, 1000.0, 0.0)
    arrivals.add(1, 3500, 3500, 300.0)
    assert counted(arrivals.lately(301.0)) == (1, 1000)
    assert list(arrivals.lately(310.0).uncached_tokens)[-10:] == [1000, 1000, 1000, 500, 0, 0, 0, 0, 0, 0]
    arrivals.add(1, 1_000_000, 1, 400.0)
    found = arrivals.lately(400.0 + SPREAD_S + 1)
    assert found.uncached_tokens[-1] == 1_000_000 - SPREAD_S * 1000, "the rest stands in the last second"


@given(
    st.integers(64, 300),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 20_000)), min_size=1, max_size=60),
    st.integers(0, 500),
)
def test_it_counts_as_a_list_of_all_would(window_s: int, came: list[tuple[int, int]], later_s: int) -> None:
    arrivals, pace = Arrivals(window_s, 500.0, 0.0), 500
    each: dict[int, float] = {}
    second = 1000
    for gap_s, tokens in came:
        second += gap_s
        arrivals.add(1, tokens, tokens, float(second))
        left = tokens
        for place in range(SPREAD_S):
            share = min(left, pace)
            each[second + place] = each.get(second + place, 0) + share
            left -= share
        each[second + SPREAD_S] = each.get(second + SPREAD_S, 0) + left
    now = second + later_s
    found = arrivals.lately(float(now))
    assert list(found.uncached_tokens) == [each.get(one, 0) for one in range(now - window_s, now)]


def test_memory_does_not_grow_with_what_comes() -> None:
    def size(arrivals: Arrivals) -> int:
        return sum(sys.getsizeof(getattr(arrivals, name)) for name in Arrivals.__slots__)

    arrivals, chance = Arrivals(512, 1000.0, 0.0), Random(1)
    before = size(arrivals)
    for second in range(20_000):
        arrivals.add(1, int(chance.random() * 100_000), 10, float(second))
    assert size(arrivals) == before < 20_000


def test_a_constant_load_has_no_slope_and_does_not_spread() -> None:
    course = course_of([3.0] * 512)
    assert course.level == pytest.approx(3)
    assert course.slope == 0
    assert course.variances == pytest.approx((0,) * len(SPANS_S))
    assert course.peaks == tuple(3 * span_s for span_s in SPANS_S)


def test_a_line_is_found_and_is_no_burst() -> None:
    course = course_of([1 + 0.01 * second for second in range(512)])
    assert course.slope == pytest.approx(0.01)
    assert course.level == pytest.approx(1 + 0.01 * 512, rel=0.001)
    assert course.variances == pytest.approx((0,) * len(SPANS_S), abs=0.01)
    falling = course_of([6 - 0.01 * second for second in range(512)])
    assert falling.slope == pytest.approx(-0.01)
    assert falling.level == pytest.approx(0.88, abs=0.01)


def test_without_a_trend_the_variances_are_those_of_sums_over_each_span() -> None:
    chance = Random(5)
    work = [chance.expovariate(1.0) for _ in range(512)]
    course = course_of(work)
    assert course.slope == 0
    for span_s, found in zip(SPANS_S, course.variances, strict=True):
        sums = [fsum(work[place : place + span_s]) for place in range(0, 512, span_s)]
        assert found == pytest.approx(variance(sums))


@pytest.mark.parametrize(("seconds", "spans"), [(1, 0), (3, 0), (4, 1), (16, 3), (255, 6), (256, 7)])
def test_a_span_counts_once_there_are_enough_of_them(seconds: int, spans: int) -> None:
    course = course_of([1.0] * seconds)
    assert len(course.variances) == len(course.peaks) == spans


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=600))
def test_a_course_is_never_under_nothing(work: list[float]) -> None:
    course = course_of(work)
    assert course.level >= 0
    assert all(one >= 0 for one in course.variances)
