"""What `serve` says as it goes, what simpler ways would say, and how a fleet fares that does as it is told."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import ceil
from statistics import fmean
from typing import Final
from unittest.mock import patch

from bench.forecast.hindsight import NODES_MAX, SETUP, WINDOW_S, in_time, on
from extproc.core.balancer import Balancer
from extproc.core.forecastsettings import ForecastSettings
from extproc.sim import routers
from extproc.sim.fleetplan import FleetPlan, PlannedNode, even
from extproc.sim.simulation import simulate
from extproc.sim.traces import Arrival

FIRST: Final = 2
"""The first window that is forecast: one has been seen when it is, and one passes while nodes start."""
HELD: Final = 5
"""Windows for which Kubernetes goes by the most that it was told, before it gives nodes back."""
FORECAST: Final = "forecast"
_ROUNDING: Final = 1e-9

assert ForecastSettings().cold_start_s == WINDOW_S


def readings(arrivals: Sequence[Arrival], nodes: int) -> list[int]:
    """What a router with so many nodes would say at the beginning of each window, and at the end of the last."""
    said: list[int] = []

    class Read(Balancer):
        def tick(self, now_s: float) -> list[str]:
            if now_s == len(said) * WINDOW_S:
                said.append(max(one.nodes_needed for one in self.forecasts(now_s)))
            return super().tick(now_s)

    # The simulation makes its routers itself, and has no other place where one could be looked at as time passes.
    with patch.object(routers, "Balancer", Read):
        simulate(arrivals, on(even(nodes)))
    return said


def told(arrivals: Sequence[Arrival], needs: Sequence[int]) -> dict[str, list[int]]:
    """For each way to tell, a number for each window from `FIRST` on, told one cold start before it begins.

    `needs` is perfect hindsight of every window.
    """
    windows = range(FIRST, len(needs))
    said = readings(arrivals, max(needs))
    forecast = [said[place - 1] for place in windows]
    came = Counter(int(one.at_s // WINDOW_S) for one in arrivals)
    return {
        FORECAST: forecast,
        "forecast, the most of 5 minutes": [max(said[max(1, place - HELD) : place]) for place in windows],
        "need of the minute before": [needs[place - 2] for place in windows],
        "requests of the minute before": by_requests([came[place - 2] for place in windows], sum(forecast)),
        "always the mean need": [ceil(fmean(needs)) for _ in windows],
        "always the most of any minute": [max(needs) for _ in windows],
        "hindsight": list(needs[FIRST:]),
    }


def by_requests(came: Sequence[int], nodes_in_all: int) -> list[int]:
    """A node for so many requests in a minute, the same at all times: as few that all windows have `nodes_in_all`.

    Or fewer, where no number of requests gives as many.
    """
    for each in sorted({requests / nodes for requests in came if requests for nodes in range(1, NODES_MAX + 1)}):
        numbers = [max(1, ceil(requests / each - _ROUNDING)) for requests in came]
        if sum(numbers) <= nodes_in_all:
            return numbers
    return [1] * len(came)


def followed(arrivals: Sequence[Arrival], numbers: Sequence[int]) -> float:
    """Share of the requests in time, from `FIRST` on, on as many nodes in each window as were told for it.

    New nodes are ready as their window begins, and know nothing; those that are too many drain.
    """
    run = simulate(arrivals, on(FleetPlan(tuple(_nodes([max(numbers)] * FIRST + list(numbers))))))
    from_s = FIRST * WINDOW_S
    met, judged = in_time([one for one in run.served if from_s <= arrivals[one.arrival].at_s])
    return met / judged


def _nodes(numbers: Sequence[int]) -> Iterator[PlannedNode]:
    """The first is there where one or more are told, the second where two or more are, and so on."""
    for nodes in range(1, max(numbers) + 1):
        for wanted, group in groupby(range(len(numbers)), key=lambda place: numbers[place] >= nodes):
            places = list(group)
            if wanted:
                past = places[-1] + 1
                yield replace(
                    SETUP.fleet.nodes[0],
                    name=f"node-{nodes}-{places[0]}",
                    joins_at_s=places[0] * WINDOW_S,
                    leaves_at_s=past * WINDOW_S if past < len(numbers) else None,
                )
