"""The commands that look at files and at simulated time, and end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from extproc.cli.common import CONFIG_FILE, refuse

if TYPE_CHECKING:
    from extproc.counting import FileCount


@click.command()
@click.option(
    "--tokenizer", type=click.Path(path_type=Path), required=True, help="A tokenizer.json, or the folder of a model."
)
@click.option("--chat", is_flag=True, help="Files are chats in JSON: messages, or the body of a request.")
@click.option("--chat-template", type=click.Path(path_type=Path), help="A Jinja file instead of the folder's template.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
def count(tokenizer: Path, chat: bool, chat_template: Path | None, as_json: bool, files: tuple[Path, ...]) -> None:
    """Count the tokens of files, or of standard input, as serve counts prompts.

    \b
    A text, as the prompt of a completion:
      extproc count --tokenizer models/qwen3 prompt.txt
    A chat, through the model's template:
      echo '[{"role": "user", "content": "Hello"}]' | extproc count --tokenizer models/qwen3 --chat

    \b
    Above the table stands what counts: the library and why that one, by what chats are rendered, and the control token
    in front of which they are cut, so that a chat's next turn need not be counted whole. Exact: vLLM and llama.cpp
    count the same. Exit status 1 if a file could not be counted.
    """
    import msgspec

    from extproc.counting import FILE_BYTES_MAX, Counting
    from extproc.ops import logs

    logs.configure(logs.LogFormat.AUTO, "warning")
    try:
        counting = Counting(tokenizer, chat_template)
    except ValueError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    found = []
    for one in files or (Path("-"),):
        with click.open_file(str(one), "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)  # a pipe may have no end
        found.append(counting.count("standard input" if str(one) == "-" else str(one), content, chat=chat))
    shown = counting.shown
    if as_json:
        click.echo(json.dumps({"tokenizer": shown, "files": [msgspec.structs.asdict(one) for one in found]}, indent=2))
    else:
        _print_counts(shown, found)
    sys.exit(any(one.fault is not None for one in found))


@click.command()
@click.option("--trace", required=True, help="A file of Azure's or Mooncake's traces, or generated:heavy and the like.")
@click.option(
    "--nodes", default="8", show_default=True, help="So many equal nodes; even, unequal, unequal:16; or a fleet file."
)
@click.option("--load", "loads", default="0.6", show_default=True, help="Shares of the measured capacity, as 0.6,0.75.")
@click.option(
    "--strategy",
    "strategies",
    default="round-robin,least-inflight,lmetric,least-added-delay",
    show_default=True,
    help="Also as name:setting=value, a setting of its policy; and reference, which knows everything.",
)
@click.option("--snapshot-interval", default="1s", show_default=True, help="How often agents report.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runs of each.")
@click.option("--routers", type=click.IntRange(1, 100), default=1, show_default=True, help="Each with its own view.")
@click.option(
    "--exchange",
    default="none",
    show_default=True,
    help="What routers tell each other: none, their loads so often, as 0.5s or 2s, or prefixes too.",
)
@click.option("--requests", type=click.IntRange(10, 200_000), default=20_000, show_default=True, help="In each run.")
@click.option(
    "--first-tokens/--no-first-tokens",
    default=False,
    show_default=True,
    help="Whether routers see first tokens as they come, or by snapshots alone.",
)
@click.option(
    "--kv-events/--no-kv-events",
    default=False,
    show_default=True,
    help="Whether nodes tell what their prefix caches have, or routers estimate it.",
)
@click.option(
    "--lost-share", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Ends that no router is told."
)
@click.option("--delay", default="1ms", show_default=True, help="One way, between routers and nodes.")
@click.option("--policy", type=CONFIG_FILE, help="A YAML file with the other settings of all policies.")
@click.option("--config", type=CONFIG_FILE, help="A configuration of serve: its classes, rates, limits of nodes.")
@click.option("--priorities", help="Classes of kinds of requests, as chat=interactive,code=batch.")
@click.option("--profile", type=CONFIG_FILE, help="A YAML file with the times of an engine's steps.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Processes.  [default: one for each CPU]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw a .png or .svg too.")
def simulate(jobs: int | None, as_json: bool, plot: Path | None, **options: Any) -> None:
    """Compare strategies in a simulation of engines, with the code that serve runs.

    \b
    With generated requests, or with a trace:
      extproc simulate --trace generated:heavy --strategy round-robin,lmetric,least-added-delay
      extproc simulate --trace azure.csv --nodes fleet.yaml --load 0.6,0.75 --seeds 3 --routers 3 --exchange prefixes
    Generated are conv, code, mix, heavy, agents and chats.

    \b
    Overloaded, without and with an objective for the first token; and with classes, some of which may wait:
      extproc simulate --trace generated:mix --load 1.1 --strategy least-added-delay,least-added-delay:ttft_s=2
      extproc simulate --trace generated:mix --load 1.1 --strategy least-added-delay:ttft_s=2 --priorities code=batch

    ngood is the share of requests with a TTFT under 2 s, or five times that of an idle engine, and a TPOT under 100 ms.
    """
    from rich.console import Console

    from extproc import comparing, comparisonprogress, comparisontable, plotting
    from extproc.core.settings import Fault

    if plot is not None and (fault := plotting.checked(plot)) is not None:
        refuse([fault])
    comparison = comparing.understood(**options)
    if isinstance(comparison, list):
        refuse(comparison)
    repeated = comparing.repeated(comparison)
    if repeated is not None:
        click.echo(repeated, err=True)
    compared = comparisonprogress.run(comparison, jobs or comparing.jobs_default(), Console(stderr=True))
    if as_json:
        click.echo(json.dumps(comparing.as_json(comparison, compared), indent=2))
    else:
        comparisontable.show(compared, Console(highlight=False))
        if repeated is not None:
            click.echo(repeated)
    if compared.cut:
        click.echo(f"{compared.cut} requests were longer than a node's context, and were cut to it.", err=True)
    if plot is not None:
        try:
            plotting.draw(compared, f"{comparison.trace}, {len(comparison.fleet.nodes)} nodes", plot)
        except OSError as error:
            refuse([Fault("--plot", plotting.WRITABLE, error.strerror or str(error))])


@click.command()
@click.argument("journal", type=click.Path(path_type=Path))
@click.option(
    "--strategy", help="Show what this strategy would have chosen, also as name:setting=value, all else as recorded."
)
@click.option("--policy", "policy_file", type=CONFIG_FILE, help="The same for a policy in a YAML or JSON file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(journal: Path, strategy: str | None, policy_file: Path | None, as_json: bool) -> None:
    """Run the journal that serve wrote through the balancer again.

    \b
    Does every decision come out the same? Exit status 1 if not, or if lines are damaged, or nothing can be compared:
      extproc replay extproc.journal
    What would another strategy, or another policy, have chosen?
      extproc replay extproc.journal --strategy round-robin
      extproc replay extproc.journal --policy policy.yaml --json

    The files of a rotation (extproc.journal.1 and so on) are read with it, the oldest first.
    """
    import msgspec
    from rich.console import Console
    from rich.progress import Progress

    from extproc.core.settings import Fault
    from extproc.replay.drive import run
    from extproc.replay.other import other_of
    from extproc.replay.table import shown

    if strategy is not None and policy_file is not None:
        msg = "--strategy replaces the policies' own, --policy the whole: give one of them"
        raise click.UsageError(msg)
    other = other_of(strategy, policy_file)
    if isinstance(other, list):
        refuse(other)
    terminal = Console(stderr=True)
    with Progress(console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        bar = progress.add_task("replaying", total=None)
        replayed = run(journal, other, lambda done, total: progress.update(bar, completed=done, total=total))
    if isinstance(replayed, Fault):
        refuse([replayed])
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(replayed) | {"good": replayed.good}, indent=2))
    else:
        Console(highlight=False).print(shown(replayed))
    if replayed.unproven is not None:
        click.echo(f"{journal}: {replayed.unproven}", err=True)
    sys.exit(not replayed.good)


def _print_counts(tokenizer: dict[str, str | None], found: Iterable[FileCount]) -> None:
    for name, value in tokenizer.items():
        if value is not None:
            click.echo(f"{name:<10} {value}")
    click.echo(f"{'tokens':>10}  exact  {'how':<20}  {'bytes':>10}  {'ms':>8}  file")
    for one in found:
        if one.fault is not None:
            click.echo(f"{one.file}: {one.fault}", err=True)
            continue
        exact = "yes" if one.exact else "no"
        milliseconds = one.seconds * 1000
        click.echo(f"{one.tokens:>10}  {exact:<5}  {one.how:<20}  {one.bytes:>10}  {milliseconds:>8.2f}  {one.file}")
