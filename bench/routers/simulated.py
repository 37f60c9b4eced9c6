"""The same arrivals at the same fleet in simulated time: what a run should give if no part of it lacked a processor."""

from functools import cache
from typing import Final

from bench.routers.requests import NODES, arrivals
from extproc.core.policy import RoutingPolicy
from extproc.sim.exchange import Exchanging
from extproc.sim.fleetplan import PLANS
from extproc.sim.simulation import Setup, simulate

_EXCHANGE: Final = Exchanging(placements=True)


@cache
def ngood(workload: str, requests: int, load: float, seed: int, routers: int, *, exchange: bool) -> float:
    """As `extproc simulate` gives it."""
    setup = Setup(
        fleet=PLANS["even"][1](NODES),
        policy=RoutingPolicy(),
        routers=routers,
        exchange=_EXCHANGE if exchange else None,
        seed=seed,
    )
    return simulate(arrivals(workload, requests, load, seed), setup).measures.ngood
