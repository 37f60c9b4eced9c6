"""Small makers for tests of the simulation: arrivals and setups in one line."""

from typing import Any

from extproc.core.policy import RoutingPolicy
from extproc.core.snapshot import ServedModel
from extproc.sim import fleetplan
from extproc.sim.fleetplan import FleetPlan
from extproc.sim.pacing import scaled
from extproc.sim.sampling import MODEL
from extproc.sim.simulation import Run, Setup, simulate
from extproc.sim.traces import Arrival
from extproc.sim.workloads import generated

MODEL_LISTED = (ServedModel(MODEL),)


def fleet(*groups: dict[str, Any]) -> FleetPlan:
    """A plan as a fleet file would give it."""
    found = fleetplan.parse({"nodes": list(groups)})
    assert isinstance(found, FleetPlan), found
    return found


def arrivals(requests: int = 100, rate_per_s: float = 6.0, workload: str = "conv", seed: int = 1) -> list[Arrival]:
    """Generated ones at this rate; two nodes serve about 12 conversations a second."""
    return scaled(generated(workload, requests, seed), rate_per_s)


def setup(strategy: str | None = "least-added-delay", **changes: Any) -> Setup:
    """Two equal nodes; no strategy is the reference."""
    policy = None if strategy is None else RoutingPolicy(strategy=strategy)
    return Setup(**({"fleet": fleet({"count": 2}), "policy": policy} | changes))


def run(arriving: list[Arrival], strategy: str | None = "least-added-delay", **changes: Any) -> Run:
    """Simulate it."""
    return simulate(arriving, setup(strategy, **changes))
