"""The simulated part of docs/results.md: strategies over workloads, loads and seeds, and what else decides.

    .venv/bin/python -m bench.strategies [--traces FOLDER] [--part NAME …] [--requests N] [--seeds 3] [--jobs 2]
        [--json FILE] [--from FILE …] [--markdown docs/results.md]

Azure's and Mooncake's traces are looked for in the folder by the names under which they are published:
AzureLLMInferenceTrace_conv.csv of github.com/Azure/AzurePublicDataset, and conversation_trace.jsonl of
github.com/kvcache-ai/Mooncake (FAST25-release/traces). Without them their workloads are left out.

All parts take one to two hours of two cores. `--json` keeps the figures of every run, as they come; `--from` takes what
it can from such files, and only the rest is run. The Markdown file gets the tables between its marks
`<!-- simulated -->` and `<!-- /simulated -->`.
"""

import signal
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.machine import machine
from bench.strategies import document, running
from bench.strategies.cases import Case, Scope, at_hand, source
from bench.strategies.document import PARTS
from bench.strategies.running import Figures
from extproc.core.settings import Fault
from extproc.sim import workloads

_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_WIDTH_MIN = 200
"""What the tables need; in a file they shall not be folded."""


def figures_of(
    cases: list[Case], traces: Path | None, jobs: int, known: dict[Case, Figures], keep: Path | None
) -> dict[Case, Figures]:
    """Run what is not known, with a bar, and keep the figures as they come."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True) as progress:
        bar = progress.add_task("runs")

        def told(so_far: dict[Case, Figures], total: int) -> None:
            progress.update(bar, completed=len(so_far), total=total)
            if keep is not None:
                running.write(keep, so_far.values())

        return running.run(cases, traces, jobs, known, told)


@click.command(help=__doc__)
@click.option("--traces", type=_FOLDER, help="Where the files of traces are.")
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
    console.width = max(console.width, _WIDTH_MIN)
    scope = Scope(at_hand(traces), seeds, requests)
    parts = parts or tuple(PARTS)
    known: dict[Case, Figures] = {}
    for path in sources:
        match running.read(path):
            case Fault() as fault:
                _give_up(console, str(fault))
            case figures:
                known |= figures
    for setting in scope.settings:
        readable = workloads.arrivals(source(setting, traces) or "", 1, seed=0)
        if isinstance(readable, Fault):
            _give_up(console, str(readable))
    before = markdown.read_text() if markdown is not None and markdown.exists() else ""
    if document.placed(before, "") is None:
        _give_up(console, f"{markdown}: wanted {document.BEGIN} and then {document.END}, each once")
    cases = [case for name in parts for case in PARTS[name].cases(scope)]
    console.print(f"{machine()}; {len(set(cases) - known.keys())} runs, {len(set(cases) & known.keys())} known")
    found = figures_of(cases, traces, jobs, known, as_json)
    for name in parts:
        part = PARTS[name]
        for grid in part.grids(scope, found):
            console.print(grid.rich())
        for told in part.checks(scope, found):
            console.print(f"• {told}", highlight=False)
    if markdown is not None:
        markdown.write_text(document.placed(before, document.written(parts, scope, found)) or "")
    console.print(f"[dim]{time.monotonic() - begun_s:.0f} s in all[/dim]")


def _give_up(console: Console, why: str) -> None:
    console.print(f"[red]✗[/red] {escape(why)}")
    sys.exit(1)


if __name__ == "__main__":
    # Ended like an interrupt ends it, lest its processes stay.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
