"""The command line. Each command imports what it needs when it runs, so that `--help` is there at once."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from extproc.core.settings import Fault
    from extproc.counting import FileCount

_AGENT_OPTIONS = {
    "engines.0.node_id": "--node-id",
    "engines.0.engine": "--engine",
    "engines.0.host": "--host",
    "engines.0.engine_kind": "--engine-kind",
    "engines.0.weight": "--weight",
    "engines.0.gpu": "--gpu",
    "interval_s": "--interval",
}
"""How the settings of one engine are written on the command line."""

_CONFIG_FILE = click.Path(dir_okay=False, path_type=Path)


def _logged(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that runs until it is stopped the options of its log."""
    for option in (
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default="info",
            show_default=True,
            help="The least that is logged.",
        ),
        click.option(
            "--log-format",
            type=click.Choice(["auto", "json", "text"]),
            default="auto",
            show_default=True,
            help="auto: text on a terminal, JSON elsewhere. Logs go to stderr.",
        ),
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="extproc")
def main() -> None:
    """LLM-aware load balancing for Envoy.

    \b
    See it work, all on this machine:        extproc demo
    Beside Envoy:                            extproc serve --config extproc.yaml
    Beside an inference engine:              extproc agent --router 10.0.0.1:9004 --node-id gpu-1 \\
                                               --engine http://127.0.0.1:8000 --host 10.0.0.2:8000
    What is wrong with a configuration:      extproc check extproc.yaml
    What an agent would report:              extproc agent … --print
    An engine that needs no GPU:             extproc emulate --listen 127.0.0.1:8000
    """


@main.command()
@click.option("--config", "file", type=_CONFIG_FILE, help="A YAML or JSON file; without one the defaults hold.")
@_logged
def serve(file: Path | None, log_format: str, log_level: str) -> None:
    """Choose nodes for Envoy's requests, and listen to the agents.

    \b
    On the defaults, for Envoy on 127.0.0.1:9002, agents on :9004, operators on :9090:
      extproc serve
    With a configuration:
      extproc serve --config extproc.yaml
    Is it ready, what does it know, what did it decide:
      curl 127.0.0.1:9090/readyz 127.0.0.1:9090/nodes 127.0.0.1:9090/decisions?limit=3

    The log names the addresses once all three listen. SIGTERM or Ctrl-C drains: requests in flight keep running
    through Envoy; a second one ends the process at once.
    """
    from extproc import app, config
    from extproc.ops import logs

    settings = config.Config() if file is None else config.read(file)
    if isinstance(settings, list):
        _refuse(settings)
    logs.configure(logs.LogFormat(log_format), log_level)
    try:
        app.run(settings)
    except app.StartError as error:
        _refuse(error.faults)


@main.command()
@click.argument("file", type=_CONFIG_FILE)
def check(file: Path) -> None:
    """Say what is wrong with a configuration of serve.

    \b
    Prints OK, or one line for each fault and exit status 1:
      $ extproc check extproc.yaml
      listen.admin: wanted host:port, [ipv6]:port or unix:/path, got 9090

    Tokenizer files are loaded as serve would load them; nothing is listened at.
    """
    from extproc import config
    from extproc.ops import logs
    from extproc.tokens.loading import load

    settings = config.read(file)
    if isinstance(settings, list):
        _refuse(settings)
    logs.configure(logs.LogFormat.AUTO, "error")
    tokenizers = load(settings.tokens)
    if isinstance(tokenizers, list):
        _refuse(tokenizers)
    for pattern, reason in tokenizers.absent.items():
        click.echo(f"tokens.models.{pattern}: no tokenizer, prompts are estimated: {reason}")
    for pattern in settings.tokens.models:
        model = tokenizers.of(pattern)
        if model is not None and model.remark is not None:
            click.echo(f"tokens.models.{pattern}: {model.remark}")
    click.echo("OK")


@main.command()
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


