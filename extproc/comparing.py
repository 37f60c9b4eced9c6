"""What `extproc simulate` does: from the words of a command line to a comparison, a table, JSON and a picture."""

import os
from pathlib import Path
from typing import Any, Final

import msgspec
from rich import box
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from extproc import settingtypes, yamlfile
from extproc.core.policy import policy_from_mapping
from extproc.core.settings import GOT_CHARS_MAX, Fault
from extproc.sim import comparison as comparisons
from extproc.sim import engineprofile, fleetplan, workloads
from extproc.sim.comparison import Compared, Comparison, Contender, Row
from extproc.sim.fleetplan import FleetPlan
from extproc.sim.steptime import StepCost

INTERVAL_S_MIN: Final = 0.01
INTERVAL_S_MAX: Final = 60.0
"""As `nodes.report_interval_s` of serve."""
DELAY_S_MAX: Final = 10.0
LOAD_MIN: Final = 0.01
"""Agents report in simulated time as well: at a load of nothing a run would never end."""
LOAD_MAX: Final = 100.0
JOBS_MAX: Final = 256
WIDTH: Final = 140
"""Characters of a line that goes to a file."""
NODES_SHOWN_MAX: Final = 8
"""Of a larger fleet the table shows the smallest and the largest share."""


def jobs_default() -> int:
    """As many as there are processors to run on."""
    return min(JOBS_MAX, os.cpu_count() or 1)


def understood(
    *,
    trace: str,
    nodes: str,
    strategies: str,
    loads: str,
    snapshot_interval: str,
    delay: str,
    policy: Path | None,
    profile: Path | None,
    **numbers: Any,
) -> Comparison | list[Fault]:
    """What the options mean, or every fault in them. `numbers` are those that the command line has checked."""
    faults: list[Fault] = []
    fleet = fleetplan.plan(nodes)
    contenders = _contenders(strategies, policy)
    shares = _loads(loads)
    interval_s = _seconds("snapshot-interval", snapshot_interval, INTERVAL_S_MIN, INTERVAL_S_MAX)
    delay_s = _seconds("delay", delay, 0.0, DELAY_S_MAX)
    cost = StepCost() if profile is None else engineprofile.read(profile)
    readable = workloads.arrivals(trace, 1, seed=0)
    for found in (fleet, contenders, shares, cost):
        if isinstance(found, list):
            faults += [one for one in found if isinstance(one, Fault)]
    faults += [one for one in (interval_s, delay_s, readable) if isinstance(one, Fault)]
    if faults:
        return faults
    assert isinstance(fleet, FleetPlan)
    assert isinstance(cost, StepCost)
    assert isinstance(contenders, tuple)
    assert isinstance(shares, tuple)
    assert isinstance(interval_s, float)
    assert isinstance(delay_s, float)
    return Comparison(
        trace=trace,
        fleet=fleet,
        contenders=contenders,
        loads=shares,
        snapshot_interval_s=interval_s,
        delay_s=delay_s,
        cost=cost,
        **numbers,
    )


def run(comparison: Comparison, jobs: int, console: Console) -> Compared:
    """Compare, with a bar on a terminal that shows how far it is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("")
        return comparisons.compare(
            comparison,
            jobs,
            lambda what, done, of: progress.update(bar, description=what, completed=done, total=of),
        )


def show(compared: Compared, console: Console) -> None:
    """Print the tables, as wide as they are where nobody's terminal is narrower."""
    if not console.is_terminal:
        console.width = WIDTH
    console.print(tables(compared))


def tables(compared: Compared) -> Group:
    """The rows for people: for each load how well requests fared, with the ratios to round robin, and how it came."""
    parts: list[Table] = []
    for load in dict.fromkeys(row.load for row in compared.rows):
        rows = [row for row in compared.rows if row.load == load]
        title = f"load {load:g}: {rows[0].rate_per_s:.3g} requests/s of {compared.capacity_per_s:.3g}"
        fared = _table(
            title, "ngood", "spread", "× rr", "TTFT p50", "p90", "p99 s", "p90 × rr", "TPOT p99", "slowdown", "× rr"
        )
        how = _table("", "preempted", "hits %", "refused", "failed", "% of the requests for each node")
        for row in rows:
            fared.add_row(*_fared(row))
            how.add_row(*_how(row))
        parts += [fared, how]
    return Group(*parts)


