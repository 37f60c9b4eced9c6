"""Capacities that are simulated once: half of what a small comparison costs, and the same for the same arrivals."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import pytest

from extproc.sim import comparison, saturation
from extproc.sim.fleetplan import FleetPlan
from extproc.sim.steptime import StepCost
from extproc.sim.traces import Arrival

_FOUND: dict[tuple[bytes, FleetPlan, StepCost], float] = {}


def _capacity_per_s(arrivals: Sequence[Arrival], fleet: FleetPlan, cost: StepCost) -> float:
    asked = (msgspec.msgpack.encode(arrivals), fleet, cost)
    if asked not in _FOUND:
        _FOUND[asked] = saturation.capacity_per_s(arrivals, fleet, cost)
    return _FOUND[asked]


@contextmanager
def kept() -> Iterator[None]:
    """For comparisons within this process; its children simulate for themselves, and find the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "capacity_per_s", _capacity_per_s)
        yield
