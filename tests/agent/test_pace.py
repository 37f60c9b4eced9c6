from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.engines.reading import EngineReading
from extproc.agent.pace import Pace
from extproc.agent.settings import IDLE_INTERVAL_S_MAX
from extproc.agent.watch import Sighting
from extproc.core.snapshot import NodeState, ServedModel

IDLE = EngineReading(requests_running=0, requests_waiting=0, first_tokens_total=7)
LOOK_S = 0.01


def sighting(reading: EngineReading = IDLE, sampled_at_s: float = 1e9, **changes: object) -> Sighting:
    seen = Sighting(NodeState.READY, None, (ServedModel("m"),), None, reading, sampled_at_s, generation=0)
    return replace(seen, **changes)  # type: ignore[arg-type]


def gaps(pace: Pace, *seen: Sighting, began_s: float = 1000.0) -> list[float]:
    """How long after the beginning of each look, which begin on time, the next one is due."""
    lengths = []
    for one in seen:
        next_s = pace.next_s(one, began_s)
        lengths.append(round(next_s - began_s, 6))
        began_s = next_s
    return lengths


def test_an_idle_engine_is_looked_at_seldom_after_two_looks_that_show_the_same() -> None:
    assert gaps(Pace("n", 1.0, 2.0), *[sighting()] * 4)[1:] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "other",
    [
        sighting(replace(IDLE, requests_running=1)),
        sighting(replace(IDLE, requests_waiting=1)),
        sighting(replace(IDLE, requests_running=None)),
        sighting(replace(IDLE, requests_waiting=None)),
        sighting(replace(IDLE, first_tokens_total=8)),
        sighting(state=NodeState.LOADING),
        sighting(models=()),
        sighting(models_fault="x"),
        sighting(generation=1),
        sighting(sampled_at_s=5.0),
    ],
)
def test_whatever_changes_fails_or_is_unknown_brings_the_short_interval_back(other: Sighting) -> None:
    assert gaps(Pace("n", 1.0, 2.0), sighting(), sighting(), other, sighting(), sighting())[1:] == [2, 1, 1, 2]


@pytest.mark.parametrize(
    ("interval_s", "idle_interval_s", "idle_gap_s"),
    [(1.0, 2.0, 2.0), (0.1, 2.0, 2.0), (0.7, 2.0, 1.4), (3.0, 2.0, 3.0), (60.0, 2.0, 60.0), (1.0, 0.02, 1.0)],
)
def test_an_idle_interval_is_whole_intervals_one_at_least(
    interval_s: float, idle_interval_s: float, idle_gap_s: float
) -> None:
    assert gaps(Pace("n", interval_s, idle_interval_s), *[sighting()] * 3)[-1] == idle_gap_s


def test_engines_are_spread_over_the_interval_each_at_its_own_moment() -> None:
    places = []
    for number in range(64):
        busy = sighting(replace(IDLE, requests_running=1))
        next_s = Pace(f"gpu-{number}", 1.0, 2.0).next_s(busy, 1000.0)
        places.append(next_s % 1.0)
    tenths = [sum(tenth <= place * 10 < tenth + 1 for place in places) for tenth in range(10)]
    assert max(tenths) <= 16
    assert min(tenths) >= 1


@given(
    st.floats(0.02, 60),
    st.floats(0.02, IDLE_INTERVAL_S_MAX),
    st.lists(st.tuples(st.booleans(), st.floats(0, 3)), max_size=12),
    st.floats(0, 1e7),
    st.text(max_size=5),
)
def test_no_look_is_left_out_for_longer_than_may_be(
    interval_s: float, idle_s: float, looks: list[tuple[bool, float]], began_s: float, name: str
) -> None:
    pace = Pace(name, interval_s, idle_s)
    for idle, took_s in looks:
        next_s = pace.next_s(sighting() if idle else sighting(state=NodeState.LOADING), began_s)
        slack = 1e-6 * (1 + interval_s)
        longest_s = max(interval_s, idle_s) + interval_s / 2
        assert interval_s / 2 - slack <= next_s - began_s <= longest_s + slack
        began_s = max(next_s, began_s + took_s)
