"""One run: the requests of a repetition through one system, and what came of it."""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from bench.engines import cpu, system
from bench.engines.client import Outcome, Target, ask_all
from bench.engines.model import served
from bench.engines.scenarios import PATIENCE_S, Failing, Node, Scenario, Variant
from bench.engines.system import Parts
from bench.engines.workloads import Timed
from extproc.sim.measures import Measures, Served, measure, percentile

FAULT_FROM: Final = 0.25
"""When a fault begins, and how long it lasts at most, as shares of the time in which requests come."""
FAULT_SHARE_MAX: Final = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    """All that was seen of one run."""

    outcomes: Sequence[Outcome]
    """In the requests' order."""
    cores: Mapping[str, float]
    """Busy processors by group, see `cpu.py`."""
    counters: Mapping[str, float]
    """The engines' own, over all of them."""
    fault_at_s: float | None
    """When a fault was ordered, after the first request."""


class Failures(Struct, frozen=True):
    """What clients saw of a fault."""

    by_kind: dict[str, int]
    """How many saw what: a status, `cut`, `timeout`."""
    sent_before: int
    """Those of them whose requests were sent before the fault began: nobody could have spared them."""
    last_sent_s: float | None
    """How long after its beginning the last request was sent that failed; `None`: none was sent after it."""


class Admission(Struct, frozen=True):
    """What became of requests that were more than the engines can carry."""

    accepted: int
    """Those that were not answered 429."""
    in_time: int
    """Of those, how many had their first token within the objective, and a whole answer."""
    unanswered: int
    """Who saw no end of an answer: cut off, timed out, or not even connected."""
    refused_ms: tuple[float | None, float | None, float | None]
    """How long the others waited for their 429: median, p99, the longest."""
    retry_after_s: tuple[int, int] | None
    """What they were told to wait, from and to; `None`: nothing."""


class Run(Struct, frozen=True):
    """What is kept of one run."""

    scenario: str
    variant: str
    repetition: int
    seed: int
    rate_per_s: float
    """Mean rate that was sent."""
    measures: Measures
    e2e_p50_s: float | None
    e2e_p90_s: float | None
    e2e_p99_s: float | None
    failures: Failures
    """Of all requests, in a scenario without a fault too."""
    late_p99_s: float
    """How late the client sent its requests."""
    cores: Mapping[str, float]
    """Busy processors by group, see `cpu.py`."""
    admission: Admission | None = None
    """Where the scenario has an objective."""

    def value(self, measure_name: str) -> float | None:
        """One of its own or its measures' figures, by name."""
        found: float | None = getattr(self, measure_name, None)
        return getattr(self.measures, measure_name) if found is None else found


Progress = Callable[[int], None]
"""Told how many requests are over."""


async def compared(
    scenario: Scenario, variant: Variant, asked: Sequence[Timed], folder: Path, answered: Progress
) -> Seen:
    """Send a repetition's requests through a new system."""
    async with system.started(folder, scenario.nodes, variant) as parts:
        target = Target(parts.entry, variant.with_session, scenario.patience_s)
        return await _seen(parts, asked, target, answered, scenario.failing)


async def alone(node: Node, asked: Sequence[Timed], folder: Path, answered: Progress) -> Seen:
    """Send requests to one new engine, with nothing before it."""
    async with system.started_alone(folder, node) as parts:
        return await _seen(parts, asked, Target(parts.entry, False, PATIENCE_S), answered, None)


async def _seen(
    parts: Parts, asked: Sequence[Timed], target: Target, answered: Progress, failing: Failing | None
) -> Seen:
    fault_at_s = None if failing is None else asked[-1].at_s * FAULT_FROM
    # Nothing of the clients' is to be walked by a collection in the midst of a run.
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        before = cpu.spent(parts.groups, time.monotonic())
        async with asyncio.TaskGroup() as tasks:
            if failing is not None and fault_at_s is not None:
                for_s = min(failing.for_s, asked[-1].at_s * FAULT_SHARE_MAX)
                tasks.create_task(_fail(parts, failing, fault_at_s, for_s))
            outcomes = await ask_all(asked, target, answered)
        cores = cpu.spent(parts.groups, time.monotonic()).cores_since(before)
    finally:
        gc.enable()
        gc.unfreeze()
    parts.check()
    return Seen(outcomes, cores, await parts.counters(), fault_at_s)


