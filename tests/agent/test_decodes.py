import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.engines.decodes import TORN_LOOKS, VIOLATIONS_MAX, Drift, count_decodes


class Script:
    """Counts again and again with one drift."""

    def __init__(self) -> None:
        self.drift = Drift()

    def __call__(self, first_tokens: float, finished: float, running: int, waiting: int = 0) -> int | None:
        count, self.drift = count_decodes(
            self.drift, first_tokens=first_tokens, finished=finished, running=running, waiting=waiting
        )
        return count


def test_decodes_are_first_tokens_less_finished_requests_since_the_engine_was_idle() -> None:
    count = Script()
    assert count(0, 0, running=0) == 0
    assert count(3, 0, running=5) == 3
    assert count(6, 2, running=5, waiting=9) == 4


def test_the_offset_is_set_anew_when_the_engine_is_idle() -> None:
    count = Script()
    assert count(12, 5, running=0) == 0  # seven were aborted
    assert count(15, 5, running=4) == 3
    assert count(15, 7, running=4) == 1


def test_an_engine_seen_busy_first_counts_from_its_own_start() -> None:
    assert Script()(9, 1, running=8, waiting=16) == 8


def test_too_many_decodes_are_clamped_to_running_and_move_the_offset() -> None:
    count = Script()
    assert [count(10, 0, running=8) for _ in range(TORN_LOOKS)] == [8] * TORN_LOOKS
    assert count(10, 2, running=8) == 6  # counted from the bound, no longer from zero


def test_too_few_decodes_are_clamped_to_zero_and_move_the_offset() -> None:
    count = Script()
    assert count(0, 0, running=0) == 0
    assert [count(1, 4, running=3) for _ in range(TORN_LOOKS)] == [0] * TORN_LOOKS  # three pooling requests
    assert count(3, 4, running=3) == 2


def test_the_offset_moves_by_the_least_that_was_too_many() -> None:
    count = Script()
    assert count(20, 0, running=8) == 8
    assert count(13, 0, running=8) == 8
    assert count(13, 2, running=8) == 6


def test_preempted_requests_wait_again_without_any_drift() -> None:
    count = Script()
    assert count(19, 0, running=19, waiting=13) == 19
    for preempted in range(1, 7):  # one look after another finds one more that waits
        assert count(19, 0, running=19 - preempted, waiting=13 + preempted) == 19 - preempted
    assert count(19, 11, running=8, waiting=13) == 8  # all came back or ended
    assert count(23, 11, running=20) == 12  # counted from zero all the time


def test_more_past_their_first_token_than_requests_are_drift() -> None:
    count = Script()
    assert [count(10, 0, running=4, waiting=6) for _ in range(3)] == [4] * 3
    assert [count(11, 0, running=4, waiting=6) for _ in range(TORN_LOOKS)] == [4] * TORN_LOOKS
    assert count(11, 2, running=4, waiting=6) == 2  # counted from the bound


def test_a_torn_page_moves_no_offset() -> None:
    count = Script()
    assert count(6, 0, running=6) == 6
    assert count(14, 0, running=6) == 6  # gauges of the step before
    assert count(14, 0, running=15, waiting=13) == 14
    assert count(14, 9, running=5) == 5
    assert count(14, 10, running=3) == 3  # torn again: no two in a row
    assert count(14, 10, running=4) == 4


def test_out_of_bounds_on_both_sides_in_turn_moves_no_offset() -> None:
    count = Script()
    for _ in range(3 * VIOLATIONS_MAX):
        assert count(14, 0, running=6) == 6
        assert count(1, 4, running=6) == 0
    assert count(10, 5, running=6) == 5


def test_a_gauge_that_says_0_while_tokens_are_made_moves_no_offset() -> None:
    drift = Drift()
    count, drift = count_decodes(drift, first_tokens=6, finished=0, running=6, waiting=0)
    assert count == 6
    for _ in range(6):
        count, drift = count_decodes(drift, first_tokens=6, finished=0, running=0, waiting=0, rested=False)
        assert count == 0
    count, drift = count_decodes(drift, first_tokens=7, finished=1, running=6, waiting=0)
    assert count == 6


def test_a_torn_page_of_an_idle_engine_moves_no_offset() -> None:
    count = Script()
    assert count(7, 7, running=0) == 0
    assert count(12, 7, running=0) == 0  # five have begun, which the gauges do not show yet
    assert count(12, 7, running=5) == 5
    assert count(12, 12, running=0) == 0
    assert [count(15, 12, running=0) for _ in range(2)] == [0, 0]  # shown twice: three came and were aborted
    assert count(17, 12, running=4) == 2


def test_after_repeated_violations_the_count_is_absent_until_the_engine_is_idle() -> None:
    count = Script()
    counts = [
        [count(10.0 * step, 0, running=5) for _ in range(TORN_LOOKS)][-1] for step in range(1, VIOLATIONS_MAX + 1)
    ]
    assert counts == [5] * (VIOLATIONS_MAX - 1) + [None]
    assert count(10.0 * VIOLATIONS_MAX, 0, running=5) is None  # within the bounds, and still not believed
    assert count(1000, 0, running=0, waiting=1) is None
    assert count(1000, 0, running=0) == 0
    assert count(1002, 0, running=5) == 2


@pytest.mark.parametrize("idle_between", [True, False])
def test_violations_are_counted_between_idle_moments_only(idle_between: bool) -> None:
    count = Script()
    last: int | None = 0
    for step in range(1, 10):
        for _ in range(TORN_LOOKS):
            last = count(10.0 * step, 0, running=5)
        if idle_between:
            count(10.0 * step, 0, running=0)
    assert last == (5 if idle_between else None)


@given(
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9),
    st.integers(0, VIOLATIONS_MAX),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 1000),
    st.integers(0, 1000),
)
def test_the_count_is_always_within_the_batch(
    offset: float, violations: int, first: int, finished: int, running: int, waiting: int
) -> None:
    count, _ = count_decodes(
        Drift(offset, violations), first_tokens=first, finished=finished, running=running, waiting=waiting
    )
    assert count is None or 0 <= count <= running
