"""What the exchange costs: messages, bytes and processor time of three routers at 1,000 requests a second, 100 nodes.

    .venv/bin/python -m bench.routers.traffic [--seconds 20] [--rounds 3] [--markdown docs/results.md]

Each router is a process of its own: the balancer of `serve` with the exchange over a real NATS server, told of a third
of the requests as the gateway would, and of a report of every node a second. No Envoy, no engine, no HTTP: what is
measured is what the exchange adds. Half of the requests are the simulator's agents, whose prompts share long
beginnings and whose turns come to all routers; half are chats of 1 to 8 KB that nobody shares. In each round all
arms run one after the other; processor time is that of a whole process, so the exchange's is a difference.
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


async def phase(folder: Path, url: str, arm: Arm, seconds: float) -> list[Spent]:
    """All routers of one arm, at once."""
    children: list[Child] = []
    try:
        for place in range(ROUTERS):
            command = (sys.executable, "-m", "bench.routers.fed", url, arm.value, f"{place}", f"{ROUTERS}")
            rates = (f"{REQUESTS_PER_S}", f"{NODES}", f"{seconds}")
            children.append(await Child.start(f"router-{place}", [*command, *rates], folder))
        found = [await one.logged(r"^\{.*\}$", within_s=seconds + 120) for one in children]
    finally:
        await asyncio.gather(*(one.stop() for one in children))
    return [Spent(**json.loads(one[0])) for one in found]


def of_traffic(found: dict[Arm, list[Spent]]) -> Grid:
    """A router's messages and bytes."""
    columns = ("sent: messages/s", "KB/s", "heard: messages/s", "KB/s")
    grid = Grid(
        f"One of {ROUTERS} routers, {REQUESTS_PER_S:,} requests/s in all, {NODES} nodes: what it says and hears",
        ("", *columns),
    )
    told = found[Arm.ALL]
    for channel in (*CHANNELS, "all"):
        names = CHANNELS if channel == "all" else (channel,)
        cells = [
            spread((sum(figures[name] for name in names) / scale for figures in each), digits)
            for each, scale, digits in (
                ([one.sent_per_s for one in told], 1, 1),
                ([one.sent_bytes_per_s for one in told], 1000, 1),
                ([one.heard_per_s for one in told], 1, 1),
                ([one.heard_bytes_per_s for one in told], 1000, 1),
            )
        ]
        grid.rows.append((channel, *cells))
    return grid


def of_cores(found: dict[Arm, list[Spent]]) -> Grid:
    """A router's processor time."""
    grid = Grid(
        "The same: processor cores that one router takes, by what it tells",
        ("", "cores", "more than alone", "requests/s"),
    )
    alone = [one.cores for one in found[Arm.NONE]]
    for arm, told in found.items():
        # The same router and round beside each other: what the machine did meanwhile met both.
        more = [one.cores - before for one, before in zip(told, alone, strict=True)]
        rates = spread((one.requests_per_s for one in told), 0)
        cost = "" if arm is Arm.NONE else spread(more, 3)
        grid.rows.append((arm.about, spread((one.cores for one in told), 3), cost, rates))
        if arm is Arm.ALL:
            met = "met" if median(more) <= AIM else "missed"
            grid.notes.append(f"aim: the exchange takes at most {AIM:.0%} of a core: {met}, {spread(more, 3)}")
    return grid


async def measured(seconds: float, rounds: int) -> dict[Arm, list[Spent]]:
    """Every arm in each round. Raises ChildFailedError."""
    found: dict[Arm, list[Spent]] = {arm: [] for arm in Arm}
    with tempfile.TemporaryDirectory(prefix="extproc-exchange-") as folder:
        async with Fleet(Path(folder)) as fleet:
            nats = await fleet.nats()
            for turn in range(rounds):
                arms = list(Arm)
                for place in range(len(arms)):
                    arm = arms[(place + turn) % len(arms)]
                    found[arm] += await phase(Path(folder), nats.url, arm, seconds)
                    print(turn + 1, arm.about, [round(one.cores, 3) for one in found[arm][-ROUTERS:]], flush=True)
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
