"""The command that says beforehand what is wrong: with a configuration, with Envoy's, with a route's policy."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from extproc.cli.common import CONFIG_FILE, refuse

if TYPE_CHECKING:
    from extproc.config import Config
    from extproc.core.policy import RoutingPolicy
    from extproc.core.settings import Fault

_AGENTS = frozenset({"engines", "routers"})
"""Keys of an agent's file, of which that of `serve` has none."""
_Findings = list[tuple[str, "Fault"]]
"""Each with the file that it is about."""


@click.command()
@click.argument("file", type=CONFIG_FILE, required=False)
@click.option(
    "--envoy", "bootstraps", type=CONFIG_FILE, multiple=True, help="Envoy's bootstrap or config_dump. May be repeated."
)
@click.option("--workers", type=click.IntRange(1, 16), help="As of serve.  [default: the file's, or 1]")
@click.option("--policy", "asked", help="A route's x-extproc-policy: a policy's name, or a policy as a JSON object.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(
    file: Path | None, bootstraps: tuple[Path, ...], workers: int | None, asked: str | None, as_json: bool
) -> None:
    """Say what is wrong with a configuration of serve, or of an agent.

    \b
    Prints OK, or one line for each fault and exit status 1:
      $ extproc check extproc.yaml
      listen.admin: wanted host:port, [ipv6]:port or unix:/path, got 9090

    \b
    With --envoy also whether Envoy does its part, by its bootstrap or by what its admin page tells:
      $ extproc check extproc.yaml --envoy envoy/bootstrap.yaml
      $ curl -s 'localhost:9901/config_dump?include_eds' > dump.json && extproc check extproc.yaml --envoy dump.json
    Lets it requests wait as long as the file's classes allow, and bodies be as long; does its filter show and let pass
    what policies, quotas and aliases need; do its routes heed what is chosen, and their clients have no say in it; what
    becomes of requests while serve is away? Lines that begin with `warning:` leave the exit status at 0.

    A FILE with `engines` or `routers` is taken for an agent's, and checked as one; no engine or router is asked:

    \b
      $ extproc check agent.yaml

    \b
    What would serve say of a policy that a route asks for?
      $ extproc check extproc.yaml --policy '{"strategy": "round-robin", "canary": 10}'

    Without a FILE both go by the defaults. Tokenizer files are loaded as serve would load them, and the journal's file
    is tried; nothing is written, and nothing listened at.
    """
    from extproc import config

    if asked is not None and bootstraps:
        msg = "--policy and --envoy are two checks: give one of them"
        raise click.UsageError(msg)
    if asked is None and file is None and not bootstraps:
        msg = "a configuration is needed, --envoy, or --policy"
        raise click.UsageError(msg)
    if file is not None and _is_an_agents(file):
        if asked is not None or bootstraps or workers is not None:
            msg = f"--policy, --envoy and --workers need a configuration of serve: {file} is an agent's"
            raise click.UsageError(msg)
        _check_agent(file, as_json=as_json)
        return
    settings = config.Config() if file is None else config.read(file)
    if isinstance(settings, list):
        _tell([(str(file), fault) for fault in settings], [], as_json=as_json)
        return
    if workers is not None:
        settings = settings.model_copy(update={"workers": workers})
    if asked is not None:
        _check_policy(asked, settings, as_json=as_json)
    else:
        _tell(*_findings(str(file or ""), settings, bootstraps), as_json=as_json)


def _is_an_agents(file: Path) -> bool:
    from extproc import yamlfile

    found = yamlfile.load(file)
    return (
        isinstance(found, yamlfile.Document)
        and isinstance(found.content, dict)
        and not _AGENTS.isdisjoint(found.content)
    )


def _check_agent(file: Path, *, as_json: bool) -> None:
    """What `agent` would refuse at its start, and nothing that it would ask others for."""
    from extproc.agent import credentials, settings

    config = settings.read(file)
    faults = config if isinstance(config, list) else credentials.faults(config)
    _tell([(str(file), fault) for fault in faults], [], as_json=as_json)


