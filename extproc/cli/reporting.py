"""The command that runs beside engines, until it is stopped."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from extproc.cli.common import CONFIG_FILE, let_grpc_log_errors_only, logged, refuse

if TYPE_CHECKING:
    from extproc.core.settings import Fault

_AGENT_OPTIONS = {
    "engines.0.node_id": "--node-id",
    "engines.0.engine": "--engine",
    "engines.0.host": "--host",
    "engines.0.engine_kind": "--engine-kind",
    "engines.0.weight": "--weight",
    "engines.0.gpu": "--gpu",
    "interval_s": "--interval",
    "idle_interval_s": "--idle-interval",
    "drain_s": "--drain",
    "admin": "--admin",
    "tls": "--tls-ca",
    "tls.ca": "--tls-ca",
    "tls.certificate": "--tls-certificate",
    "tls.key": "--tls-key",
    "tls.server_name": "--tls-server-name",
    "token_file": "--token-file",
}
"""How the settings of one engine are written on the command line."""
_AGAIN_S = 1.0
"""`--print` looks a second time after so long, where something is a difference between two looks."""
_AGENTS_OWN = {
    "interval": "interval_s",
    "idle_interval": "idle_interval_s",
    "drain": "drain_s",
    "admin": "admin",
    "token_file": "token_file",
}
"""Options that are settings of the agent itself."""


def _split_from_environment(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """Click splits a variable at white space only; the command line needs no splitting, and paths may have commas."""
    assert parameter.name is not None
    if context.get_parameter_source(parameter.name) is not click.core.ParameterSource.ENVIRONMENT:
        return values
    return _split(context, parameter, values)


def _split(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one for value in values for one in value.split(",") if one)


@click.command()
@click.option(
    "--router",
    "routers",
    multiple=True,
    envvar="EXTPROC_ROUTER",
    show_envvar=True,
    callback=_split_from_environment,
    help="Where a serve listens for agents, or dns:name:port for every address of a name; may be given several times, "
    "in the variable with commas or spaces between.  [default: 127.0.0.1:9004; with --nats none]",
)
@click.option(
    "--nats",
    multiple=True,
    envvar="EXTPROC_NATS",
    show_envvar=True,
    callback=_split,
    help="A NATS server, as nats://host:4222, where all routers hear each report; several with commas between. Routers "
    "named by --router too are told directly when it fails. To log in, for TLS of its own, and for another fleet than "
    "`default` write the key `nats` into a file, for --config.  [default: none]",
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
    type=click.Choice(["auto", "vllm", "sglang", "trtllm", "triton", "tgi", "llamacpp", "lmdeploy", "generic"]),
    envvar="EXTPROC_ENGINE_KIND",
    show_envvar=True,
    help="Whose metrics they are; auto looks.  [default: auto]",
)
@click.option("--interval", help="How often to look and report, as 1s or 500ms.  [default: 1s]")
@click.option("--idle-interval", help="The same while it has no requests.  [default: 2s, or --interval if longer]")
@click.option("--drain", help="How long to report draining, after SIGTERM, while requests run.  [default: 20s]")
@click.option(
    "--admin",
    envvar="EXTPROC_ADMIN",
    show_envvar=True,
    help="Where the agent itself answers, as 127.0.0.1:9005: probes, what it saw, `extproc drain`.  [default: nowhere]",
)
@click.option("--weight", type=float, help="Share in the fallback's round robin.  [default: 1]")
@click.option(
    "--gpu",
    multiple=True,
    help="The engine's GPU: an index, index:instance, or UUID; may be given several times.  [default: the only one]",
)
@click.option("--tls-ca", help="PEM file of who signs the routers' certificates.  [default: plain text]")
@click.option("--tls-certificate", help="PEM file of the agent's own certificate, for routers that ask for one.")
@click.option("--tls-key", help="PEM file of its private key.")
@click.option("--tls-server-name", help="The name in the routers' certificates.  [default: the host of --router]")
@click.option("--token-file", help="A file with the token that routers ask for.")
@click.option("--insecure", is_flag=True, help="The token may go to other machines in plain text.")
@click.option("--config", "file", type=CONFIG_FILE, help="A YAML file for several engines, instead of the above.")
@click.option(
    "--print",
    "once",
    is_flag=True,
    help="Look once, print the snapshots as JSON and end; no router is asked. Exit status 1: an engine is not reached.",
)
@logged
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

    SIGTERM or Ctrl-C drains: the node takes nothing new, and the agent ends when its engine has finished, or after
    --drain; a second one ends it at once.
    """
    let_grpc_log_errors_only()
    import uvloop

    from extproc import openfiles
    from extproc.agent import agent, credentials, settings
    from extproc.core.settings import Fault
    from extproc.listening import ListenError
    from extproc.ops import logs

    if file is not None:
        from_command_line = click.core.ParameterSource.COMMANDLINE
        if given := [name for name in options if context.get_parameter_source(name) is from_command_line]:
            keys = ", ".join(map(_key, given))
            msg = f"--config names the engines: leave out {', '.join(map(_option, given))}, and give the file {keys}"
            raise click.UsageError(msg)
        config = settings.read(file)
    else:
        if options["node_id"] is None or options["engine"] is None:
            msg = "which engine? Give --node-id and --engine, or --config"
            raise click.UsageError(msg)
        config = settings.parse(_agent_mapping(**options))
    files = [] if once or isinstance(config, list) else credentials.faults(config)
    if isinstance(config, list):
        refuse(config if file is not None else map(_as_option, config))
    if files:
        refuse(files if file is not None else map(_as_option, files))
    logs.configure(logs.LogFormat(log_format), log_level)
    if once:
        snapshots = asyncio.run(agent.sample_once(config, _AGAIN_S))
        for snapshot in snapshots:
            click.echo(json.dumps(snapshot, indent=2))
        sys.exit(any("host" in one["absent"] or not one["reached"] for one in snapshots))
    openfiles.allow_open_files()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(agent.run(config))
    except ListenError as error:
        refuse([Fault("admin", "an address that can be listened at", str(error))])


def _agent_mapping(routers: tuple[str, ...], nats: tuple[str, ...], insecure: bool, **others: Any) -> dict[str, Any]:
    """The agent's settings, with what was not said left to its defaults."""
    said = {name: value for name, value in others.items() if value is not None}
    mapping: dict[str, Any] = {_AGENTS_OWN[name]: said.pop(name) for name in _AGENTS_OWN if name in said}
    tls = {name.removeprefix("tls_"): value for name, value in said.items() if name.startswith("tls_")}
    engine = {name: value for name, value in said.items() if not name.startswith("tls_")}
    mapping |= {"engines": [engine], "insecure": insecure}
    if tls:
        mapping["tls"] = tls
    if routers:
        mapping["routers"] = list(routers)
    if nats:
        mapping["nats"] = {"servers": list(nats)}
    return mapping


def _as_option(fault: Fault) -> Fault:
    """The same fault, with its path as an option of the command line."""
    first = fault.path.partition(".")[0]
    path = {"routers": "--router", "nats": "--nats"}.get(first) or _AGENT_OPTIONS.get(fault.path, fault.path)
    return replace(fault, path=path)


def _key(parameter: str) -> str:
    """What says in a file what an option says."""
    own = {"routers": "routers", "nats": "nats: {servers: […]}", "insecure": "insecure"}
    keys = {option: key for key, option in _AGENT_OPTIONS.items()}
    return own.get(parameter) or keys[_option(parameter)].replace("engines.0.", "its engine's ")


def _option(parameter: str) -> str:
    return "--router" if parameter == "routers" else "--" + parameter.replace("_", "-")
