"""Envoy's configuration as typed values: a bootstrap file read, its addresses placed, written as Envoy takes it."""

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, assert_never

import betterproto2
import yaml
from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap
from envoy_data_plane.envoy.config.core.v3 import Address as EnvoyAddress
from envoy_data_plane.envoy.config.core.v3 import Pipe, SocketAddress
from envoy_data_plane.envoy.config.endpoint.v3 import Endpoint, LbEndpoint, LocalityLbEndpoints

from extproc.address import Address, TcpAddress, UnixAddress

M = TypeVar("M", bound=betterproto2.Message)


def read_bootstrap(path: Path) -> Bootstrap:
    """The bootstrap in a YAML or JSON file.

    Raises OSError, yaml.YAMLError, KeyError for a field that Envoy's API does not have, and ModuleNotFoundError for
    an extension that it does not have. What the values mean is checked by `envoy --mode validate` alone.
    """
    # libyaml's loader, ten times as fast as PyYAML's own: nobody hostile writes a bootstrap.
    return from_mapping(Bootstrap, yaml.load(path.read_text(), yaml.CSafeLoader))


def from_mapping(message: type[M], mapping: Mapping[str, Any]) -> M:
    """A typed message of Envoy's API. Raises KeyError and ModuleNotFoundError as `read_bootstrap` does."""
    for type_url in _type_urls(mapping):
        # An `Any` can be built only once the module of its message is loaded.
        package = type_url.rpartition("/")[2].rpartition(".")[0]
        importlib.import_module(f"envoy_data_plane.{package}")
    return message.from_dict(mapping)


def bootstrap_json(bootstrap: Bootstrap) -> str:
    """The text for `envoy --config-path FILE.json`."""
    return json.dumps(bootstrap.to_dict(), indent=1)


def place(
    bootstrap: Bootstrap, *, admin: Address, listeners: Mapping[str, Address], clusters: Mapping[str, Sequence[Address]]
) -> None:
    """Put addresses into the bootstrap: of its admin page, its listeners and its clusters' endpoints, by their names.

    Port 0 lets the operating system choose. Nothing else changes. Raises ValueError for a name that the bootstrap
    does not have, so that a renamed cluster cannot keep an address of the file.
    """
    resources = bootstrap.static_resources
    if bootstrap.admin is None or resources is None:
        msg = "wanted a bootstrap with an admin page and static resources"
        raise ValueError(msg)
    listener_of = {one.name: one for one in resources.listeners}
    cluster_of = {one.name: one for one in resources.clusters}
    unknown = (listeners.keys() - listener_of.keys()) | (clusters.keys() - cluster_of.keys())
    if unknown:
        msg = f"the bootstrap has no {', '.join(sorted(unknown))}"
        raise ValueError(msg)
    bootstrap.admin.address = _address(admin)
    for name, address in listeners.items():
        listener_of[name].address = _address(address)
    for name, addresses in clusters.items():
        endpoints = [LbEndpoint(endpoint=Endpoint(address=_address(address))) for address in addresses]
        assignment = cluster_of[name].load_assignment
        if assignment is None:
            msg = f"cluster {name} has no endpoints to place"
            raise ValueError(msg)
        assignment.endpoints = [LocalityLbEndpoints(lb_endpoints=endpoints)]


def _address(address: Address) -> EnvoyAddress:
    match address:
        case TcpAddress(host, port):
            return EnvoyAddress(socket_address=SocketAddress(address=host, port_value=port))
        case UnixAddress(path):
            return EnvoyAddress(pipe=Pipe(path=path))
        case other:
            assert_never(other)


def _type_urls(value: Any) -> Iterator[str]:
    """Every `@type` in a mapping, however deep."""
    if isinstance(value, dict):
        if isinstance(type_url := value.get("@type"), str):
            yield type_url
        for inner in value.values():
            yield from _type_urls(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _type_urls(inner)
