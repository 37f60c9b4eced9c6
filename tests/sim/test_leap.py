import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.counters import Counters, Histogram
from extproc.sim.leap import Leap


def leap_of(steps: int, first_s: float = 1.0, growth_s: float = 0.5, sequences: int = 2) -> Leap:
    return Leap(10.0, first_s, growth_s, steps, sequences, gaps_before_s=0.0)


def test_each_step_is_longer_than_the_one_before_it() -> None:
    leap = leap_of(4)
    assert [leap.end_s(steps) for steps in range(5)] == [10.0, 11.0, 12.5, 14.5, 17.0]
    assert [leap.gap_s(step) for step in range(4)] == [1.0, 1.5, 2.0, 2.5]


@pytest.mark.parametrize(
    ("now_s", "ended"), [(10.0, 0), (10.999, 0), (11.0, 1), (12.499, 1), (12.5, 2), (14.5, 3), (17.0, 4), (1e9, 4)]
)
def test_a_step_has_ended_at_its_end(now_s: float, ended: int) -> None:
    assert leap_of(4).ended_by(now_s) == ended


def test_what_has_ended_is_not_counted_from_the_beginning_again() -> None:
    leap = leap_of(4)
    leap.pass_by(2, Histogram((1.0,)))
    assert [leap.ended_by(now_s) for now_s in (12.5, 14.4, 14.5, 17.0)] == [2, 2, 3, 4]


def test_a_leap_that_is_cut_ends_with_the_step_in_flight() -> None:
    leap = leap_of(4)
    leap.pass_by(1, Histogram((1.0,)))
    leap.cut()
    assert (leap.steps, leap.ended_by(1e9)) == (2, 2)


def test_every_sequence_has_a_gap_in_every_step() -> None:
    gaps = Histogram((1.0, 1.5, 2.25))
    leap_of(9, sequences=3).pass_by(4, gaps)
    assert gaps.in_bucket == [3, 3, 3, 3]
    assert gaps.sum == 3 * (1.0 + 1.5 + 2.0 + 2.5)


def test_gaps_add_to_those_before_it() -> None:
    gaps = Histogram((1.0,))
    gaps.observe(4.0)
    leap = Leap(10.0, 1.0, 0.0, 3, 2, gaps_before_s=gaps.sum)
    leap.pass_by(1, gaps)
    leap.pass_by(1, gaps)
    assert (gaps.in_bucket, gaps.sum) == ([4, 1], 8.0)


@given(st.floats(0, 0.2), st.floats(0, 0.01), st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 9))
def test_a_leap_may_be_passed_in_parts(first_s: float, growth_s: float, parts: list[int], sequences: int) -> None:
    whole, split, single = (Counters().inter_token_latency for _ in range(3))
    steps = sum(parts)
    leap_of(steps + 1, first_s, growth_s, sequences).pass_by(steps, whole)
    leap = leap_of(steps + 1, first_s, growth_s, sequences)
    for part in parts:
        leap.pass_by(part, split)
    for step in range(steps):
        single.observe(leap.gap_s(step), sequences)
    assert split.in_bucket == whole.in_bucket == single.in_bucket
    assert split.sum == whole.sum == pytest.approx(single.sum)


@given(st.floats(0, 0.2), st.floats(0, 0.01), st.integers(1, 200), st.floats(0, 300))
def test_a_step_has_ended_if_its_end_is_not_after_now(
    first_s: float, growth_s: float, steps: int, after_s: float
) -> None:
    leap = leap_of(steps, first_s, growth_s)
    now_s = 10.0 + after_s
    assert leap.ended_by(now_s) == sum(leap.end_s(ended) <= now_s for ended in range(1, steps + 1))
