"""When falling counters are a restart of the engine, and when they are no counters."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.engines.pagevalues import Look, restarted

COUNTS = {("a", ""): 10.0, ("b", ""): 20.0, ("c", ""): 30.0, ("d", ""): 0.0}


def began_anew(
    now: Mapping[str, float], started_at_s: float | None = None, started_before_s: float | None = None
) -> bool:
    counters = COUNTS | {(name, ""): value for name, value in now.items()}
    return restarted(started_at_s, counters, Look(started_before_s, COUNTS))


@pytest.mark.parametrize(
    ("now", "is_restart"),
    [
        ({}, False),
        ({"a": 9}, False),
        ({"a": 0, "b": 0}, True),
        ({"a": 9, "b": 19, "c": 29}, True),
        ({"a": 9, "c": 10**9, "b": 25}, False),
        ({"a": 10.0 * (1 - 1e-6), "b": 20.0 * (1 - 1e-6), "c": 30.0 * (1 - 1e-6)}, False),
        ({"a": float("nan"), "b": float("nan"), "c": float("nan")}, False),
    ],
)
def test_without_a_process_start_most_of_those_that_moved_must_have_fallen(
    now: dict[str, float], is_restart: bool
) -> None:
    assert began_anew(now) == is_restart
    assert began_anew(now, started_at_s=5.0) == is_restart, "it was not known before"
    assert began_anew(now, started_before_s=5.0) == is_restart, "it is not known any more"


@given(st.dictionaries(st.sampled_from("abcd"), st.floats(0, 100)))
def test_the_process_start_decides_where_it_is_known(now: dict[str, float]) -> None:
    assert not began_anew(now, 5.0, 5.0)
    assert began_anew(now, 5.5, 5.0)


def test_a_single_counter_speaks_for_itself_and_a_first_look_for_nobody() -> None:
    before = Look(counters={("a", ""): 5.0})
    assert restarted(None, {("a", ""): 4.0}, before)
    assert not restarted(None, {("a", ""): 6.0}, before)
    assert not restarted(None, {}, before), "it is missing"
    assert not restarted(5.0, {("a", ""): 4.0}, None)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=8), st.integers(0, 10**7))
def test_six_digits_of_counters_that_rise_are_no_restart(values: list[int], more: int) -> None:
    def rounded(by: int) -> dict[tuple[str, str], float]:
        return {(str(place), ""): float(f"{value + by:.6g}") for place, value in enumerate(values)}

    assert not restarted(None, rounded(more), Look(counters=rounded(0)))
