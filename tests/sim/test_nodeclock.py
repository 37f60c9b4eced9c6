from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.fleetplan import FailureKind, NodeFailure
from extproc.sim.nodeclock import NodeClock


def failure(kind: FailureKind, at_s: float, for_s: float, factor: float | None = None) -> NodeFailure:
    return NodeFailure(kind=kind, at_s=at_s, for_s=for_s, factor=factor)


CLOCK = NodeClock(
    [
        failure(FailureKind.SLOW, 10.0, 20.0, 5.0),
        failure(FailureKind.ERROR, 40.0, 5.0),
        failure(FailureKind.HANG, 50.0, 100.0),
    ]
)


@pytest.mark.parametrize(
    ("at_s", "own_s", "pace"),
    [
        (-5.0, -5.0, 1.0),
        (0.0, 0.0, 1.0),
        (10.0, 10.0, 0.2),
        (20.0, 12.0, 0.2),
        (30.0, 14.0, 1.0),
        (42.0, 26.0, 1.0),
        (50.0, 34.0, 0.0),
        (149.0, 34.0, 0.0),
        (150.0, 34.0, 1.0),
        (160.0, 44.0, 1.0),
    ],
)
def test_the_time_of_an_engine_goes_slower_and_stands_still(at_s: float, own_s: float, pace: float) -> None:
    assert CLOCK.own_s(at_s) == pytest.approx(own_s)
    assert CLOCK.pace(at_s) == pytest.approx(pace)


@pytest.mark.parametrize(("own_s", "at_s"), [(-5.0, -5.0), (12.0, 20.0), (34.0, 50.0), (34.5, 150.5), (44.0, 160.0)])
def test_what_is_due_while_it_stands_still_happens_afterwards(own_s: float, at_s: float) -> None:
    assert CLOCK.at_s(own_s) == pytest.approx(at_s)


def test_without_faults_both_times_are_the_same_to_the_last_bit() -> None:
    clock = NodeClock()
    assert [clock.own_s(at_s) for at_s in (-0.1, 0.1, 1e9 / 3)] == [-0.1, 0.1, 1e9 / 3]
    assert [clock.at_s(at_s) for at_s in (-0.1, 0.1, 1e9 / 3)] == [-0.1, 0.1, 1e9 / 3]


@st.composite
def clocks(draw: st.DrawFn) -> NodeClock:
    faults, at_s = [], 0.0
    for _ in range(draw(st.integers(0, 5))):
        at_s += draw(st.floats(0, 100))
        kind = draw(st.sampled_from(FailureKind))
        for_s = draw(st.floats(0.001, 100))
        factor = draw(st.floats(1.001, 1000)) if kind is FailureKind.SLOW else None
        faults.append(failure(kind, at_s, for_s, factor))
        at_s += for_s
    return NodeClock(faults)


@given(clock=clocks(), times=st.lists(st.floats(-100, 1000), min_size=2))
def test_neither_time_runs_backwards_and_one_gives_the_other_back(clock: NodeClock, times: list[float]) -> None:
    ordered = sorted(times)
    passed_s = [after - before for before, after in pairwise(ordered)]
    own = [clock.own_s(at_s) for at_s in ordered]
    own_passed_s = [after - before for before, after in pairwise(own)]
    assert all(-1e-9 <= lived <= passed + 1e-9 for lived, passed in zip(own_passed_s, passed_s, strict=True))
    for own_s in own:
        assert clock.own_s(clock.at_s(own_s)) == pytest.approx(own_s, abs=1e-6)