def _findings(file: str, settings: Config, bootstraps: Iterable[Path]) -> tuple[_Findings, list[tuple[str, str]]]:
    """Faults, and what there is to say of tokenizers, by the places of their models."""
    from extproc.envoycheck import checks
    from extproc.exchange import joining
    from extproc.journal import place
    from extproc.ops import logs
    from extproc.peers import ports
    from extproc.tokens.loading import load
    from extproc.workers import addresses

    logs.configure(logs.LogFormat.AUTO, "error")
    tokenizers = load(settings.tokens)
    found = [] if not isinstance(tokenizers, list) else [(file, fault) for fault in tokenizers]
    if settings.journal.path is not None and (fault := place.fault_of(settings.journal.path)) is not None:
        found.append((file, fault))
    found += [(file, fault) for fault in (*ports.faults_of(settings.listen), *addresses.faults_of(settings))]
    found += [(file, fault) for fault in joining.faults(settings)]
    for bootstrap in bootstraps:
        found += [(str(bootstrap), fault) for fault in checks.faults_in_file(bootstrap, settings)]
    kv_remarks = list(_kv_remarks(settings))
    if isinstance(tokenizers, list):
        return found, kv_remarks
    remarks = [(one, f"no tokenizer, prompts are estimated: {why}") for one, why in tokenizers.absent.items()]
    for pattern in settings.tokens.models:
        model = tokenizers.of(pattern)
        if model is not None and model.remark is not None:
            remarks.append((pattern, model.remark))
    return found, [*((f"tokens.models.{one}", remark) for one, remark in remarks), *kv_remarks]


def _kv_remarks(settings: Config) -> Iterator[tuple[str, str]]:
    """What makes little or nothing of the KV blocks that nodes tell."""
    if settings.tokens.kv_blocks and not settings.tokens.models:
        yield "tokens.kv_blocks", "no tokenizer in tokens.models: only prompts that are token ids are looked up"
    if settings.tokens.kv_blocks and not settings.prefix.kv_index_bytes_max:
        yield "prefix.kv_index_bytes_max", "0, so tokens.kv_blocks has no effect: what nodes tell is not kept"


def _tell(found: _Findings, remarks: Iterable[tuple[str, str]], *, as_json: bool) -> None:
    """Print them, and end with status 1 where one is more than a warning."""
    from extproc.envoycheck.file import Warned

    faults = [fault for _, fault in found if not isinstance(fault, Warned)]
    if as_json:
        click.echo(json.dumps([_row(file, fault) for file, fault in found], indent=2))
        sys.exit(bool(faults))
    for _, fault in found:
        if isinstance(fault, Warned):
            click.echo(f"warning: {fault}", err=True)
    if faults:
        refuse(faults)
    for path, remark in remarks:
        click.echo(f"{path}: {remark}")
    click.echo("OK")


def _row(file: str, fault: Fault) -> dict[str, str]:
    from extproc.envoycheck.file import Warned

    severity = "warning" if isinstance(fault, Warned) else "fault"
    path = fault.path.removeprefix(file).removeprefix(":").strip().removeprefix("(top)")
    return {"file": file, "path": path, "severity": severity, "wanted": fault.wanted, "got": fault.got}


def _check_policy(asked: str, settings: Config, *, as_json: bool) -> None:
    """What `serve` reads of a route's policy: each fault, or what it has beyond the defaults."""
    from extproc.gateway.routepolicy import read_policy

    policy = read_policy(asked, settings.policies, settings.classes, settings.limits.policy_bytes_max)
    if isinstance(policy, list):
        if as_json:
            click.echo(json.dumps([_row("--policy", fault) for fault in policy], indent=2))
            sys.exit(1)
        refuse(replace(fault, path=fault.path or "--policy") for fault in policy)
    if as_json:
        click.echo(json.dumps(policy.model_dump(mode="json"), indent=2))
        return
    for path, value, default in _differences(policy):
        click.echo(f"{path:<28}{value}  (default: {default})")
    click.echo("OK")


def _differences(policy: RoutingPolicy) -> list[tuple[str, str, str]]:
    """Fields that have another value than a policy without any, by their paths."""
    from extproc.core.policy import RoutingPolicy

    given, usual = policy.model_dump(mode="json"), RoutingPolicy().model_dump(mode="json")
    found: list[tuple[str, str, str]] = []

    def compare(path: str, value: Any, default: Any) -> None:
        if isinstance(value, dict) and isinstance(default, dict) and default:
            for name in value:
                compare(f"{path}.{name}".lstrip("."), value[name], default.get(name))
        elif value != default:
            found.append((path, json.dumps(value), json.dumps(default)))

    compare("", given, usual)
    return found