async def _fail(parts: Parts, failing: Failing, at_s: float, for_s: float) -> None:
    await asyncio.sleep(at_s)
    order: dict[str, Any] = {"kind": failing.kind.value, "for_s": for_s}
    await parts.fault(order if failing.factor is None else order | {"factor": failing.factor})


def measures_of(asked: Sequence[Timed], seen: Seen, nodes: Sequence[str]) -> Measures:
    """The figures of a run, as the simulator has them."""
    found = [_served(one, outcome) for one, outcome in zip(asked, seen.outcomes, strict=True)]
    counters = seen.counters
    queries = counters["prefix_cache_queries"]
    return msgspec.structs.replace(
        measure(found, int(counters["num_preemptions"]), nodes),
        prefix_hit_share=counters["prefix_cache_hits"] / queries if queries else 0.0,
    )


def run_of(scenario: Scenario, variant: Variant, repetition: int, seed: int, asked: Sequence[Timed], seen: Seen) -> Run:
    """What is kept of a run."""
    whole = sorted(outcome.ended_s for outcome in seen.outcomes if not outcome.failure)
    return Run(
        scenario=scenario.name,
        variant=variant.name,
        repetition=repetition,
        seed=seed,
        rate_per_s=(len(asked) - 1) / asked[-1].at_s if len(asked) > 1 else 0.0,
        measures=measures_of(asked, seen, [node.name for node in scenario.nodes]),
        e2e_p50_s=percentile(whole, 50),
        e2e_p90_s=percentile(whole, 90),
        e2e_p99_s=percentile(whole, 99),
        failures=_failures(asked, seen),
        late_p99_s=percentile(sorted(outcome.late_s for outcome in seen.outcomes), 99) or 0.0,
        cores=seen.cores,
        admission=None if scenario.ttft_s is None else _admission(seen.outcomes, scenario.ttft_s),
    )


def _admission(outcomes: Sequence[Outcome], ttft_s: float) -> Admission:
    refused = [outcome for outcome in outcomes if outcome.status == HTTPStatus.TOO_MANY_REQUESTS]
    waits_ms = sorted((outcome.ended_s - outcome.late_s) * 1000 for outcome in refused)
    told_s = [outcome.retry_after_s for outcome in refused if outcome.retry_after_s is not None]
    return Admission(
        accepted=len(outcomes) - len(refused),
        in_time=sum(not one.failure and (one.first_token_s or 0.0) <= ttft_s for one in outcomes),
        unanswered=sum(one.failure in ("cut", "timeout", "refused") for one in outcomes),
        refused_ms=(percentile(waits_ms, 50), percentile(waits_ms, 99), waits_ms[-1] if waits_ms else None),
        retry_after_s=(min(told_s), max(told_s)) if told_s else None,
    )


def _served(one: Timed, outcome: Outcome) -> Served:
    first_token_s = None if outcome.first_token_s is None else one.at_s + outcome.first_token_s
    ended_s = None if outcome.failure else one.at_s + outcome.ended_s
    return served(one, outcome.engine, first_token_s, ended_s, refused=outcome.status == 429)


def _failures(asked: Sequence[Timed], seen: Seen) -> Failures:
    failed = [(one, outcome) for one, outcome in zip(asked, seen.outcomes, strict=True) if outcome.failure]
    begun_s = seen.fault_at_s
    after = [] if begun_s is None else [one.at_s - begun_s for one, _ in failed if one.at_s > begun_s]
    return Failures(
        by_kind=dict(sorted(Counter(outcome.failure for _, outcome in failed).items())),
        sent_before=len(failed) - len(after),
        last_sent_s=max(after, default=None),
    )
