"""Which external processors of Envoy's configuration are ours, and on which routes they are asked."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, assert_never

import msgspec

from extproc.address import Address, TcpAddress, UnixAddress
from extproc.core.settings import Fault, shown
from extproc.envoycheck import dump
from extproc.envoycheck.file import NESTING_MAX, VALUES_MAX, At, is_bounded, load, message_of
from extproc.yamlfile import Document, faults_in

PER_ROUTE: Final = "envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
_MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_PROCESSOR = "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
_ROUTE = "envoy.config.route.v3.Route"


class Asking(msgspec.Struct, frozen=True):
    """A connection manager with a processor of ours."""

    manager: At
    http_filters: list[At]
    """Those members of its `http_filters` in which one of ours stands."""
    listener: At
    """Where it stands; in a listener that a filter of another one holds, the outer one."""


class Routed(msgspec.Struct, frozen=True):
    """A route that leads to a cluster."""

    route: At
    virtual_host: At
    configs: list[At]
    """What configures filters there, the most specific first."""


class Processors(msgspec.Struct, frozen=True):
    """What a configuration of Envoy has of us."""

    filters: list[At]
    """Ours, as ExternalProcessor; those inside of other filters too."""
    asking: list[Asking]
    clusters: Mapping[str, At]
    """All clusters by name."""

    def asked_by(self, *filters: At) -> "Processors":
        """The same for some of `filters`."""
        paths = {one.path for one in filters}
        kept = [
            msgspec.structs.replace(asking, http_filters=http_filters)
            for asking in self.asking
            if (http_filters := [one for one in asking.http_filters if _paths_in(one) & paths])
        ]
        return Processors(list(filters), kept, self.clusters)

    def their_clusters(self) -> list[At]:
        """Those through which `serve` is asked, as far as they are told; routes may name others than the filters."""
        services = [one.of("grpc_service") for one in self.filters]
        for asking in self.asking:
            services += [each.of("overrides", "grpc_service") for each in asking.manager.typed(PER_ROUTE)]
        used = {str(service.of("envoy_grpc", "cluster_name").value) for service in services}
        return [cluster for name, cluster in self.clusters.items() if name in used]

    def is_same(self, service: At, other: At) -> bool:
        """Whether two gRPC services may be one: by their cluster, or its endpoints as far as the file tells them."""
        names = [one.of("envoy_grpc", "cluster_name").value for one in (service, other)]
        reached = [_reached(one, self.clusters) for one in (service, other)]
        return (names[0] is not None and names[0] == names[1]) or not all(reached) or bool(reached[0] & reached[1])

    def of(self, http_filter: At) -> list[At]:
        """Those of `filters` that stand in a member of `http_filters`."""
        paths = _paths_in(http_filter)
        return [one for one in self.filters if one.path in paths]


def _paths_in(http_filter: At) -> set[str]:
    return {one.path for one in http_filter.typed(_PROCESSOR)}


def faults_in_file(path: Path, processor: Address, *checks: Callable[[Processors], Iterable[Fault]]) -> list[Fault]:
    """What checks find in a file in YAML or JSON, or what keeps it from being read."""
    match load(path):
        case Fault() as fault:
            return [fault]
        case Document(content):
            found = processors_of(content, processor)
        case other:
            assert_never(other)
    faults = [found] if isinstance(found, Fault) else [fault for check in checks for fault in check(found)]
    return faults_in(path, faults)


def processors_of(bootstrap: object, processor: Address) -> Processors | Fault:
    """Our filters in a bootstrap. Never raises.

    Of several external processors those are ours whose clusters have an endpoint on `processor`'s port or path, or
    none that the file tells; where no cluster has, all are.
    """
    if not isinstance(bootstrap, dict):
        return Fault("", "a mapping, Envoy's bootstrap", shown(bootstrap))
    values_max = VALUES_MAX
    if dump.is_dump(bootstrap) and is_bounded(bootstrap, values_max := dump.VALUES_MAX):
        bootstrap = dump.bootstrap_of(bootstrap)
    if not is_bounded(bootstrap, values_max):
        return Fault("", f"at most {values_max} values, {NESTING_MAX} levels deep, aliases followed", "more")
    both = [At("", bootstrap).of(one) for one in ("static_resources", "dynamic_resources")]
    clusters = {str(one.of("name").value): one for resources in both for one in resources.of("clusters").each()}
    filters = [one for resources in both for one in resources.typed(_PROCESSOR)]
    if not filters:
        return Fault("static_resources", "a filter of type ExternalProcessor", "none")
    reached = {one.path: _reached(one.of("grpc_service"), clusters) for one in filters}
    ours = {path for path, ports in reached.items() if place_of(processor) in ports}
    ours = ours | {path for path, ports in reached.items() if not ports} if ours else set(reached)
    asking = []
    for listener, manager in _managers(both):
        http_filters = [
            one for one in manager.of("http_filters").each() if any(each.path in ours for each in one.typed(_PROCESSOR))
        ]
        if http_filters:
            asking.append(Asking(manager, http_filters, listener))
    return Processors([one for one in filters if one.path in ours], asking, clusters)


def _managers(resources: Iterable[At]) -> Iterator[tuple[At, At]]:
    """Connection managers, each after its listener."""
    for one in resources:
        for listener in one.of("listeners").each():
            yield from ((listener, manager) for manager in listener.typed(_MANAGER))


def tables_of(manager: At) -> list[At]:
    """The route tables of a connection manager that the file tells."""
    scoped = manager.of("scoped_routes", "scoped_route_configurations_list", "scoped_route_configurations")
    tables = [manager.of("route_config"), *(one.of("route_configuration") for one in scoped.each())]
    return [table for table in tables if table.value is not None]


def routes_of(table: At) -> Iterator[Routed]:
    """The routes that lead to a cluster."""
    for virtual_host in table.of("virtual_hosts").each():
        for route in (*virtual_host.of("routes").each(), *virtual_host.of("matcher").typed(_ROUTE)):
            if isinstance(route.of("route").value, dict):
                configs = [one.of("typed_per_filter_config") for one in (route, virtual_host, table)]
                yield Routed(route, virtual_host, configs)


def own_config(http_filter: At, config: At) -> At | None:
    """What one of a route's configurations says of a filter; `None`: nothing."""
    name = http_filter.of("name").value
    own = config.value.get(name) if isinstance(config.value, dict) and isinstance(name, str) else None
    return At(f"{config.path}.{name}", own) if isinstance(own, dict) else None


