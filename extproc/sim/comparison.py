"""Strategies side by side: each at each load with each seed is a run of its own, over as many processes as there are.

A seed chooses the arrivals, who wins ties and when agents look; all strategies get the same. What comes out does not
depend on the number of processes.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from extproc import strategytext
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import GOT_CHARS_MAX, BalancerSettings, Fault
from extproc.sim import parallel, processpool, workloads
from extproc.sim.compared import MISSED_MAX, Compared, missed, row
from extproc.sim.exchange import Exchanging
from extproc.sim.fleetevents import Lasted
from extproc.sim.fleetplan import FleetPlan
from extproc.sim.measures import Measures
from extproc.sim.pacing import scaled
from extproc.sim.saturation import REQUESTS_PER_NODE, capacity_per_s
from extproc.sim.simulation import Setup, simulate
from extproc.sim.steptime import StepCost
from extproc.sim.traces import Arrival
from extproc.strategytext import OPTION

REFERENCE: Final = "reference"
"""The look-ahead reference, which no router could be."""
BASELINE: Final = "round-robin"
"""What the others' figures are put in relation to."""
CAPACITY: Final = "capacity"
RUNS: Final = "runs"
"""What `Progress` is told of, in this order."""
STRATEGIES_MAX: Final = 100
LOADS_MAX: Final = 100

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and how much there is."""


class Contender(Struct, frozen=True):
    """A strategy as it takes part."""

    name: str
    policy: RoutingPolicy | None
    """`None`: the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is compared."""

    trace: str
    """As `workloads.arrivals` takes it; must be readable."""
    requests: int
    trace_requests: int | None = None
    """What a trace's file has: if less, it is repeated; `None`: it is generated, or nobody looked."""
    fleet: FleetPlan
    contenders: tuple[Contender, ...]
    loads: tuple[float, ...]
    """Shares of the capacity; over 1 is overload."""
    seeds: int
    routers: int = 1
    exchange: Exchanging | None = None
    snapshot_interval_s: float = 1.0
    first_tokens: bool = False
    kv_events: bool = False
    lost_share: float = 0.0
    delay_s: float = 0.001
    settings: BalancerSettings = field(default_factory=BalancerSettings)
    cost: StepCost = field(default_factory=StepCost)
    priorities: Mapping[str, str] = field(default_factory=dict)
    """Classes of the settings for kinds of arrivals, see `Setup.priorities`."""


class _Task(Struct, frozen=True):
    contender: int
    load: float
    rate_per_s: float
    seed: int


class _Ran(Struct, frozen=True):
    measures: Measures
    lasted: Lasted
    cut: int


def contender(text: str, base: Mapping[str, Any]) -> Contender | list[Fault]:
    """A strategy by its name, or as `least-added-delay:first_token_weight=4` with settings of its policy.

    `base` is the mapping of a policy for what the text does not set.
    """
    name, *settings = text.split(":")
    if name == REFERENCE:
        if settings:
            return [Fault(OPTION, f"{REFERENCE} without settings", repr(text)[:GOT_CHARS_MAX])]
        return Contender(text, None)
    policy = strategytext.policy_of(text, base, REFERENCE)
    return policy if isinstance(policy, list) else Contender(text, policy)


def compare(comparison: Comparison, jobs: int, progress: Progress) -> Compared:
    """Run it all on so many processes; with one, in this one."""
    if jobs == 1:
        return _compare(comparison, None, progress)
    with processpool.of(jobs) as pool:
        return _compare(comparison, pool, progress)


def _compare(comparison: Comparison, pool: ProcessPoolExecutor | None, progress: Progress) -> Compared:
    seeds = range(comparison.seeds)
    capacities = parallel.each(partial(_capacity, comparison), seeds, pool, partial(progress, CAPACITY))
    tasks = [
        _Task(place, load, load * capacities[seed], seed)
        for seed in seeds  # first, so that a process seldom needs other arrivals
        for load in comparison.loads
        for place in range(len(comparison.contenders))
    ]
    ran = parallel.each(partial(_run, comparison), tasks, pool, partial(progress, RUNS))
    runs: dict[tuple[float, int], list[Measures]] = {}
    lasted: dict[tuple[float, int], list[Lasted]] = {}
    for task, one in zip(tasks, ran, strict=True):
        runs.setdefault((task.load, task.contender), []).append(one.measures)
        lasted.setdefault((task.load, task.contender), []).append(one.lasted)
    capacity = math.fsum(capacities) / len(capacities)
    each = [
        (load, place, contender.name)
        for load in comparison.loads
        for place, contender in enumerate(comparison.contenders)
    ]
    return Compared(
        rows=tuple(
            row(name, load, load * capacity, runs[load, place], _baseline(comparison, runs, load))
            for load, place, name in each
        ),
        seeds=comparison.seeds,
        capacity_per_s=capacity,
        cut=ran[0].cut,
        missed=tuple(
            islice(
                (
                    one
                    for load, place, name in each
                    for one in missed(name, load, comparison.fleet, lasted[load, place])
                ),
                MISSED_MAX,
            )
        ),
    )


def _capacity(comparison: Comparison, seed: int) -> float:
    wanted = min(workloads.REQUESTS_MAX, max(comparison.requests, REQUESTS_PER_NODE * len(comparison.fleet.nodes)))
    return capacity_per_s(_arrivals(comparison.trace, wanted, seed), comparison.fleet, comparison.cost)


def _run(comparison: Comparison, task: _Task) -> _Ran:
    arrivals = scaled(_arrivals(comparison.trace, comparison.requests, task.seed), task.rate_per_s)
    setup = Setup(
        fleet=comparison.fleet,
        policy=comparison.contenders[task.contender].policy,
        settings=comparison.settings,
        cost=comparison.cost,
        routers=comparison.routers,
        exchange=comparison.exchange,
        snapshot_interval_s=comparison.snapshot_interval_s,
        first_tokens=comparison.first_tokens,
        kv_events=comparison.kv_events,
        lost_share=comparison.lost_share,
        delay_s=comparison.delay_s,
        seed=task.seed,
        priorities=comparison.priorities,
    )
    run = simulate(arrivals, setup)
    return _Ran(run.measures, Lasted(arrivals[-1].at_s, run.ended_s), run.cut)


@lru_cache(maxsize=1)
def _arrivals(trace: str, requests: int, seed: int) -> list[Arrival]:
    found = workloads.arrivals(trace, requests, seed)
    assert not isinstance(found, Fault), "it was readable"
    return found


def _baseline(
    comparison: Comparison, runs: Mapping[tuple[float, int], list[Measures]], load: float
) -> list[Measures] | None:
    names = [contender.name for contender in comparison.contenders]
    return runs[load, names.index(BASELINE)] if BASELINE in names else None
