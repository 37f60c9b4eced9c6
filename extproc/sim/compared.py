"""What a comparison of strategies finds: rows of means over the seeds, and what of the fleet's plan never happened."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from extproc.sim.fleetevents import Lasted, events
from extproc.sim.fleetplan import FleetPlan
from extproc.sim.measures import ClassMeasures, Measures

MISSED_MAX: Final = 1000
"""What never happened is told of so many strategies, loads and events; a fleet file may plan a hundred thousand."""
_Figures = TypeVar("_Figures")


class ClassRow(Struct, frozen=True, kw_only=True):
    """The requests of one class in a row: means over the seeds; `None` where no run has the figure."""

    requests: float
    refused: float
    ngood: float | None
    ngood_accepted: float | None
    """As those of the row."""
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    queued_p90_s: float | None
    """Wait at the router."""


class Row(Struct, frozen=True, kw_only=True):
    """One strategy at one load: means over the seeds; `None` where no run has the figure."""

    strategy: str
    load: float
    rate_per_s: float
    ngood: float
    ngood_spread: float | None
    """The best seed's less the worst's; `None` with one seed, which has none."""
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    slowdown: float | None
    preemptions: float
    prefix_hits: float
    """Share 0..1 of the prompt tokens."""
    refused: float
    failed: float
    per_node: dict[str, float]
    """Share 0..1 of the requests that each node got."""
    ngood_vs_round_robin: float | None
    """This and the next two: ratios to round robin's figures at this load; `None` if that does not take part, or has
    0."""
    ttft_p90_vs_round_robin: float | None
    slowdown_vs_round_robin: float | None
    ngood_accepted: float | None = None
    """Of the requests that were not refused, the share that were good."""
    classes: dict[str, ClassRow] = {}
    """Of each class, the highest first; none without priorities."""


class Missed(Struct, frozen=True, kw_only=True):
    """Something planned that came too late for runs of one strategy at one load: their row says nothing of it."""

    strategy: str
    load: float
    node: str
    event: str
    """As `PlannedEvent.event`."""
    at_s: float
    """When it was planned."""
    runs: int
    """How many of the runs, one for each seed, it came too late for."""
    felt_until_s: float
    """The latest that it would have been felt in one of these."""
    felt_by_answers: bool
    """Then the last request was over; otherwise the last one came."""


class Compared(Struct, frozen=True, kw_only=True):
    """What a comparison found."""

    rows: tuple[Row, ...]
    """By load, then in the order of the contenders."""
    seeds: int
    """Runs of each row."""
    capacity_per_s: float
    """Mean over the seeds."""
    cut: int
    """Requests of the first seed that were longer than a node's context, and were cut to it."""
    missed: tuple[Missed, ...] = ()
    """In the order of the rows, the first `MISSED_MAX`."""


def row(
    name: str, load: float, rate_per_s: float, runs: Sequence[Measures], baseline: Sequence[Measures] | None
) -> Row:
    """What a strategy's runs at one load, one for each seed, come to, beside round robin's with the same seeds."""
    ngoods = [one.ngood for one in runs]
    return Row(
        strategy=name,
        load=load,
        rate_per_s=rate_per_s,
        ngood=math.fsum(ngoods) / len(ngoods),
        ngood_spread=max(ngoods) - min(ngoods) if len(ngoods) > 1 else None,
        ttft_p50_s=_mean(runs, lambda one: one.ttft_p50_s),
        ttft_p90_s=_mean(runs, lambda one: one.ttft_p90_s),
        ttft_p99_s=_mean(runs, lambda one: one.ttft_p99_s),
        tpot_p99_s=_mean(runs, lambda one: one.tpot_p99_s),
        slowdown=_mean(runs, lambda one: one.slowdown),
        preemptions=math.fsum(one.preemptions for one in runs) / len(runs),
        prefix_hits=math.fsum(one.prefix_hit_share for one in runs) / len(runs),
        refused=math.fsum(one.refused for one in runs) / len(runs),
        failed=math.fsum(one.failed for one in runs) / len(runs),
        per_node={node: math.fsum(one.node_shares[node] for one in runs) / len(runs) for node in runs[0].node_shares},
        ngood_vs_round_robin=_ratio(runs, baseline, lambda one: one.ngood),
        ttft_p90_vs_round_robin=_ratio(runs, baseline, lambda one: one.ttft_p90_s),
        slowdown_vs_round_robin=_ratio(runs, baseline, lambda one: one.slowdown),
        ngood_accepted=_mean(runs, lambda one: one.ngood_accepted),
        classes={name: _class_row([one.classes[name] for one in runs]) for name in runs[0].classes},
    )


def missed(name: str, load: float, fleet: FleetPlan, lasted: Sequence[Lasted]) -> Iterator[Missed]:
    """What came too late for some of a strategy's runs at one load."""
    for event in events(fleet):
        too_late_s = [until_s for run in lasted if (until_s := run.felt_until_s(event)) <= event.at_s]
        if too_late_s:
            yield Missed(
                strategy=name,
                load=load,
                node=event.node,
                event=event.event,
                at_s=event.at_s,
                runs=len(too_late_s),
                felt_until_s=max(too_late_s),
                felt_by_answers=event.felt_by_answers,
            )


def _class_row(runs: Sequence[ClassMeasures]) -> ClassRow:
    return ClassRow(
        requests=math.fsum(one.requests for one in runs) / len(runs),
        refused=math.fsum(one.refused for one in runs) / len(runs),
        ngood=_mean(runs, lambda one: one.ngood),
        ngood_accepted=_mean(runs, lambda one: one.ngood_accepted),
        ttft_p50_s=_mean(runs, lambda one: one.ttft_p50_s),
        ttft_p90_s=_mean(runs, lambda one: one.ttft_p90_s),
        ttft_p99_s=_mean(runs, lambda one: one.ttft_p99_s),
        queued_p90_s=_mean(runs, lambda one: one.queued_p90_s),
    )


def _mean(runs: Sequence[_Figures], figure: Callable[[_Figures], float | None]) -> float | None:
    known = [value for one in runs if (value := figure(one)) is not None]
    return math.fsum(known) / len(known) if known else None


def _ratio(
    runs: Sequence[Measures], baseline: Sequence[Measures] | None, figure: Callable[[Measures], float | None]
) -> float | None:
    ours, theirs = _mean(runs, figure), None if baseline is None else _mean(baseline, figure)
    return None if ours is None or not theirs else ours / theirs