def is_asked(http_filter: At, configs: Iterable[At]) -> bool:
    """Whether requests of a route go through a filter. Both kinds of a route's configuration may say `disabled`."""
    for config in configs:
        own = own_config(http_filter, config)
        if own is not None:
            fields = message_of(own.value)
            return not (isinstance(fields, dict) and fields.get("disabled") is True)
    return http_filter.of("disabled").value is not True


def _reached(service: At, clusters: Mapping[str, At]) -> set[int | str]:
    """Ports and unix paths of a gRPC service's endpoints, as far as the file tells them."""
    target = service.of("google_grpc", "target_uri").value
    if isinstance(target, str):
        port = target.rpartition(":")[2]
        return {int(port) if port.isdecimal() and len(port) < 6 else port}
    cluster = clusters.get(str(service.of("envoy_grpc", "cluster_name").value))
    return set() if cluster is None else set(_endpoints(cluster.of("load_assignment")))


def endpoints_of(cluster: At) -> Iterator[tuple[At, str, int | str]]:
    """Of each endpoint that the file tells: where it stands, its host (of a unix path none), and its port or path."""
    for locality in cluster.of("load_assignment", "endpoints").each():
        for one in locality.of("lb_endpoints").each():
            at = one.of("endpoint", "address")
            port, path = at.of("socket_address", "port_value").value, at.of("pipe", "path").value
            if isinstance(port, int):
                yield at, str(at.of("socket_address", "address").value), port
            elif isinstance(path, str):
                yield at, "", path


def _endpoints(at: At) -> Iterator[int | str]:
    for found in (at.of("socket_address", "port_value").value, at.of("pipe", "path").value):
        if isinstance(found, int | str):
            yield found
    for member in at.each():
        yield from _endpoints(member)


def place_of(address: Address) -> int | str:
    """The port, or the path: hosts are told otherwise where Envoy is than where `serve` is."""
    match address:
        case TcpAddress(_, port):
            return port
        case UnixAddress(path):
            return path
        case other:
            assert_never(other)
