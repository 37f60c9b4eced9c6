"""The command that says which signals tell anything."""

import json
import sys
from pathlib import Path

import click

from extproc.cli.common import refuse


@click.command()
@click.argument("journal", type=click.Path(path_type=Path))
@click.option("--node", default="", help="Only requests that went to this node.")
@click.option("--model", default="", help="Only requests for this model.")
@click.option(
    "--arm",
    type=click.Choice(["", "strategy", "control"]),
    default="",
    help="Only requests that a policy's canary chose by its strategy, or left to the round robin.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw a .png or .svg too.")
def correlate(journal: Path, node: str, model: str, arm: str, as_json: bool, plot: Path | None) -> None:
    """Tell how far each signal goes with the first tokens that followed.

    \b
    Which signals of the agents tell anything, on your own fleet, by the journal that serve wrote:
      extproc correlate extproc.journal --plot signals.png

    ρ is the rank correlation, -1 to 1, with its 95 % interval; beside its size: the same among requests of equal
    prompts. A signal that the router steers by looks weaker than it is, for it is kept low: with a canary,
    `--arm control` shows requests that went by turns. Nodes that are not alike are better looked at one by one, with
    `--node`. docs/correlate.md tells how to record, and how to read it. Exit status 1 where no request has a first
    token.
    """
    import msgspec
    from rich.console import Console
    from rich.progress import Progress

    from extproc import plotting
    from extproc.core.settings import Fault
    from extproc.correlate.gather import Wanted, gather, unmet
    from extproc.correlate.plot import draw
    from extproc.correlate.result import correlated
    from extproc.correlate.table import show

    if plot is not None and (fault := plotting.checked(plot)) is not None:
        refuse([fault])
    terminal = Console(stderr=True)
    wanted = Wanted(node, model, arm)
    with Progress(console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        bar = progress.add_task("reading", total=None)
        found = gather(journal, wanted, lambda done, total: progress.update(bar, completed=done, total=total))
    if isinstance(found, Fault):
        refuse([found])
    if faults := unmet(found, wanted):
        refuse(faults)
    result = correlated(found)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(result), indent=2, allow_nan=False))
    else:
        show(result, Console(highlight=False))
    if plot is not None and result.requests:
        try:
            draw(found, result, plot)
        except OSError as error:
            refuse([Fault("--plot", plotting.WRITABLE, error.strerror or str(error))])
    sys.exit(not result.requests)
