"""The overload part of docs/results.md: what objectives, limits, classes and waiting do when more comes than fits.

    .venv/bin/python -m bench.overload [--traces FOLDER] [--part NAME …] [--requests N] [--seeds 3] [--jobs 1]
        [--markdown docs/results.md]

Workloads, traces, their files' names and engines are those of `bench.strategies`. All parts take about half an hour of
one core. The Markdown file gets the tables between its marks `<!-- overload -->` and `<!-- /overload -->`.
"""

import signal
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from bench.machine import machine
from bench.overload.cases import PARTS
from bench.overload.running import grids, ran, tasks_of
from bench.strategies import document
from bench.strategies.cases import at_hand
from extproc import runprogress
from extproc.sim import parallel, processpool, workloads

BEGIN: Final = "<!-- overload -->"
END: Final = "<!-- /overload -->"


@click.command(help=__doc__)
@click.option("--traces", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Where traces are.")
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="Only these.")
@click.option("--requests", type=click.IntRange(10, workloads.REQUESTS_MAX), help="Of each run. Default: by workload.")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1, 1000))
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1, 256), help="Processes.")
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Put the tables there.")
def main(
    traces: Path | None,
    parts: tuple[str, ...],
    requests: int | None,
    seeds: int,
    jobs: int,
    markdown: Path | None,
) -> None:
    """Simulate, and write."""
    begun_s = time.monotonic()
    console = Console()
    console.width = max(console.width, 200)
    before = markdown.read_text() if markdown is not None and markdown.exists() else ""
    if document.placed(before, "", BEGIN, END) is None:
        console.print(f"[red]✗[/red] {markdown}: wanted {BEGIN} and then {END}, each once")
        sys.exit(1)
    chosen = [PARTS[name] for name in parts or PARTS]
    names = [one.name for one in at_hand(traces) if any(one.name in part.settings for part in chosen)]
    tasks = tasks_of(chosen, names, requests, seeds)
    console.print(f"{machine()}; {len(tasks)} runs")
    several = nullcontext() if jobs == 1 else processpool.of(jobs)
    with several as pool, runprogress.told(Console(stderr=True), jobs) as tell:
        measures = parallel.each(partial(ran, traces), tasks, pool, partial(tell, "runs"))
    found = dict(zip(tasks, measures, strict=True))
    texts = [f"Eight nodes, {seeds} seeds. Figures are means of the seeds; in brackets the greatest less the least."]
    for part in chosen:
        texts.append(f"### {part.title}")
        settings = [name for name in names if name in part.settings]
        for quantities, written in ((part.quantities, document.unfolded), (part.folded, document.folded)):
            for grid in grids(part, quantities, settings, seeds, found):
                console.print(grid.rich())
                texts.append(written(grid))
    if markdown is not None:
        markdown.write_text(document.placed(before, "\n\n".join(texts), BEGIN, END) or "")
    console.print(f"[dim]{time.monotonic() - begun_s:.0f} s in all[/dim]")


if __name__ == "__main__":
    # Ended like an interrupt ends it, lest its processes stay.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
