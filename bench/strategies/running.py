"""Runs of cases over processes, and how their figures are kept."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from bench.strategies.cases import SETTINGS, Case, source
from extproc.core.settings import Fault
from extproc.sim import fleetplan, processpool, workloads
from extproc.sim.comparison import contender
from extproc.sim.fleetplan import PLANS, FailureKind, FleetPlan, NodeFailure
from extproc.sim.measures import Measures
from extproc.sim.pacing import scaled
from extproc.sim.saturation import REQUESTS_PER_NODE, capacity_per_s
from extproc.sim.simulation import Setup, simulate
from extproc.sim.steptime import StepCost
from extproc.sim.traces import Arrival

NODES: Final = 8
FAILING_PLACE: Final = 2
"""Of the node that fails: one like most others."""
FAILS_AT_S: Final = 60.0
FAILS_FOR_S: Final = 20.0
SLOW_FACTOR: Final = 5.0
CHUNK: Final = 12
"""Cases that a process takes at a time: figures come in bit by bit, and no process works long after the others."""


class Figures(Struct, frozen=True):
    """A case and what came of it."""

    case: Case
    capacity_per_s: float
    """Of the fleet, measured with this seed."""
    measures: Measures


class Kept(Struct, frozen=True):
    """The file of figures."""

    figures: list[Figures]


def read(path: Path) -> dict[Case, Figures] | Fault:
    """The figures in a file, or what is wrong with it."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    except (OSError, ValueError) as error:
        return Fault(str(path), "figures as --json writes them", str(error))
    return {one.case: one for one in kept.figures}


def write(path: Path, figures: Iterable[Figures]) -> None:
    """Keep figures, one on a line."""
    lines = ",\n".join(msgspec.json.encode(one).decode() for one in figures)
    path.write_text(f'{{"figures": [\n{lines}\n]}}\n')


def run(
    cases: Iterable[Case],
    traces: Path | None,
    jobs: int,
    known: Mapping[Case, Figures],
    progress: Callable[[dict[Case, Figures], int], None],
) -> dict[Case, Figures]:
    """The figures of all cases, the known among them; `progress` is told them so far, and how many there will be.

    The order of the cases and the number of processes change nothing.
    """
    wanted = dict.fromkeys(cases)
    figures = {case: known[case] for case in wanted if case in known}
    # Those that share arrivals and capacity go together.
    groups: dict[tuple[str, int, int, int | None], list[Case]] = {}
    for case in wanted:
        if case not in figures:
            groups.setdefault((case.setting, case.requests, case.seed, case.kv_blocks), []).append(case)
    progress(figures, len(wanted))
    if groups:
        with processpool.of(jobs) as pool:
            chunks = [
                group[first : first + CHUNK] for group in groups.values() for first in range(0, len(group), CHUNK)
            ]
            futures = [pool.submit(together, chunk, traces) for chunk in chunks]
            for future in as_completed(futures):
                figures |= {one.case: one for one in future.result()}
                progress(figures, len(wanted))
    return {case: figures[case] for case in wanted}


def together(cases: Sequence[Case], traces: Path | None) -> list[Figures]:
    """The figures of cases of one setting, one seed, one number of requests and one of KV blocks.

    Arrivals, capacity and seeds are those of `extproc simulate`, whose figures for the same case are the same.
    """
    first = cases[0]
    setting = SETTINGS[first.setting]
    trace = source(setting, traces)
    assert trace is not None, "it was at hand"
    healthy = _fleet(setting.nodes, first.kv_blocks)
    wanted = max(first.requests, REQUESTS_PER_NODE * NODES)
    capacity = capacity_of(trace, wanted, first.seed, setting.nodes, first.kv_blocks)
    arrivals = arrivals_of(trace, first.requests, first.seed)
    return [Figures(case, capacity, _run(case, arrivals, capacity, healthy)) for case in cases]


def _run(case: Case, arrivals: list[Arrival], capacity: float, healthy: FleetPlan) -> Measures:
    entrant = contender(case.strategy, {})
    assert not isinstance(entrant, list), f"it is a strategy: {entrant}"
    setup = Setup(
        fleet=healthy if case.fault is None else failing(healthy, FailureKind(case.fault)),
        policy=entrant.policy,
        routers=case.routers,
        snapshot_interval_s=case.snapshot_interval_s,
        first_tokens=case.first_tokens,
        kv_events=case.kv_events,
        exchange=case.exchange,
        seed=case.seed,
    )
    return simulate(scaled(arrivals, case.load * capacity), setup).measures


def failing(healthy: FleetPlan, kind: FailureKind) -> FleetPlan:
    """The same fleet with a node that fails for a while."""
    factor = SLOW_FACTOR if kind is FailureKind.SLOW else None
    fault = NodeFailure(kind=kind, at_s=FAILS_AT_S, for_s=FAILS_FOR_S, factor=factor)
    nodes = list(healthy.nodes)
    nodes[FAILING_PLACE] = replace(nodes[FAILING_PLACE], faults=(fault,))
    return FleetPlan(tuple(nodes))


def _fleet(nodes: str, kv_blocks: int | None) -> FleetPlan:
    """A plan of `NODES` nodes, or so many equal ones with other caches."""
    if kv_blocks is None:
        return PLANS[nodes][1](NODES)
    found = fleetplan.parse({"nodes": [{"count": NODES, "kv_blocks": kv_blocks}]})
    assert isinstance(found, FleetPlan), f"it is a fleet: {found}"
    return found


@lru_cache(maxsize=1)
def capacity_of(trace: str, requests: int, seed: int, nodes: str, kv_blocks: int | None = None) -> float:
    """What a plan of `NODES` nodes serves of a trace, in requests per second; of the latest one it is remembered."""
    return capacity_per_s(arrivals_of(trace, requests, seed), _fleet(nodes, kv_blocks), StepCost())


@lru_cache(maxsize=2)
def arrivals_of(trace: str, requests: int, seed: int) -> list[Arrival]:
    """Those of a trace that can be read; of the latest two they are remembered."""
    found = workloads.arrivals(trace, requests, seed)
    assert not isinstance(found, Fault), f"it was readable: {found}"
    return found
