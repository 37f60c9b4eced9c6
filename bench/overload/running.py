"""Runs of what is asked of overload, and their tables."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from bench.grid import NOTHING, Grid
from bench.overload.cases import BATCH, INTERACTIVE, LOADS, Part, Task, Variant
from bench.strategies import running
from bench.strategies.cases import SETTINGS, source
from bench.strategies.spread import Quantity, Spread, percent
from extproc.sim.fleetplan import PLANS
from extproc.sim.measures import Measures
from extproc.sim.pacing import scaled
from extproc.sim.saturation import REQUESTS_PER_NODE
from extproc.sim.simulation import Setup, simulate
from extproc.sim.traces import Arrival

Found = Mapping[Task, Measures]


def tasks_of(parts: Sequence[Part], settings: Sequence[str], requests: int | None, seeds: int) -> list[Task]:
    """The runs that the parts need of these settings, each once; those that share arrivals stand together."""
    return [
        Task(name, requests or SETTINGS[name].requests, seed, load, variant)
        for name in settings
        for seed in range(seeds)
        for load in LOADS
        for variant in dict.fromkeys(one for part in parts if name in part.settings for one in part.variants.values())
    ]


def ran(traces: Path | None, task: Task) -> Measures:
    """The figures of one run."""
    setting, variant = SETTINGS[task.setting], task.variant
    trace = source(setting, traces)
    assert trace is not None, "it was at hand"
    enough = max(task.requests, REQUESTS_PER_NODE * running.NODES)
    capacity = running.capacity_of(trace, enough, task.seed, setting.nodes)
    arrivals = scaled(running.arrivals_of(trace, task.requests, task.seed), task.load * capacity)
    if variant.batch_share:
        arrivals = [_classed(one, place, variant.batch_share) for place, one in enumerate(arrivals)]
    setup = Setup(
        fleet=PLANS[setting.nodes][1](running.NODES),
        policy=variant.policy,
        settings=variant.settings,
        seed=task.seed,
        priorities={name: name for name in (INTERACTIVE, BATCH)} if variant.batch_share else {},
    )
    return simulate(arrivals, setup).measures


def grids(
    part: Part, quantities: Sequence[Quantity], settings: Sequence[str], seeds: int, found: Found
) -> Iterator[Grid]:
    """A table for each quantity at each load: means over the seeds, of each setting and of all of them."""
    groups: dict[tuple[str, float, Variant], list[Measures]] = {}
    for task, measures in found.items():
        groups.setdefault((task.setting, task.load, task.variant), []).append(measures)
    for quantity in quantities:
        for load in LOADS:
            grid = Grid(f"{quantity.name} at {percent(load)} load", ("", *settings, "mean"))
            for name, variant in part.variants.items():
                each = [groups.get((setting, load, variant), []) for setting in settings]
                cells = [_cell([runs], seeds, quantity) for runs in each]
                grid.rows.append((name, *cells, _cell(each, seeds, quantity)))
            yield grid


def _classed(arrival: Arrival, place: int, batch_share: float) -> Arrival:
    batch = xxh3_64_intdigest(str(place).encode()) < batch_share * 2**64
    return replace(arrival, kind=BATCH if batch else INTERACTIVE)


def _cell(groups: Sequence[Sequence[Measures]], seeds: int, quantity: Quantity) -> str:
    """Of each seed the mean over the groups, which have a run for each."""
    values = [[value for one in runs if (value := quantity.of(one)) is not None] for runs in groups]
    if not values or any(len(one) != seeds for one in values):
        return NOTHING
    means = tuple(sum(of_seed) / len(of_seed) for of_seed in zip(*values, strict=True))
    return Spread(means).shown(quantity.digits)
