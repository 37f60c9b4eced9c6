"""What agents cost the router: many at once, slow ones among them, and all of them back after a restart.

    .venv/bin/python -m bench.ingest [--agents 1000] [--seconds 15]

Each case has an `extproc serve` of its own and its agents in another process (`bench.agents`), one report a second for
each node. CPU is that of the process of `serve` in /proc, whatever else runs: 10 % of a core at 1,000 reports a second
are 100 µs for each. Parts are measured in this process, one after the other; gRPC's, with threads, system calls and
event loop, is what is left. Decisions are asked of the same `serve` while it takes the reports.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import click
import grpc
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench import decide, ingestparts
from bench.machine import machine
from bench.streams import Direct, body_of
from extproc.children import Child
from extproc.core.policy import RoutingPolicy
from extproc.fleet import Fleet, Serve

SLOW = 50
TABLES = (1000, 4096)
SETTLE_S = 6.0
"""First round trips are over and connections quiet."""
DOWN_S = 12.0
"""By then agents have come to their longest pauses."""
PEAK_S = 0.25
GIVEN_UP_S = 60.0
DECISIONS_S = 0.1
"""A decision is asked for this often."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What one case came to."""

    case: str
    reports_per_s: float
    serve_share: float
    """Of a core."""
    report_us: float
    agents_share: float
    decide_us: float | None
    nodes_fresh: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """A restart: seconds from the listening of the new router."""

    first_s: float
    half_s: float
    all_s: float
    peak_share: float
    """Of a core, the highest of any `PEAK_S`."""


def cpu_s(pid: int) -> float:
    """CPU time of a process and its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def counters(serve: Serve) -> dict[str, float]:
    """Numbers of the metrics page without labels, and reports that were applied."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{serve.admin}/metrics") as response:
        lines = (line.rpartition(" ") for line in (await response.text()).splitlines() if line[:1] != "#")
        return {name: float(value) for name, _, value in lines if "{" not in name or "applied" in name}


async def nodes_fresh(fleet: Fleet, serve: Serve) -> int:
    """Nodes that requests may go to."""
    nodes = (await fleet.json(f"http://{serve.admin}/nodes"))["nodes"]
    return sum(one["freshness"] == "fresh" for one in nodes)


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Fleet, Serve]]:
    """A router."""
    with tempfile.TemporaryDirectory(prefix="extproc-bench-") as folder:
        async with Fleet(Path(folder)) as fleet:
            yield fleet, await fleet.serve({})


@asynccontextmanager
async def told(serve: Serve, folder: Path, agents: int, nodes_each: int, *options: str) -> AsyncIterator[Child]:
    """A router's agents."""
    numbers = (str(agents), str(nodes_each), *options)
    child = await Child.start("agents", (sys.executable, "-m", "bench.agents", str(serve.agents), *numbers), folder)
    try:
        await child.logged("opened", within_s=120)
        yield child
    finally:
        await child.kill()


async def ask(serve: Serve) -> None:
    """Decisions now and then, until cancelled."""
    async with grpc.aio.insecure_channel(str(serve.extproc)) as channel:
        way = Direct([channel], body_of("llama", 1000), policy="default", waits=False)
        while True:
            opened = await way.open()
            await way.close([] if opened is None else [opened])
            await asyncio.sleep(DECISIONS_S)


async def take(case: str, agents: int, nodes_each: int, seconds: float, *options: str) -> Taken:
    """One case."""
    async with running() as (fleet, serve), told(serve, fleet.folder, agents, nodes_each, *options) as child:
        await asyncio.sleep(SETTLE_S)
        began_s = time.monotonic()
        before = await counters(serve)
        cpu, agents_cpu, cpu_from_s = cpu_s(serve.child.pid), cpu_s(child.pid), time.monotonic()
        await asyncio.sleep(seconds)
        passed_s, cpu_passed_s = time.monotonic() - began_s, time.monotonic() - cpu_from_s
        cpu, agents_cpu = cpu_s(serve.child.pid) - cpu, cpu_s(child.pid) - agents_cpu
        after = await counters(serve)
        applied = 'extproc_snapshots_total{verdict="applied"}'
        reports = after[applied] - before[applied]
        asking = asyncio.create_task(ask(serve))
        await asyncio.sleep(seconds / 2)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        end = await counters(serve)
        decided, spent_s = (
            end[f"extproc_decide_seconds_{one}"] - after[f"extproc_decide_seconds_{one}"] for one in ("count", "sum")
        )
        return Taken(
            case,
            reports / passed_s,
            cpu / cpu_passed_s,
            cpu / reports * 1e6,
            agents_cpu / cpu_passed_s,
            spent_s / decided * 1e6 if decided else None,
            await nodes_fresh(fleet, serve),
        )


