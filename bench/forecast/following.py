"""What `serve` says as it goes, what simpler ways would say, and how a fleet fares that does as it is told."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import ceil
from statistics import fmean
from typing import Final
from unittest.mock import patch

from msgspec import Struct

from bench.forecast.hindsight import NODES_MAX, SETUP, WINDOW_S, in_time, on
from extproc.core.balancer import Balancer
from extproc.core.forecastsettings import ForecastSettings
from extproc.sim import routers
from extproc.sim.fleetplan import FleetPlan, PlannedNode
from extproc.sim.simulation import simulate
from extproc.sim.traces import Arrival

FIRST: Final = 10
"""The first window that is told beforehand: what the forecast looks back at has filled by then."""
KNOWN: Final = FIRST - 2
"""The first window that has to be known in hindsight: it has just ended when the first one is told."""
HELD: Final = 5
"""Windows for which Kubernetes goes by the most that it was told, before it gives nodes back."""
FORECAST: Final = "forecast"

assert ForecastSettings().cold_start_s == WINDOW_S
assert ForecastSettings().window_s <= (FIRST - 1) * WINDOW_S


class Way(Struct, frozen=True):
    """One way to tell how many nodes it takes."""

    told: tuple[int, ...]
    """For each window from `FIRST` on, told one cold start before it begins."""
    in_time: float
    """Share of those windows' requests, if the fleet is what is told."""


class Played(Struct, frozen=True):
    """What became of a fleet that did as it was told."""

    in_time: float
    said: tuple[int, ...]
    """The forecast at the beginning of each window."""


def ways(arrivals: Sequence[Arrival], needs: Sequence[int], played: Callable[[tuple[int, ...]], Played]) -> list[Way]:
    """One for each of `NAMES`. `needs` is perfect hindsight of each window from `KNOWN` on; three or more of them."""
    count = len(needs) - (FIRST - KNOWN)
    windows = range(FIRST, FIRST + count)
    at_most = (max(needs),) * count
    said = played(at_most).said
    forecast = said[FIRST - 1 :][:count]
    came = Counter(int(one.at_s // WINDOW_S) for one in arrivals)
    each = (
        forecast,
        played(forecast).said[FIRST - 1 :][:count],
        tuple(max(said[place - HELD : place]) for place in windows),
        tuple(needs[:count]),
        by_requests([came[place - 2] for place in windows], sum(forecast)),
        (ceil(fmean(needs)),) * count,
        at_most,
        tuple(needs[-count:]),
    )
    return [Way(told, played(told).in_time) for told in each]


NAMES: Final = (
    FORECAST,
    "forecast, where the fleet follows it",
    "forecast, the most of 5 minutes",
    "need of the minute before",
    "requests of the minute before",
    "always the mean need",
    "always the most of any minute",
    "hindsight",
)
"""The ways to tell. The first is read where there are always enough nodes."""


def by_requests(came: Sequence[int], nodes_in_all: int) -> tuple[int, ...]:
    """A node for so many requests in a minute, at all times the same: chosen for `nodes_in_all`, or the next fewer."""
    paces = ((requests, nodes) for requests in came if requests for nodes in range(1, NODES_MAX + 1))
    for requests, nodes in sorted(paces, key=lambda pace: pace[0] / pace[1]):
        numbers = tuple(max(1, -(-one * nodes // requests)) for one in came)
        if sum(numbers) <= nodes_in_all:
            return numbers
    return (1,) * len(came)


def play(arrivals: Sequence[Arrival], before: int, told: Sequence[int]) -> Played:
    """Simulate so many nodes in each window from `FIRST` on, and enough of them before.

    New nodes are ready as their window begins, and know nothing; those that are too many drain.
    """
    said: list[int] = []

    class Read(Balancer):
        def tick(self, now_s: float) -> list[str]:
            if now_s == len(said) * WINDOW_S:
                said.append(max(one.nodes_needed for one in self.forecasts(now_s)))
            return super().tick(now_s)

    # The simulation makes its routers itself, and has no other place where one could be looked at as time passes.
    with patch.object(routers, "Balancer", Read):
        run = simulate(arrivals, on(FleetPlan(tuple(nodes_of((before,) * FIRST + tuple(told))))))
    met, judged = in_time([one for one in run.served if one.sent_s >= FIRST * WINDOW_S])
    return Played(met / judged, tuple(said))


def nodes_of(numbers: Sequence[int]) -> Iterator[PlannedNode]:
    """The first is there where one or more are wanted, the second where two or more are, and so on."""
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
