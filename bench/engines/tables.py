"""Tables of many runs: medians over repetitions with their spread, ratios to ROUND_ROBIN with the same requests."""

import os
from collections.abc import Iterable, Sequence
from statistics import median

from bench.engines.cpu import CLIENT, MACHINE
from bench.engines.runs import Run
from bench.engines.scenarios import BASELINE, Scenario
from bench.grid import NOTHING, Grid
from extproc.core.cost import DEFAULT_STRATEGY


def spread(values: Iterable[float | None], digits: int = 2) -> str:
    """The median, and from where to where, if they differ as far as they are shown."""
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    middle, least, most = (f"{value:.{digits}f}" for value in (median(known), min(known), max(known)))
    return middle if least == most else f"{middle} ({least}–{most})"


def milliseconds(seconds: float | None) -> float | None:
    """The same, if it is known."""
    return None if seconds is None else seconds * 1000


def _ratios(runs: Sequence[Run], variant: str, name: str) -> list[float]:
    """One for each repetition of a variant: its figure / ROUND_ROBIN's with the same requests."""
    base = {run.repetition: run.value(name) for run in runs if run.variant == BASELINE.name}
    pairs = [(run.value(name), base.get(run.repetition)) for run in runs if run.variant == variant]
    return [value / other for value, other in pairs if value is not None and other]


def _by_variant(runs: Sequence[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.variant, []).append(run)
    return found


def of_clients(scenario: Scenario, runs: Sequence[Run]) -> Grid:
    """What clients saw first."""
    repetitions = len({run.repetition for run in runs})
    grid = Grid(
        f"{scenario.name}: {scenario.about}; {runs[0].measures.requests} requests, {scenario.rate_per_s:.1f}/s, "
        f"{repetitions} repetition{'s' if repetitions > 1 else ''}",
        ("", "goodput", "TTFT p50 s", "p90", "p99", "p90 of RR's", "p99 of RR's", "failed"),
    )
    for variant, own in _by_variant(runs).items():
        grid.rows.append(
            (
                variant,
                spread((run.measures.ngood for run in own), 3),
                *(spread(run.value(name) for run in own) for name in ("ttft_p50_s", "ttft_p90_s", "ttft_p99_s")),
                *(spread(_ratios(runs, variant, name)) for name in ("ttft_p90_s", "ttft_p99_s")),
                spread((run.measures.failed + run.measures.refused for run in own), 0),
            )
        )
    for name, most in scenario.aims:
        ratios = _ratios(runs, DEFAULT_STRATEGY, name)
        if ratios:
            met = "met" if median(ratios) <= most else "missed"
            aim = f"{DEFAULT_STRATEGY}'s {name} at most {most} × ROUND_ROBIN's"
            grid.notes.append(f"aim: {aim}: {met}, {spread(ratios)}")
    return grid


def of_engines(scenario: Scenario, runs: Sequence[Run]) -> Grid:
    """Whole answers, and how the engines came by them."""
    grid = Grid(
        f"{scenario.name}: whole answers",
        ("", "e2e p50 s", "p90", "p99", "TPOT p99 ms", "slowdown", "cache hits", "preempted", "% to each node"),
    )
    for variant, own in _by_variant(runs).items():
        shares = [median(run.measures.node_shares[node.name] for run in own) for node in scenario.nodes]
        grid.rows.append(
            (
                variant,
                *(spread(run.value(name) for run in own) for name in ("e2e_p50_s", "e2e_p90_s", "e2e_p99_s")),
                spread((milliseconds(run.measures.tpot_p99_s) for run in own), 0),
                spread(run.measures.slowdown for run in own),
                _middle(run.measures.prefix_hit_share for run in own),
                _middle((run.measures.preemptions for run in own), 0),
                "/".join(f"{share * 100:.0f}" for share in shares),
            )
        )
    return grid


def of_machines(scenario: Scenario, runs: Sequence[Run]) -> Grid:
    """That no part lacked a processor."""
    nodes = [node.name for node in scenario.nodes]
    grid = Grid(
        f"{scenario.name}: busy processor cores, of {os.cpu_count()}; medians",
        ("", "clients", "Envoy", "serve", "agents", "engines", "busiest one", "the machine", "sent late p99 ms"),
    )
    for variant, own in _by_variant(runs).items():
        grid.rows.append(
            (
                variant,
                *(_middle(run.cores.get(group) for run in own) for group in (CLIENT, "envoy", "serve", "agents")),
                _middle(sum(run.cores[node] for node in nodes) for run in own),
                _middle(max(run.cores[node] for node in nodes) for run in own),
                _middle(run.cores[MACHINE] for run in own),
                _middle((run.late_p99_s * 1000 for run in own), 1),
            )
        )
    return grid


def of_failures(scenario: Scenario, runs: Sequence[Run]) -> Grid:
    """How many clients saw a fault."""
    kinds = sorted({kind for run in runs for kind in run.failures.by_kind})
    grid = Grid(
        f"{scenario.name}: {scenario.about}; clients that saw it",
        ("", *kinds, "of them sent before it", "last one sent, s after its beginning", "goodput", "TTFT p99 s"),
    )
    for variant, own in _by_variant(runs).items():
        grid.rows.append(
            (
                variant,
                *(spread((run.failures.by_kind.get(kind, 0) for run in own), 0) for kind in kinds),
                spread((run.failures.sent_before for run in own), 0),
                spread((run.failures.last_sent_s for run in own), 1),
                spread((run.measures.ngood for run in own), 3),
                spread(run.measures.ttft_p99_s for run in own),
            )
        )
    return grid


def of_admission(scenario: Scenario, ttft_s: float, runs: Sequence[Run]) -> Grid:
    """Who was let in, whether they were served in time, and how the others were told."""
    grid = Grid(
        f"{scenario.name}: {scenario.about}; {runs[0].measures.requests} requests, {scenario.rate_per_s:.1f}/s",
        (
            *("", "accepted", f"of them first token in {ttft_s:g} s", "of all", "unanswered"),
            *("429 after ms p50", "p99", "longest", "retry-after s"),
        ),
    )
    for variant, own in _by_variant(runs).items():
        told = [run.admission for run in own if run.admission is not None]
        requests = own[0].measures.requests
        waits = [one.retry_after_s for one in told if one.retry_after_s is not None]
        grid.rows.append(
            (
                variant,
                spread((one.accepted for one in told), 0),
                spread((one.in_time / one.accepted for one in told if one.accepted), 3),
                spread((one.in_time / requests for one in told), 3),
                spread((one.unanswered for one in told), 0),
                *(spread((one.refused_ms[place] for one in told), 0) for place in range(3)),
                f"{min(least for least, _ in waits)}–{max(most for _, most in waits)}" if waits else NOTHING,
            )
        )
    return grid


def _middle(values: Iterable[float | None], digits: int = 2) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.{digits}f}" if known else NOTHING
