"""The saturation curve of one emulated engine: what loads are a share of, and that it keeps the time of its model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.engines import model, workloads
from bench.engines.runs import Seen, measures_of
from bench.engines.scenarios import Node, Scenario
from bench.engines.tables import milliseconds, spread
from bench.engines.workloads import Timed
from bench.grid import Grid
from extproc.sim.measures import Measures, measure

LOADS: Final = (0.3, 0.5, 0.7, 0.9, 1.1)
REQUESTS_SHARE: Final = 0.5
"""Of the requests of a run: one engine takes longer for them than four."""
SEED: Final = 1


@dataclass(frozen=True, slots=True)
class Point:
    """One rate."""

    load: float
    rate_per_s: float
    seen: Measures
    """Over HTTP, in real time."""
    modelled: Measures
    """By the step model, with the same requests at the same moments."""
    finished_per_s: float
    """While requests came."""
    cores: float
    """That the engine kept busy."""


def asked(scenario: Scenario, node: Node, load: float, requests: int) -> list[Timed]:
    """Requests of the scenario's kind for one of its nodes, at this share of what that can carry, without bursts.

    `requests` are those of a run of the scenario.
    """
    wanted = max(2, round(requests * REQUESTS_SHARE))
    return workloads.timed(scenario.shape, wanted, load * scenario.capacity_per_s(node), SEED)


def point(node: Node, load: float, requests: Sequence[Timed], seen: Seen) -> Point:
    """A measured rate."""
    span_s = requests[-1].at_s
    ends = [one.at_s + outcome.ended_s for one, outcome in zip(requests, seen.outcomes, strict=True)]
    return Point(
        load,
        (len(requests) - 1) / span_s,
        measures_of(requests, seen, [node.name]),
        measure(model.alone(node.settings.engine, requests), 0, [""]),
        sum(end <= span_s for end in ends) / span_s,
        seen.cores[node.name],
    )


def of_points(scenario: Scenario, node: Node, points: Sequence[Point]) -> Grid:
    """The curve."""
    grid = Grid(
        f"{scenario.name}: one engine alone, which carries {scenario.capacity_per_s(node):.2f} requests/s by its model",
        (
            *("load", "sent/s", "finished/s", "goodput", "TTFT p50 s", "p90", "p99", "TPOT p99 ms"),
            *("p50 by the model", "p90", "p99", "TPOT p99 ms", "cores"),
        ),
    )
    for one in points:
        grid.rows.append(
            (
                f"{one.load:.2f}",
                f"{one.rate_per_s:.2f}",
                f"{one.finished_per_s:.2f}",
                f"{one.seen.ngood:.3f}",
                *_times(one.seen),
                *_times(one.modelled),
                f"{one.cores:.3f}",
            )
        )
    return grid


def _times(measures: Measures) -> tuple[str, ...]:
    ttfts = (measures.ttft_p50_s, measures.ttft_p90_s, measures.ttft_p99_s)
    return (*map(spread, ((one,) for one in ttfts)), spread((milliseconds(measures.tpot_p99_s),), 0))
