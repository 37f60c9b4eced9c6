"""How many nodes each minute needed, found by simulating it: what a forecast is measured against.

As `extproc plan --window 60s` counts them, but that only prompts are judged that can be in time at all.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace as with_changes
from typing import Final

from msgspec.structs import replace

from extproc.core.forecastsettings import ForecastSettings
from extproc.core.policy import RoutingPolicy
from extproc.sim.fleetplan import FleetPlan, even
from extproc.sim.measures import Served
from extproc.sim.nodesearch import NodeSearch
from extproc.sim.simulation import Setup, simulate
from extproc.sim.traces import Arrival

WINDOW_S: Final = 60.0
LEAD_IN_S: Final = 30.0
SHARE: Final = 0.95
"""So many of the judged requests must be in time."""
NODES_MAX: Final = 64
SETUP: Final = Setup(fleet=even(1), policy=RoutingPolicy())


def on(fleet: FleetPlan) -> Setup:
    """The run of these nodes."""
    return with_changes(SETUP, fleet=fleet)


def in_time(served: Sequence[Served]) -> tuple[int, int]:
    """How many had their first token within the forecast's own objective, and of how many that could.

    Who could: whoever is within it on an idle node that has nothing of the prompt cached.
    """
    ttft_s = ForecastSettings().ttft_s
    judged = [one for one in served if one.isolated_prefill_s + 2 * SETUP.delay_s <= ttft_s]
    return sum(one.complete and one.ttft_s <= ttft_s for one in judged), len(judged)


def least(arrivals: Sequence[Arrival], lead_in: int = 0) -> int:
    """The fewest nodes that serve these well enough, after so many first ones that are not judged; `NODES_MAX` at most.

    One, where nothing is to be judged: a model has to be served.
    """
    search = NodeSearch(NODES_MAX, at_once=1)
    while numbers := search.next():
        for nodes in numbers:
            met, judged = in_time(simulate(arrivals, on(even(nodes))).served[lead_in:])
            search.tell(nodes, enough=met >= SHARE * judged)
    return search.found or NODES_MAX


def windows_of(arrivals: Sequence[Arrival]) -> int:
    """Whole ones."""
    return int(arrivals[-1].at_s // WINDOW_S)


def needed(arrivals: Sequence[Arrival], place: int) -> int:
    """The fewest nodes for the requests of one window, which the same nodes have served `LEAD_IN_S` long before it."""
    from_s = place * WINDOW_S
    led_in, first, past = (
        bisect_left(arrivals, at_s, key=lambda one: one.at_s)
        for at_s in (from_s - LEAD_IN_S, from_s, from_s + WINDOW_S)
    )
    if first == past:
        return 1
    begin_s = arrivals[led_in].at_s
    return least([replace(one, at_s=one.at_s - begin_s) for one in arrivals[led_in:past]], first - led_in)
