import pytest

from extproc.sim.saturation import capacity_per_s
from extproc.sim.steptime import StepCost
from extproc.sim.traces import Arrival
from extproc.sim.workloads import generated
from tests.sim.fleets import fleet

SECOND = StepCost(1.0, 0.0, 0.0, 0.0, 0.0)
"""Every step lasts a second."""


def capacity(requests: int, group: dict[str, object]) -> float:
    return capacity_per_s(generated("conv", requests, 1), fleet(group), StepCost())


def test_it_is_what_can_be_computed() -> None:
    # Each request takes 10 steps of a second, 64 are in flight at each of two nodes.
    arrivals = [Arrival(0.0, 100, 10) for _ in range(2000)]
    assert capacity_per_s(arrivals, fleet({"count": 2}), SECOND) == pytest.approx(12.8, rel=0.1)


def test_fewer_requests_are_sent_fewer_at_a_time() -> None:
    arrivals = [Arrival(0.0, 100, 10) for _ in range(16)]
    assert capacity_per_s(arrivals, fleet({}), SECOND) == pytest.approx(0.2, rel=0.2)


def test_twice_the_nodes_and_twice_the_speed_serve_twice_as_much() -> None:
    one = capacity(1200, {})
    assert capacity(2400, {"count": 2}) == pytest.approx(2 * one, rel=0.1)
    assert capacity(1200, {"speed": 2.0}) == pytest.approx(2 * one, rel=0.01)


def test_faults_joins_and_leaves_are_left_out() -> None:
    planned = {"faults": [{"kind": "hang", "at_s": 1, "for_s": 100}], "joins_at_s": 5, "leaves_at_s": 6}
    assert capacity(600, planned) == capacity(600, {})


def test_when_requests_come_does_not_count() -> None:
    late = [Arrival(index * 100.0, 100, 10) for index in range(100)]
    at_once = [Arrival(0.0, 100, 10) for _ in range(100)]
    assert capacity_per_s(late, fleet({}), SECOND) == capacity_per_s(at_once, fleet({}), SECOND)


def test_prompts_that_are_shared_go_where_they_are_cached() -> None:
    """Eight long prompts, each asked for again and again: one node's cache holds one of them, five, or all."""
    arrivals = [Arrival(0.0, 6500, 5, tuple(range(which * 1000, which * 1000 + 100))) for which in list(range(8)) * 60]
    one, five, every = (
        capacity_per_s(arrivals, fleet({"count": 2, "kv_blocks": blocks}), StepCost()) for blocks in (700, 2200, 25_000)
    )
    assert every > 3 * one
    assert five > 0.9 * every


def test_long_requests_are_cut_as_in_the_simulation() -> None:
    assert capacity_per_s([Arrival(0.0, 100_000, 10) for _ in range(20)], fleet({"kv_blocks": 65}), SECOND) > 0
