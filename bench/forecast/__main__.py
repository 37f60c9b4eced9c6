"""The forecast's part of docs/results.md: nodes that it asks for, against those that each minute needed in hindsight.

    .venv/bin/python -m bench.forecast [--traces FOLDER] [--case NAME …] [--minutes N] [--markdown docs/results.md]

Traces and their files' names are those of `bench.strategies`. All cases take about ten minutes of one core. The
Markdown file gets the tables between its marks `<!-- forecast -->` and `<!-- /forecast -->`.
"""

import sys
import time
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.markup import escape

from bench.forecast.cases import CASES, Case, at_hand, demanded
from bench.forecast.following import FIRST, KNOWN, NAMES, Played, play, ways
from bench.forecast.hindsight import needed, windows_of
from bench.forecast.tables import grid, picture
from bench.machine import machine
from bench.strategies import document
from extproc import runprogress
from extproc.core.settings import Fault
from extproc.runprogress import Tell
from extproc.sim import parallel
from extproc.sim.traces import Arrival

BEGIN: Final = "<!-- forecast -->"
END: Final = "<!-- /forecast -->"


def measured(case: Case, arrivals: list[Arrival], console: Console, tell: Tell) -> str:
    """Show one case, and what a document gets of it."""
    windows = range(KNOWN, windows_of(arrivals))
    if len(windows) <= FIRST - KNOWN:
        return f"**{case.name}: too short**"
    needs = parallel.each(partial(needed, arrivals), windows, None, partial(tell, f"{case.name}: minutes in hindsight"))
    runs = 0

    @cache
    def played(told: tuple[int, ...]) -> Played:
        nonlocal runs
        tell(f"{case.name}: fleets", runs, len(NAMES))
        runs += 1
        return play(arrivals, max(needs), told)

    found, told_needs = ways(arrivals, needs, played), needs[FIRST - KNOWN :]
    title = f"{case.name}: {len(told_needs)} minutes, {len(arrivals) / arrivals[-1].at_s:.1f} requests/s"
    table, bars = grid(title, found, told_needs), picture(found[0].told, told_needs)
    console.print(table.rich())
    console.print(bars, highlight=False)
    return f"{document.unfolded(table)}\n\n```\n{bars}\n```"


@click.command(help=__doc__)
@click.option("--traces", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Where traces are.")
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)), help="Only these.")
@click.option("--minutes", type=click.IntRange(12, 1440), help="Of each case, at most. Default: by case.")
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Put the tables there.")
def main(traces: Path | None, names: tuple[str, ...], minutes: int | None, markdown: Path | None) -> None:
    """Simulate, and write."""
    begun_s = time.monotonic()
    console = Console()
    console.width = max(console.width, 200)
    before = markdown.read_text() if markdown is not None and markdown.exists() else ""
    if document.placed(before, "", BEGIN, END) is None:
        console.print(f"[red]✗[/red] {markdown}: wanted {BEGIN} and then {END}, each once")
        sys.exit(1)
    console.print(machine())
    texts = []
    with runprogress.told(Console(stderr=True), 1) as tell:
        for name in names or at_hand(traces):
            case = CASES[name] if minutes is None else replace(CASES[name], minutes=minutes)
            match demanded(case, traces):
                case Fault() as fault:
                    console.print(f"[red]✗[/red] {escape(str(fault))}")
                    sys.exit(1)
                case arrivals:
                    texts.append(measured(case, arrivals, console, tell))
    if markdown is not None:
        markdown.write_text(document.placed(before, "\n\n".join(texts), BEGIN, END) or "")
    console.print(f"[dim]{time.monotonic() - begun_s:.0f} s in all[/dim]")


if __name__ == "__main__":
    main()
