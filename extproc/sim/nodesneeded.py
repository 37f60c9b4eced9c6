"""How many equal nodes some requests need, found by simulating them.

This is hindsight: the requests are known, and what is asked is how few nodes would have served enough of them well
enough. What a forecast says is measured against it.
"""

from collections.abc import Sequence
from dataclasses import replace

from msgspec import Struct

from extproc.sim.fleetplan import FleetPlan, PlannedNode
from extproc.sim.measures import percentile
from extproc.sim.nodesearch import NodeSearch
from extproc.sim.simulation import Setup, simulate
from extproc.sim.traces import Arrival


class Objective(Struct, frozen=True, kw_only=True):
    """What is well enough, and enough of it."""

    ttft_s: float
    """A first token after so long, or sooner, is in time."""
    tpot_s: float | None = None
    """So is an answer with this mean gap between tokens, or less; `None`: however slowly they come."""
    share: float
    """Over 0, up to 1: so many of all requests must be in time. Refused and failed ones are not."""

    def enough(self, met: int, requests: int) -> bool:
        """Whether so many of these are at least the share, to the request."""
        # Both sides are rounded from the same ratio where it is exactly the share: equal then, however it rounds.
        return met / requests >= self.share


class Outcome(Struct, frozen=True):
    """What one simulation came to, of the requests that are judged."""

    requests: int
    met: int
    """In time; see `Objective`."""
    refused: int
    failed: int
    cut: int
    """Longer than a node's context, and cut to it; those that are not judged among them."""
    ttfts_s: tuple[float, ...]
    """Of the complete ones."""
    tpots_s: tuple[float, ...]
    """Of the complete ones of two tokens or more."""


class Tried(Struct, frozen=True, kw_only=True):
    """How so many nodes did: all seeds' requests together."""

    nodes: int
    enough: bool
    requests: int
    met: int
    share: float
    """`met` / `requests`."""
    share_worst: float | None
    """That of the worst seed; `None` with one seed."""
    refused: int
    failed: int
    ttft_p50_s: float | None
    """This and the next: of the requests that were answered, nearest ranks; `None` where there is none."""
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    tpot_p99_s: float | None


class Needed(Struct, frozen=True, kw_only=True):
    """What a search found."""

    nodes: int | None
    """The least number that is enough, as `nodesearch` means it; `None`: not even the most were."""
    tried: tuple[Tried, ...]
    """By nodes."""
    enough_below: tuple[int, ...]
    """Fewer nodes that were enough all the same, though more were not."""

    @property
    def at_answer(self) -> Tried | None:
        """How the answer did."""
        return next((one for one in self.tried if one.nodes == self.nodes), None)


def nodes_needed(
    arrivals: Sequence[Arrival],
    setup: Setup,
    objective: Objective,
    nodes_max: int,
    *,
    seeds: int = 1,
    lead_in: int = 0,
) -> Needed:
    """The least number of nodes, 1 to `nodes_max`, for these arrivals; one after another, in this process.

    Arrivals are in order of time, and more than `lead_in`: so many first ones are served and not judged. Nodes are like
    the first of the setup's fleet. Seeds throw who wins ties and when agents look.
    """
    search = NodeSearch(nodes_max, at_once=1)
    tried = []
    while numbers := search.next():
        for nodes in numbers:
            outcomes = [outcome(arrivals, setup, objective, nodes, seed, lead_in) for seed in range(seeds)]
            tried.append(tally(nodes, outcomes, objective))
            search.tell(nodes, enough=tried[-1].enough)
    return needed(search, tried)


def outcome(
    arrivals: Sequence[Arrival],
    setup: Setup,
    objective: Objective,
    nodes: int,
    seed: int,
    lead_in: int = 0,
) -> Outcome:
    """Simulate so many nodes like the first of the setup's fleet; see `nodes_needed`."""
    run = simulate(arrivals, replace(setup, fleet=equal(setup.fleet.nodes[0], nodes), seed=seed))
    judged = run.served[lead_in:]
    complete = [one for one in judged if one.complete]
    refused = sum(one.refused for one in judged)
    return Outcome(
        requests=len(judged),
        met=sum(
            one.ttft_s <= objective.ttft_s and (objective.tpot_s is None or one.tpot_s <= objective.tpot_s)
            for one in complete
        ),
        refused=refused,
        failed=len(judged) - len(complete) - refused,
        cut=run.cut,
        ttfts_s=tuple(one.ttft_s for one in complete),
        tpots_s=tuple(one.tpot_s for one in complete if one.output_tokens > 1),
    )


def tally(nodes: int, outcomes: Sequence[Outcome], objective: Objective) -> Tried:
    """What the seeds' simulations of so many nodes come to together; at least one, with a request each."""
    requests, met = sum(one.requests for one in outcomes), sum(one.met for one in outcomes)
    ttfts_s = sorted(value for one in outcomes for value in one.ttfts_s)
    tpots_s = sorted(value for one in outcomes for value in one.tpots_s)
    return Tried(
        nodes=nodes,
        enough=objective.enough(met, requests),
        requests=requests,
        met=met,
        share=met / requests,
        share_worst=min(one.met / one.requests for one in outcomes) if len(outcomes) > 1 else None,
        refused=sum(one.refused for one in outcomes),
        failed=sum(one.failed for one in outcomes),
        ttft_p50_s=percentile(ttfts_s, 50),
        ttft_p90_s=percentile(ttfts_s, 90),
        ttft_p99_s=percentile(ttfts_s, 99),
        tpot_p99_s=percentile(tpots_s, 99),
    )


def needed(search: NodeSearch, tried: Sequence[Tried]) -> Needed:
    """What a search that is over found, from all that was tried."""
    return Needed(
        nodes=search.found,
        tried=tuple(sorted(tried, key=lambda one: one.nodes)),
        enough_below=search.enough_below,
    )


def equal(node: PlannedNode, nodes: int) -> FleetPlan:
    """So many nodes like this one, named by their places."""
    assert nodes >= 1
    return FleetPlan(tuple(replace(node, name=f"node-{place}") for place in range(1, nodes + 1)))
