"""Tables of the runs: medians over rounds and their spread, and differences to one router with the same requests."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from bench.engines.cpu import CLIENT, MACHINE
from bench.engines.tables import spread
from bench.grid import Grid
from bench.routers.runs import Run
from bench.routers.system import ARMS

AIM_POINTS: Final = 3.0
"""Of ngood in percent, that several routers with exchange may lose against one."""
_GROUPS: Final = (CLIENT, "envoy", "serve", "agents", "nats", "engines", MACHINE)


def of_clients(workload: str, runs: Sequence[Run]) -> Grid:
    """What clients saw."""
    first = runs[0]
    rounds = len({one.round for one in runs})
    times = "1 round" if rounds == 1 else f"{rounds} rounds"
    slow = f", engines of speed {first.speed:g}" if first.speed != 1 else ""
    grid = Grid(
        f"{workload}: {first.measures.requests} requests, {first.rate_per_s:.1f}/s{slow}, {times}",
        ("", "ngood", "points lost", "ngood, simulated", "TTFT p50 s", "p90", "p99", "cached", "failed"),
    )
    for name, own in _by_arm(runs):
        figures: tuple[Callable[[Run], float | None], ...] = (
            lambda one: one.measures.ttft_p50_s,
            lambda one: one.measures.ttft_p90_s,
            lambda one: one.measures.ttft_p99_s,
            lambda one: one.cached_share,
        )
        grid.rows.append(
            (
                name,
                spread((one.measures.ngood for one in own), 3),
                "" if name == ARMS[0].name else spread(_lost(runs, name), 1),
                spread((one.simulated_ngood for one in own), 3),
                *(spread(map(figure, own)) for figure in figures),
                spread((one.measures.failed + one.measures.refused for one in own), 0),
            )
        )
    for arm in ARMS:
        lost = _lost(runs, arm.name) if arm.exchange else []
        if lost:
            met = "met" if median(lost) <= AIM_POINTS else "missed"
            grid.notes.append(f"aim: {arm.name} lose at most {AIM_POINTS:g} points of ngood: {met}, {spread(lost, 1)}")
    return grid


def of_truth(workload: str, runs: Sequence[Run]) -> Grid:
    """How well routers knew what engines had."""
    grid = Grid(
        f"{workload}: sequences at a node, as routers believe, against the truth of the engines",
        ("", "there were", "mean difference", "with its sign", "all counts 0 after s", "counts left"),
    )
    for name, own in _by_arm(runs):
        grid.rows.append(
            (
                name,
                spread((one.mean_held for one in own), 1),
                spread(one.mean_error for one in own),
                spread(one.mean_bias for one in own),
                spread((one.rest_s for one in own), 1),
                spread((len(one.left) for one in own), 0),
            )
        )
    return grid


def of_machine(workload: str, runs: Sequence[Run]) -> Grid:
    """That no part lacked a processor."""
    columns = ("clients", "Envoys", "routers", "agent", "NATS", "engines", "the machine", "sent late p99 ms")
    grid = Grid(f"{workload}: busy processor cores; medians", ("", *columns))
    for name, own in _by_arm(runs):
        cores = [f"{median(one.cores[group] for one in own):.2f}" for group in _GROUPS]
        grid.rows.append((name, *cores, f"{median(one.late_p99_s * 1000 for one in own):.1f}"))
    return grid


def _by_arm(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    found = [(arm.name, [one for one in runs if one.arm == arm.name]) for arm in ARMS]
    return [(name, own) for name, own in found if own]


def _lost(runs: Sequence[Run], name: str) -> list[float]:
    """Of each round, in points: ngood of one router with the same requests, less this one's."""
    base = {one.round: one.measures.ngood for one in runs if one.arm == ARMS[0].name}
    return [100 * (base[one.round] - one.measures.ngood) for one in runs if one.arm == name and one.round in base]
