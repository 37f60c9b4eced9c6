"""The commands that write configuration for a mesh: resources for Kubernetes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from extproc.cli.common import CONFIG_FILE, refuse

if TYPE_CHECKING:
    from extproc.core.settings import Fault
    from extproc.render.description import Description

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9./_-]{1,253})=([A-Za-z0-9._-]{0,63})")
_IDENTITIES = re.compile(r"spiffe://[A-Za-z0-9._/-]{1,2000}")

_DESCRIPTION = click.option(
    "--description", "file", type=CONFIG_FILE, required=True, help="YAML file, as for `extproc render bootstrap`."
)


def _name(_: click.Context, __: click.Parameter, value: str) -> str:
    if _NAME.fullmatch(value) is None:
        msg = f"wanted a name as Kubernetes has them, got {value!r}"
        raise click.BadParameter(msg)
    return value


def _labels(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    found = []
    for value in values:
        if (pair := _LABEL.fullmatch(value)) is None:
            msg = f"wanted NAME=VALUE, got {value!r}"
            raise click.BadParameter(msg)
        found.append((pair[1], pair[2]))
    return tuple(found)


def _identities(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and _IDENTITIES.fullmatch(value) is None:
        msg = f"wanted how identities begin, as spiffe://cluster.local/ns/llm/, got {value!r}"
        raise click.BadParameter(msg)
    return value


@click.command()
@_DESCRIPTION
@click.option(
    "--context",
    type=click.Choice(["gateway", "sidecar"]),
    default="gateway",
    show_default=True,
    help="Whose Envoys ask extproc: those at the mesh's edge, or those beside the clients.",
)
@click.option(
    "--namespace", callback=_name, default="istio-ingress", show_default=True, help="Of the gateway, or of the clients."
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_labels,
    default=("istio=ingressgateway",),
    show_default=True,
    help="Of the pods whose Envoy shall ask extproc; several times for several.",
)
@click.option(
    "--gateway", callback=_name, default="llm", show_default=True, help="Gateway whose requests are to be routed."
)
@click.option(
    "--mesh-tls",
    metavar="SPIFFE",
    callback=_identities,
    help="Mutual TLS of the mesh towards engines and extproc, whose identities begin with this.",
)
def istio(
    file: Path, context: str, namespace: str, labels: tuple[tuple[str, str], ...], gateway: str, mesh_tls: str | None
) -> None:
    """Write resources for Istio: VirtualService, DestinationRule and EnvoyFilter.

    \b
      $ extproc render istio --description llm.yaml | kubectl apply -f -
      $ extproc render istio --description llm.yaml --context sidecar --namespace chat --label app=chat

    `nodes` of the description is one name, that of the engines' Service: it serves while extproc is down. What a
    bootstrap alone has is not used: listen, admin, health_path, heap_bytes_max, connections_max, upload_timeout_s,
    websockets, decision_headers.
    """
    from extproc.render.istio import Istio
    from extproc.render.istio import render as rendered

    place = Istio(
        context="sidecar" if context == "sidecar" else "gateway",
        namespace=namespace,
        labels=labels,
        gateway=gateway,
        mesh_tls=mesh_tls,
    )
    _write(rendered(_described(file), place))


@click.command()
@_DESCRIPTION
@click.option("--namespace", callback=_name, default="llm", show_default=True, help="Of all resources.")
@click.option("--gateway", callback=_name, default="llm", show_default=True, help="The Gateway's name.")
def envoy_gateway(file: Path, namespace: str, gateway: str) -> None:
    """Write resources for Envoy Gateway: HTTPRoutes, a Backend and policies.

    \b
      $ extproc render envoy-gateway --description llm.yaml | kubectl apply -f -

    The description's `destination` is override-host, and `processor` the name of a Service in the same namespace. What
    a bootstrap alone has is not used: listen, admin, heap_bytes_max, connections_max, message_timeout_s, headers_shown,
    model_header, route_metadata, websockets, decision_headers.
    """
    from extproc.render.envoygateway import EnvoyGateway
    from extproc.render.envoygateway import render as rendered

    _write(rendered(_described(file), EnvoyGateway(namespace=namespace, gateway=gateway)))


def _described(file: Path) -> Description:
    from extproc.render import description

    found = description.read(file)
    if isinstance(found, list):
        refuse(found)
    return found


def _write(text: str | list[Fault]) -> None:
    if isinstance(text, list):
        refuse(text)
    click.echo(text, nl=False)