def as_json(comparison: Comparison, compared: Compared) -> dict[str, Any]:
    """All of it for machines."""
    settings: dict[str, Any] = {
        "trace": comparison.trace,
        "nodes": [node.name for node in comparison.fleet.nodes],
        "strategies": [contender.name for contender in comparison.contenders],
        "loads": list(comparison.loads),
        "cost": msgspec.to_builtins(comparison.cost),
    }
    for name in ("requests", "seeds", "routers", "snapshot_interval_s", "first_tokens", "lost_share", "delay_s"):
        settings[name] = getattr(comparison, name)
    return {
        "rows": [msgspec.to_builtins(row) for row in compared.rows],
        "capacity_per_s": compared.capacity_per_s,
        "cut": compared.cut,
        "settings": settings,
    }


def _contenders(strategies: str, policy: Path | None) -> tuple[Contender, ...] | list[Fault]:
    base: dict[str, Any] = {}
    if policy is not None:
        match yamlfile.load(policy):
            case Fault() as fault:
                return [fault]
            case yamlfile.Document(content):
                if not isinstance(content, dict):
                    return [Fault(str(policy), "a mapping", repr(content)[:GOT_CHARS_MAX])]
                base = content
        found = policy_from_mapping(base)
        if isinstance(found, list):
            return found
    names = strategies.split(",")
    if len(names) > comparisons.STRATEGIES_MAX or len(set(names)) < len(names):
        return [Fault("strategy", f"at most {comparisons.STRATEGIES_MAX} different ones", strategies[:GOT_CHARS_MAX])]
    contenders = [comparisons.contender(name, base) for name in names]
    faults = [fault for one in contenders if isinstance(one, list) for fault in one]
    return faults or tuple(one for one in contenders if isinstance(one, Contender))


def _loads(text: str) -> tuple[float, ...] | list[Fault]:
    try:
        loads = tuple(map(float, text.split(",")))
    except ValueError:
        loads = ()
    different = len(set(loads)) == len(loads) <= comparisons.LOADS_MAX
    if loads and different and all(LOAD_MIN <= load <= LOAD_MAX for load in loads):
        return loads
    wanted = f"different shares of the capacity, {LOAD_MIN:g} to {LOAD_MAX:g}, as 0.6,0.75"
    return [Fault("load", wanted, text[:GOT_CHARS_MAX])]


def _seconds(option: str, text: str, least: float, most: float) -> float | Fault:
    try:
        value = settingtypes.seconds(text)
    except ValueError as error:
        return Fault(option, str(error), text[:GOT_CHARS_MAX])
    return value if least <= value <= most else Fault(option, f"{least:g} to {most:g} s", text[:GOT_CHARS_MAX])


def _table(title: str, *headings: str) -> Table:
    made = Table(title=title, title_justify="left", box=box.SIMPLE)
    made.add_column("strategy", no_wrap=True)
    for heading in headings:
        made.add_column(heading, justify="right")
    return made


def _fared(row: Row) -> list[str]:
    return [
        row.strategy,
        f"{row.ngood:.3f}",
        f"{row.ngood_spread:.3f}",
        _shown(row.ngood_vs_round_robin),
        _shown(row.ttft_p50_s),
        _shown(row.ttft_p90_s),
        _shown(row.ttft_p99_s),
        _shown(row.ttft_p90_vs_round_robin),
        _shown(row.tpot_p99_s, 3),
        _shown(row.slowdown),
        _shown(row.slowdown_vs_round_robin),
    ]


def _how(row: Row) -> list[str]:
    shares = [share * 100 for share in row.per_node.values()]
    per_node = " ".join(f"{share:.1f}" for share in shares)
    if len(shares) > NODES_SHOWN_MAX:
        per_node = f"{min(shares):.1f} to {max(shares):.1f}"
    return [
        row.strategy,
        f"{row.preemptions:.0f}",
        f"{row.prefix_hits * 100:.1f}",
        f"{row.refused:.0f}",
        f"{row.failed:.0f}",
        per_node,
    ]


def _shown(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
