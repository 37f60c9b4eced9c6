"""Several routers in the simulation: what it costs that there is not one, by what they tell each other.

    .venv/bin/python -m bench.exchange [--traces FOLDER] [--part NAME …] [--requests N] [--seeds 3] [--jobs 2]
        [--json FILE] [--from FILE …] [--markdown docs/results.md]

Workloads, traces, their files' names and engines are those of `bench.strategies`, and so is what `--json` and `--from`
do. All parts take about half an hour of two cores. The Markdown file gets the tables between its marks
`<!-- exchange -->` and `<!-- /exchange -->`.
"""

import signal
import sys
import time
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from bench.exchange import tables
from bench.exchange.cases import PARTS, WORKLOADS
from bench.machine import machine
from bench.strategies import document, running
from bench.strategies.__main__ import figures_of
from bench.strategies.cases import Case, Scope, at_hand
from bench.strategies.running import Figures
from extproc.core.settings import Fault
from extproc.sim import workloads

BEGIN: Final = "<!-- exchange -->"
END: Final = "<!-- /exchange -->"
_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command(help=__doc__)
@click.option("--traces", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Where traces are.")
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="Only these.")
@click.option("--requests", type=click.IntRange(10, workloads.REQUESTS_MAX), help="Of each run. Default: by workload.")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1, 1000))
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1, 256), help="Processes.")
@click.option("--json", "as_json", type=_FILE, help="Keep the figures there.")
@click.option("--from", "sources", multiple=True, type=_FILE, help="Figures that are known.")
@click.option("--markdown", type=_FILE, help="Put the tables there.")
def main(
    traces: Path | None,
    parts: tuple[str, ...],
    requests: int | None,
    seeds: int,
    jobs: int,
    as_json: Path | None,
    sources: tuple[Path, ...],
    markdown: Path | None,
) -> None:
    """Simulate, and write."""
    begun_s = time.monotonic()
    console = Console()
    console.width = max(console.width, 200)
    known: dict[Case, Figures] = {}
    for path in sources:
        match running.read(path):
            case Fault() as fault:
                _give_up(console, str(fault))
            case figures:
                known |= figures
    before = markdown.read_text() if markdown is not None and markdown.exists() else ""
    if document.placed(before, "", BEGIN, END) is None:
        _give_up(console, f"{markdown}: wanted {BEGIN} and then {END}, each once")
    scope = Scope(tuple(one for one in at_hand(traces) if one.name in WORKLOADS), seeds, requests)
    names = list(parts or PARTS)
    cases = [case for name in names for case in PARTS[name].cases(scope)]
    console.print(f"{machine()}; {len(set(cases) - known.keys())} runs, {len(set(cases) & known.keys())} known")
    found = figures_of(cases, traces, jobs, known, as_json)
    text = tables.written(names, scope, found)
    console.print(text, markup=False, highlight=False)
    if markdown is not None:
        markdown.write_text(document.placed(before, text, BEGIN, END) or "")
    console.print(f"[dim]{time.monotonic() - begun_s:.0f} s in all[/dim]")


def _give_up(console: Console, why: str) -> None:
    console.print(f"✗ {why}", markup=False, style="red")
    sys.exit(1)


if __name__ == "__main__":
    # Ended like an interrupt ends it, lest its processes stay.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