@main.command()
@click.option(
    "--router",
    "routers",
    multiple=True,
    envvar="EXTPROC_ROUTER",
    show_envvar=True,
    help="Where a serve listens for agents; may be given several times.  [default: 127.0.0.1:9004]",
)
@click.option("--node-id", envvar="EXTPROC_NODE_ID", show_envvar=True, help="The node's name, unique in the fleet.")
@click.option("--engine", envvar="EXTPROC_ENGINE", show_envvar=True, help="The engine's URL, as the agent reaches it.")
@click.option(
    "--host",
    envvar="EXTPROC_HOST",
    show_envvar=True,
    help="host:port of the engine, as Envoy reaches it.  [default: that of --engine]",
)
@click.option(
    "--engine-kind",
    type=click.Choice(["auto", "vllm", "llamacpp"]),
    envvar="EXTPROC_ENGINE_KIND",
    show_envvar=True,
    help="Whose /metrics it is; auto looks.  [default: auto]",
)
@click.option("--interval", help="How often to look and report, as 1s or 500ms.  [default: 1s]")
@click.option("--weight", type=float, help="Share in the fallback's round robin.  [default: 1]")
@click.option("--gpu", type=int, help="NVML's index of the engine's GPU.  [default: the only one]")
@click.option("--config", "file", type=_CONFIG_FILE, help="A YAML file for several engines, instead of the above.")
@click.option(
    "--print", "once", is_flag=True, help="Look once, print the snapshots as JSON and end; no router is asked."
)
@_logged
@click.pass_context
def agent(
    context: click.Context, /, file: Path | None, once: bool, log_format: str, log_level: str, **options: Any
) -> None:
    """Report an inference engine's state to serve.

    \b
    For one engine:
      extproc agent --router 127.0.0.1:9004 --node-id gpu-1 --engine http://127.0.0.1:8000 \\
        --host 127.0.0.1:8000 --engine-kind vllm --interval 1s --weight 1
    For several, from a file as docs/agent.md shows:
      extproc agent --config agent.yaml
    What would be reported, and why a signal is absent:
      extproc agent --node-id gpu-1 --engine http://127.0.0.1:8000 --print
    """
    from extproc.agent import agent, settings
    from extproc.ops import logs

    if file is not None:
        from_command_line = click.core.ParameterSource.COMMANDLINE
        if given := [name for name in options if context.get_parameter_source(name) is from_command_line]:
            msg = f"--config names the engines: leave out {', '.join(map(_option, given))}"
            raise click.UsageError(msg)
        config = settings.read(file)
    else:
        if options["node_id"] is None or options["engine"] is None:
            msg = "which engine? Give --node-id and --engine, or --config"
            raise click.UsageError(msg)
        config = settings.parse(_agent_mapping(**options))
    if isinstance(config, list):
        _refuse(config if file is not None else map(_as_option, config))
    logs.configure(logs.LogFormat(log_format), log_level)
    if once:
        for snapshot in asyncio.run(agent.sample_once(config)):
            click.echo(json.dumps(snapshot, indent=2))
    else:
        asyncio.run(agent.run(config))


@main.command()
@click.option("--once", is_flag=True, help="End after the requests; exit status 0 if every one went as it should.")
def demo(once: bool) -> None:
    """Show the whole system at work on this machine.

    That is Envoy, three emulated engines, an agent for each, and serve.

    \b
    Start it, watch it, send your own requests:
      extproc demo
    As a test:
      extproc demo --once

    Needs Envoy, which the extra `demo` brings.
    """
    from rich.console import Console

    from extproc import demo

    sys.exit(asyncio.run(demo.run(Console(highlight=False), once=once)))


@main.command()
@click.option(
    "--listen", default="127.0.0.1:0", show_default=True, help="address:port; the log names the port got for 0."
)
@click.option("--name", default="engine-1", show_default=True, help="Every response names it in the header x-engine.")
@click.option("--model", default="emulated", show_default=True, help="The model it serves.")
@click.option("--speed", default=1.0, show_default=True, help="2 is twice as fast.")
@click.option("--kv-blocks", default=4000, show_default=True, help="KV blocks of 16 tokens.")
@click.option("--context-length-tokens", default=32_768, show_default=True, help="Prompt and answer together.")
@click.option("--sequences-max", default=48, show_default=True, help="Sequences in one batch.")
@click.option("--step-tokens-max", default=8192, show_default=True, help="Tokens computed in one step.")
@click.option("--output-tokens-max", default=4096, show_default=True, help="No answer is longer.")
@_logged
def emulate(log_format: str, log_level: str, **options: Any) -> None:
    """Run an emulated vLLM, without a GPU.

    It has the API, the /metrics and the timing; its answers mean nothing.

    \b
    Two nodes, one half as fast:
      extproc emulate --listen 127.0.0.1:8001 --name gpu-1 --model demo
      extproc emulate --listen 127.0.0.1:8002 --name gpu-2 --model demo --speed 0.5
    """
    from extproc.ops import logs
    from extproc.sim import emulator, emulatorsettings

    try:
        settings = emulatorsettings.EmulatorSettings(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    logs.configure(logs.LogFormat(log_format), log_level)
    try:
        asyncio.run(emulator.run(settings))
    except OSError as error:
        click.echo(f"listen: wanted an address that can be listened at, got {settings.listen}: {error}", err=True)
        sys.exit(1)


def _refuse(faults: Iterable[Fault]) -> NoReturn:
    for fault in faults:
        click.echo(str(fault), err=True)
    sys.exit(1)


def _agent_mapping(routers: tuple[str, ...], interval: str | None, **engine: Any) -> dict[str, Any]:
    """The agent's settings, with what was not said left to its defaults."""
    mapping: dict[str, Any] = {"engines": [{name: value for name, value in engine.items() if value is not None}]}
    if routers:
        mapping["routers"] = list(routers)
    if interval is not None:
        mapping["interval_s"] = interval
    return mapping


def _as_option(fault: Fault) -> Fault:
    """The same fault, with its path as an option of the command line."""
    path = "--router" if fault.path.startswith("routers") else _AGENT_OPTIONS.get(fault.path, fault.path)
    return replace(fault, path=path)


def _option(parameter: str) -> str:
    return "--router" if parameter == "routers" else "--" + parameter.replace("_", "-")


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
