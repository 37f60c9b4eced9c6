"""What the exchange costs: messages, bytes and processor time of three routers at 1,000 requests a second, 100 nodes.

    .venv/bin/python -m bench.routers.traffic [--seconds 20] [--rounds 3] [--markdown docs/results.md]

Each router is a process of its own: the balancer of `serve` with the exchange over a real NATS server, told of a third
of the requests as the gateway would, and of a report of every node a second. No Envoy, no engine, no HTTP: what is
measured is what the exchange adds. Half of the requests are the simulator's agents, whose prompts share long
beginnings and whose turns come to all routers; half are chats of 1 to 8 KB that nobody shares. Processor time is that
of a whole process, so the exchange's is a difference: to three routers that get the same and tell nobody anything, and
that run at the same time, for what else the machine does makes every process dearer.
"""

import asyncio
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

import click
import uvloop
from rich.console import Console

from bench.engines.tables import spread
from bench.grid import Grid
from bench.machine import machine
from bench.routers.fed import CHANNELS, Arm, Spent
from bench.strategies import document
from extproc.children import Child, ChildFailedError
from extproc.fleet import Fleet

BEGIN: Final = "<!-- exchange traffic -->"
END: Final = "<!-- /exchange traffic -->"
ROUTERS: Final = 3
REQUESTS_PER_S: Final = 1000
NODES: Final = 100
AIM: Final = 0.05
"""Of a core, for the exchange."""
Pair = tuple[Spent, Spent]
"""A router that tells the others, and one that gets the same and is alone."""


async def phase(folder: Path, url: str, arm: Arm, seconds: float) -> list[Pair]:
    """All routers of one arm, and as many that are alone, at once."""
    children: dict[Arm, list[Child]] = {one: [] for one in (arm, Arm.NONE)}
    try:
        for place in range(ROUTERS):
            for one, started in children.items():
                command = (sys.executable, "-m", "bench.routers.fed", url, one.value, f"{place}", f"{ROUTERS}")
                rates = (f"{REQUESTS_PER_S}", f"{NODES}", f"{seconds}")
                started.append(await Child.start(f"{one.value}-{place}", [*command, *rates], folder))
        found = {
            one: [(await child.logged(r"^\{.*\}$", within_s=seconds + 120))[0] for child in started]
            for one, started in children.items()
        }
    finally:
        await asyncio.gather(*(child.stop() for started in children.values() for child in started))
    told, alone = ([Spent(**json.loads(line)) for line in found[one]] for one in (arm, Arm.NONE))
    return list(zip(told, alone, strict=True))


def of_traffic(found: dict[Arm, list[Pair]]) -> Grid:
    """A router's messages and bytes."""
    columns = ("sent: messages/s", "KB/s", "heard: messages/s", "KB/s")
    grid = Grid(
        f"One of {ROUTERS} routers, {REQUESTS_PER_S:,} requests/s in all, {NODES} nodes: what it says, and hears of "
        "the others",
        ("", *columns),
    )
    told = [one for one, _ in found[Arm.ALL]]
    for channel in (*CHANNELS, "all"):
        names = CHANNELS if channel == "all" else (channel,)
        cells = [
            spread((sum(figures[name] for name in names) / scale for figures in each), 1)
            for each, scale in (
                ([one.sent_per_s for one in told], 1),
                ([one.sent_bytes_per_s for one in told], 1000),
                ([one.heard_per_s for one in told], 1),
                ([one.heard_bytes_per_s for one in told], 1000),
            )
        ]
        grid.rows.append((channel, *cells))
    return grid


def of_cores(found: dict[Arm, list[Pair]]) -> Grid:
    """A router's processor time."""
    grid = Grid(
        f"The same: processor cores of one router at {REQUESTS_PER_S // ROUTERS} requests/s, by what it tells",
        ("", "cores", "alone, at the same time", "difference", "requests/s", "alone"),
    )
    for arm, pairs in found.items():
        more = [_at_rate(one) - _at_rate(alone) for one, alone in pairs]
        cells = (
            spread((_at_rate(one) for one, _ in pairs), 3),
            spread((_at_rate(alone) for _, alone in pairs), 3),
            spread(more, 3),
            spread((one.requests_per_s for one, _ in pairs), 0),
            spread((alone.requests_per_s for _, alone in pairs), 0),
        )
        grid.rows.append((arm.about, *cells))
        if arm is Arm.ALL:
            met = "met" if median(more) <= AIM else "missed"
            grid.notes.append(f"aim: the exchange takes at most {AIM:.0%} of a core: {met}, {spread(more, 3)}")
    return grid


def _at_rate(one: Spent) -> float:
    # Where a full machine left it less time than it needed it came to fewer requests.
    return one.cores * REQUESTS_PER_S / ROUTERS / one.requests_per_s


async def measured(seconds: float, rounds: int) -> dict[Arm, list[Pair]]:
    """Every arm that tells something, in each round. Raises ChildFailedError."""
    found: dict[Arm, list[Pair]] = {arm: [] for arm in (Arm.LOADS, Arm.ALL)}
    with tempfile.TemporaryDirectory(prefix="extproc-exchange-") as folder:
        async with Fleet(Path(folder)) as fleet:
            nats = await fleet.nats()
            for turn in range(rounds):
                for arm, pairs in found.items():
                    pairs.extend(await phase(Path(folder), nats.url, arm, seconds))
                    cores = [f"{one.cores:.3f} {alone.cores:.3f}" for one, alone in pairs[-ROUTERS:]]
                    print(turn + 1, arm.about, ", ".join(cores), flush=True)
    return found


@click.command(help=__doc__)
@click.option("--seconds", default=20.0, show_default=True, type=click.FloatRange(2, 600), help="Of each measurement.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 100))
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Put the tables there.")
def main(seconds: float, rounds: int, markdown: Path | None) -> None:
    """Measure."""
    begun_s = time.monotonic()
    console = Console(width=max(Console().width, 132))
    before = markdown.read_text() if markdown is not None and markdown.exists() else ""
    if document.placed(before, "", BEGIN, END) is None:
        console.print(f"[red]✗[/red] {markdown}: wanted {BEGIN} and then {END}, each once")
        sys.exit(1)
    console.print(machine())
    try:
        found = uvloop.run(measured(seconds, rounds))
    except ChildFailedError as error:
        console.print(f"✗ {error}", markup=False)
        sys.exit(1)
    grids = [of_traffic(found), of_cores(found)]
    for grid in grids:
        console.print(grid.rich())
    if markdown is not None:
        texts = [f"On {machine()}.", *map(document.unfolded, grids)]
        markdown.write_text(document.placed(before, "\n\n".join(texts), BEGIN, END) or "")
    console.print(f"[dim]{time.monotonic() - begun_s:.0f} s in all[/dim]")


if __name__ == "__main__":
    # Ended like an interrupt ends it, lest its processes stay.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