async def restart(agents: int, down_s: float) -> Restarted:
    """The router is killed, and another takes its place."""
    async with running() as (fleet, serve), told(serve, fleet.folder, agents, 1) as child:
        await asyncio.sleep(SETTLE_S)
        await fleet.kill(serve.child)
        await asyncio.sleep(down_s)
        again = await fleet.serve({"listen": serve.listen})
        listening_s, pid = time.monotonic(), again.child.pid
        peak_share, seen, turn_s = 0.0, cpu_s(pid), listening_s
        reached_s: list[float] = []
        while len(reached_s) < agents and turn_s - listening_s < GIVEN_UP_S:
            await asyncio.sleep(PEAK_S)
            now_s, now = time.monotonic(), cpu_s(pid)
            peak_share = max(peak_share, (now - seen) / (now_s - turn_s))
            turn_s, seen = now_s, now
            lines = (line.split() for line in child.log.read_text().splitlines())
            reached_s = sorted(float(words[1]) - listening_s for words in lines if words[0] == "reached")[agents:]
        reached_s += [float("inf")] * (agents - len(reached_s))
        return Restarted(reached_s[0], reached_s[agents // 2], reached_s[agents - 1], peak_share)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """What people read."""
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        made.add_column(column, justify="right" if place else "left")
    for row in rows:
        made.add_row(*map(str, row))
    return made


def measure(agents: int, seconds: float, console: Console) -> None:
    """Print all tables."""
    cases: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
        (f"{agents} × 1, each report whole and acknowledged", agents, 1, ("--plain",)),
        (f"{agents} × 1", agents, 1, ()),
        (f"{agents} × 1, and {SLOW} slow ones", agents - SLOW, 1, ("--slow", str(SLOW))),
        ("16 × 64", 16, 64, ()),
    )
    found = [asyncio.run(take(case, count, each, seconds, *options)) for case, count, each, options in cases]
    rows = [
        (
            *(one.case, f"{one.reports_per_s:.0f}", f"{100 * one.serve_share:.1f}", f"{one.report_us:.0f}"),
            *(
                f"{100 * one.agents_share:.1f}",
                "" if one.decide_us is None else f"{one.decide_us:.0f}",
                one.nodes_fresh,
            ),
        )
        for one in found
    ]
    columns = (
        "agents × nodes",
        "reports/s",
        "serve, % of a core",
        "µs a report",
        "agents, %",
        "decide µs",
        "nodes fresh",
    )
    console.print(table(f"One report a second of each node · {machine()}", columns, rows))
    each = ingestparts.parts(agents)
    rest = found[1].report_us - sum(each[one] for one in ("protobuf", "snapshot", "observe"))
    shown = [*each.items(), (f"gRPC, loop and the rest of {found[1].case}", rest)]
    console.print(table("Parts of a report", ("part", "µs"), [(name, f"{us:.1f}") for name, us in shown]))
    alone = decide.measured(1000, RoutingPolicy())
    console.print(f"bench.decide, 1000 nodes, this run: decide {alone['decide']:.0f} µs, route {alone['route']:.0f} µs")
    sizes = [(nodes, ingestparts.node_bytes(nodes)) for nodes in TABLES]
    held = [(nodes, f"{size:.0f}", f"{nodes * size / 2**20:.1f}") for nodes, size in sizes]
    console.print(table("Memory of nodes without requests", ("nodes", "bytes each", "MiB"), held))
    back = asyncio.run(restart(agents, DOWN_S))
    cells = (*(f"{one_s:.1f}" for one_s in (back.first_s, back.half_s, back.all_s)), f"{100 * back.peak_share:.0f}")
    headings = ("the first, s after it listens", "half", "all", "peak CPU of serve, % of a core")
    console.print(table(f"A router that was away for {DOWN_S:g} s and {agents} agents", headings, [cells]))


@click.command(help=__doc__)
@click.option("--agents", default=1000, show_default=True, help="Agents of one node each.")
@click.option("--seconds", default=15.0, show_default=True, help="How long each case is measured.")
def main(agents: int, seconds: float) -> None:
    """Measure."""
    measure(agents, seconds, Console(width=120))


if __name__ == "__main__":
    main()
