"""Commands that write configuration for Envoy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from extproc.cli.common import CONFIG_FILE, refuse
from extproc.cli.renderingmesh import envoy_gateway, istio

if TYPE_CHECKING:
    from extproc.core.settings import Fault
    from extproc.render.description import Description

_DESTINATIONS = ("original-dst", "original-dst-metadata", "override-host")
_SECTIONS = {"processor_tls": "tls_", "node_tls": "node_tls_"}
"""Sections of a description, and how the options begin that say them."""
_BODY_MODES = ("buffered", "full-duplex", "streamed", "buffered-partial", "none")


@click.group()
def render() -> None:
    """Write configuration for Envoy to standard output.

    \b
      $ extproc render bootstrap --node 10.0.0.2:8000 > envoy.yaml
      $ extproc render istio --description llm.yaml | kubectl apply -f -
      $ extproc render envoy-gateway --description llm.yaml | kubectl apply -f -
    """


render.add_command(istio)
render.add_command(envoy_gateway)


@render.command()
@click.option(
    "--description", "file", type=CONFIG_FILE, help="YAML file with all of what follows and more; then no other option."
)
@click.option("--listen", metavar="ADDR", help="Where clients connect.  [default: 127.0.0.1:8080]")
@click.option("--admin", metavar="ADDR", help="Envoy's own pages, for each Envoy others.  [default: 127.0.0.1:9901]")
@click.option(
    "--destination", type=click.Choice(_DESTINATIONS), help="How Envoy is told the node.  [default: original-dst]"
)
@click.option(
    "--body-mode", type=click.Choice(_BODY_MODES), help="What extproc is shown of bodies.  [default: buffered]"
)
@click.option(
    "--processor",
    multiple=True,
    metavar="ADDR",
    help="Where extproc serve listens: host:port or unix:/path; several times for several.  [default: 127.0.0.1:9002]",
)
@click.option("--workers", type=click.IntRange(1, 16), help="Of each extproc serve: so many endpoints.  [default: 1]")
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="ADDR",
    help="A node that Envoy knows itself: serves while extproc is down; override-host chooses of these.",
)
@click.option("--fail-open/--fail-closed", default=None, help="While extproc is down: nodes serve, or requests fail.")
@click.option("--tls-ca", metavar="FILE", help="TLS to extproc: authority of its certificate.")
@click.option("--tls-certificate", metavar="FILE", help="Envoy's own certificate towards extproc, for mutual TLS.")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option("--tls-name", metavar="NAME", help="SNI, and what extproc's certificate has to name.")
@click.option("--node-tls-ca", metavar="FILE", help="TLS to the nodes: authority of their certificates.")
@click.option("--node-tls-name", metavar="NAME", help="SNI, and what the nodes' certificates have to name.")
def bootstrap(file: Path | None, **options: Any) -> None:
    """Write a whole bootstrap of Envoy, with the reason for each setting.

    \b
      $ extproc render bootstrap --node 10.0.0.2:8000 --node 10.0.0.3:8000 > envoy.yaml
      $ extproc render bootstrap --description envoy/bootstrap.render.yaml > envoy/bootstrap.yaml
    """
    from extproc.render.bootstrap import render as rendered

    match rendered(_described(file, options)):
        case str(text):
            click.echo(text, nl=False)
        case faults:
            refuse(faults if file is not None else map(_as_option, faults))


def _described(file: Path | None, options: dict[str, Any]) -> Description:
    """The description in the file or in the options; faults end the command."""
    from extproc.render import description

    given = {key: value for key, value in options.items() if value not in (None, ())}
    if file is not None and given:
        msg = "--description says everything: no other option beside it"
        raise click.UsageError(msg)
    found = description.parse(_mapping(given)) if file is None else description.read(file)
    if isinstance(found, list):
        refuse(found if file is not None else map(_as_option, found))
    return found


def _mapping(given: dict[str, Any]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for option, value in given.items():
        section = next((section for section, prefix in _SECTIONS.items() if option.startswith(prefix)), None)
        if section is None:
            mapping[option] = list(value) if isinstance(value, tuple) else value
        else:
            mapping.setdefault(section, {})[option.removeprefix(_SECTIONS[section])] = value
    return mapping


def _as_option(fault: Fault) -> Fault:
    """A fault of a setting, told of the option that said it."""
    key, _, rest = fault.path.partition(".")
    section = _SECTIONS.get(key)
    option = {"nodes": "node"}.get(key, key) if section is None else f"{section}{rest or 'ca'}"
    return replace(fault, path="--" + option.replace("_", "-")) if key else fault
