"""One, three and eight routers behind up to three Envoys, with exchange over NATS and without, before eight engines.

    .venv/bin/python -m bench.routers [--workload agents …] [--arm "3 routers, with exchange" …] [--rounds 3]
        [--requests N] [--load 0.65] [--speed 1] [--keep FILE] [--markdown docs/results.md]

Workloads, engines and capacity are those of the simulator. In each round every arm gets the same requests at the same
moments before engines that are new, and in the next one another arm begins. `--keep` is a file of figures: runs that
stand there are not made again. The Markdown file gets the tables between `<!-- routers -->` and `<!-- /routers -->`.
"""

import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec
import uvloop
from msgspec import structs
from rich.console import Console

from bench.machine import machine
from bench.routers import simulated, tables
from bench.routers.requests import WORKLOADS, arrivals, written
from bench.routers.runs import Run, run
from bench.routers.system import ARMS, Arm
from bench.strategies import document
from extproc.children import ChildFailedError

BEGIN: Final = "<!-- routers -->"
END: Final = "<!-- /routers -->"
REQUESTS: Final = {"agents": 2500, "heavy": 600}
"""Of each run, if nobody says another number."""


async def measured(
    workload: str, arms: Sequence[Arm], turn: int, requests: int, load: float, speed: float, known: list[Run]
) -> list[Run]:
    """The runs of one round that are not known."""
    there = {(one.workload, one.arm, one.round) for one in known}
    missing = [arm for arm in arms if (workload, arm.name, turn) not in there]
    if not missing:
        return []
    same = written(arrivals(workload, requests, load, turn + 1, speed))
    found = []
    for place in range(len(missing)):
        arm = missing[(place + turn) % len(missing)]
        with tempfile.TemporaryDirectory(prefix="extproc-routers-") as folder:
            found.append(await run(workload, arm, turn, same, Path(folder), speed, lambda _: None))
        one = found[-1]
        print(
            f"{workload} {turn + 1} {arm.name}: ngood {one.measures.ngood:.3f}, p90 {one.measures.ttft_p90_s}, "
            f"error {one.mean_error:.2f} of {one.mean_held:.1f}, machine {one.cores['machine']:.2f}, "
            f"failed {one.failures}, left {one.left[:2]}",
            flush=True,
        )
    return found


def kept(path: Path | None) -> list[Run]:
    """The runs of a file."""
    return msgspec.json.decode(path.read_bytes(), type=list[Run]) if path is not None and path.exists() else []


def _with_simulated(one: Run, load: float) -> Run:
    arm = next(arm for arm in ARMS if arm.name == one.arm)
    ngood = simulated.ngood(
        one.workload, one.measures.requests, load, one.round + 1, arm.routers, exchange=arm.exchange
    )
    return structs.replace(one, simulated_ngood=ngood)


@click.command(help=__doc__)
@click.option("--workload", "workloads", multiple=True, type=click.Choice(WORKLOADS), help="Only these.")
@click.option("--arm", "names", multiple=True, type=click.Choice([one.name for one in ARMS]), help="Only these.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(0, 100), help="0: tables of --keep alone.")
@click.option("--requests", type=click.IntRange(20, 100_000), help="Of each run. Default: by workload.")
@click.option("--load", default=0.65, show_default=True, type=click.FloatRange(0.05, 2), help="Of the capacity.")
@click.option(
    "--speed", default=1.0, show_default=True, type=click.FloatRange(0.1, 1), help="Of engines and intervals."
)
@click.option("--keep", type=click.Path(dir_okay=False, path_type=Path), help="Figures of runs, read and written.")
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Put the tables there.")
def main(
    workloads: tuple[str, ...],
    names: tuple[str, ...],
    rounds: int,
    requests: int | None,
    load: float,
    speed: float,
    keep: Path | None,
    markdown: Path | None,
) -> None:
    """Compare."""
    begun_s = time.monotonic()
    console = Console(width=max(Console().width, 160))
    before = markdown.read_text() if markdown is not None and markdown.exists() else ""
    if document.placed(before, "", BEGIN, END) is None:
        console.print(f"[red]✗[/red] {markdown}: wanted {BEGIN} and then {END}, each once")
        sys.exit(1)
    console.print(machine())
    runs = kept(keep)
    arms = [one for one in ARMS if one.name in names or not names]
    chosen = workloads or WORKLOADS
    try:
        for turn in range(rounds):
            for workload in chosen:
                wanted = requests or REQUESTS[workload]
                runs += uvloop.run(measured(workload, arms, turn, wanted, load, speed, runs))
                if keep is not None:
                    keep.write_bytes(msgspec.json.format(msgspec.json.encode(runs)))
    except ChildFailedError as error:
        console.print(f"✗ {error}", markup=False)
        sys.exit(1)
    runs = [_with_simulated(one, load) for one in runs]
    texts = [f"On {machine()}."]
    for workload in chosen:
        own = [one for one in runs if one.workload == workload]
        for grid in (each(workload, own) for each in (tables.of_clients, tables.of_truth, tables.of_machine)):
            console.print(grid.rich())
            texts.append(document.unfolded(grid))
    if markdown is not None:
        markdown.write_text(document.placed(before, "\n\n".join(texts), BEGIN, END) or "")
    console.print(f"[dim]{time.monotonic() - begun_s:.0f} s in all[/dim]")


if __name__ == "__main__":
    # Ended like an interrupt ends it, lest its processes stay.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
