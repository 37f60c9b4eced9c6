"""A real vLLM behind our agent, `extproc serve` and Envoy: do the reports say what vLLM's own log says?

    VLLM_PYTHON=~/vllm/bin/python make real-vllm

Runs through load, a restart and sleep, in three to eight minutes, most of which are vLLM's two starts. Prints the
differences; exit status 1 where one is too large. docs/agent.md tells how to make the environment of VLLM_PYTHON.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.machine import machine
from bench.realvllm import kvcache
from bench.realvllm.agreement import Agreement, with_clients, with_log
from bench.realvllm.checks import Check, checks_of
from bench.realvllm.recording import recorded, written
from bench.realvllm.run import run
from extproc.children import ChildFailedError

_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, exists=True, path_type=Path)


def agreements_table(found: Sequence[Agreement]) -> Table:
    """Reports beside log and clients."""
    table = Table(title="Reports beside vLLM's log and the clients (requests, or percent)", title_justify="left")
    for column in ("", "beside", "compared", "nearest: equal", "mean", "worst", "beyond those around", "outside", ""):
        table.add_column(column, justify="left" if column in ("", "beside") else "right")
    for one in found:
        table.add_row(
            *(one.what, one.against, str(one.compared), f"{one.equal / max(1, one.compared):.0%}"),
            *(
                f"{one.nearest_mean:.2f}",
                f"{one.nearest_worst:.1f}",
                f"{one.beyond_worst:.2f}",
                f"{one.outside} (> {one.tolerance:g})",
            ),
            _mark(one.holds),
        )
    return table


def checks_table(found: Sequence[Check]) -> Table:
    """What must hold exactly."""
    table = Table(title="Totals beside the answers' own usage, and states", title_justify="left")
    for column in ("", "wanted", "got", ""):
        table.add_column(column)
    for one in found:
        table.add_row(one.what, escape(one.wanted), escape(one.got), _mark(one.holds))
    return table


def _mark(holds: bool) -> str:
    return "[green]✓[/green]" if holds else "[red]✗[/red]"


@click.command(help=__doc__)
@click.option("--python", envvar="VLLM_PYTHON", type=_FILE, help="The Python that has vLLM.  [env: VLLM_PYTHON]")
@click.option("--tokenizer", type=_FOLDER, help="A folder with a tokenizer of Qwen3; `make tokenizers` gets one.")
@click.option("--interval", "interval_s", default=0.5, show_default=True, help="The agent's, in seconds.")
@click.option("--record", type=_FILE, help="Write the run there, as JSON lines.")
@click.option("--record-events", type=_FILE, help="Write the second vLLM's KV events there.")
@click.option("--show", type=_FILE, help="Show a recorded run instead of making one.")
def main(
    python: Path | None,
    tokenizer: Path | None,
    interval_s: float,
    record: Path | None,
    record_events: Path | None,
    show: Path | None,
) -> None:
    """Run, or show."""
    console = Console(width=max(Console().width, 120))
    refused: list[str] = []
    if show is not None:
        recording = recorded(show)
    elif python is None or tokenizer is None:
        msg = "give the Python that has vLLM as VLLM_PYTHON, and --tokenizer, or --show"
        raise click.UsageError(msg)
    else:
        console.print(machine())
        with tempfile.TemporaryDirectory(prefix="extproc-real-vllm-") as folder:
            try:
                ran = asyncio.run(run(python, tokenizer, Path(folder), interval_s, console.print))
            except ChildFailedError as error:
                console.print(f"[red]✗[/red] {escape(str(error))}")
                sys.exit(1)
        recording, refused = ran.recording, ran.refused
        if record is not None:
            written(recording, record)
        if record_events is not None:
            restarted_s = [at_s for at_s, phase in recording.phases if phase == "start"][-1]
            pages = [page for page in recording.pages if page[0] >= restarted_s]
            kvcache.written(ran.heard, pages, record_events)
    agreements = with_log(recording) + with_clients(recording)
    checks = checks_of(recording)
    console.print(agreements_table(agreements))
    console.print(checks_table(checks))
    for reason in refused[:10]:
        console.print(f"[red]✗[/red] a report was refused: {escape(reason)}")
    hold = all(one.holds for one in agreements) and all(one.holds for one in checks)
    sys.exit(not hold or bool(refused))


if __name__ == "__main__":
    main()
