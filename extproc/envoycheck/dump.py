"""What Envoy's admin page tells at `/config_dump`, as the bootstrap that would say the same.

In a dump listeners, clusters, endpoints and route tables stand apart, by where they came from. Here they come together:
static ones where a bootstrap has them, those of xDS by their names below `dynamic_resources`, endpoints in their
clusters, and route tables in the connection managers that have them by `rds`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from extproc.envoycheck.file import type_of

VALUES_MAX: Final = 1_000_000
"""Of a dump, each as often as it is used: a route table counts for each connection manager that has it."""

_ADMIN = "envoy.admin.v3."


def is_dump(document: object) -> bool:
    """Whether a document is the admin page's."""
    configs = document.get("configs") if isinstance(document, dict) else None
    return isinstance(configs, list) and any(type_of(one).startswith(_ADMIN) for one in configs)


def bootstrap_of(dump: dict[str, Any]) -> dict[str, Any]:
    """A dump's listeners, clusters and routes as a bootstrap has them. Of a listener without an active state it is the
    one that warms up. Never raises for a dump of bounded depth."""
    sections = _sections(dump)
    tables = {str(table.get("name")): table for table in _members(sections, "RoutesConfigDump", "route_config")}
    endpoints = {
        str(one.get("cluster_name")): one for one in _members(sections, "EndpointsConfigDump", "endpoint_config")
    }
    listeners, clusters = sections.get("ListenersConfigDump"), sections.get("ClustersConfigDump")
    told = _mapping(_mapping(_mapping(sections.get("BootstrapConfigDump")).get("bootstrap")).get("static_resources"))
    static = {
        "listeners": told.get("listeners") if listeners is None else _static(listeners, "static_listeners", "listener"),
        "clusters": told.get("clusters") if clusters is None else _static(clusters, "static_clusters", "cluster"),
    }
    dynamic = {"listeners": dict(_dynamic_listeners(listeners)), "clusters": dict(_dynamic_clusters(clusters))}
    for resources in (static, dynamic):
        resources["listeners"] = _with_tables(resources["listeners"], tables)
        resources["clusters"] = _with_endpoints(resources["clusters"], endpoints)
    return {"static_resources": static, "dynamic_resources": dynamic}


def _sections(dump: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {type_of(one).removeprefix(_ADMIN): one for one in dump["configs"] if type_of(one).startswith(_ADMIN)}


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[dict[str, Any]]:
    return [_mapping(one) for one in value] if isinstance(value, list) else []


def _static(section: Mapping[str, Any], name: str, member: str) -> list[Any]:
    return [one.get(member) for one in _list(section.get(name))]


def _members(sections: Mapping[str, Mapping[str, Any]], section: str, member: str) -> Iterator[dict[str, Any]]:
    """Those of a section, static and dynamic; of two with one name the dynamic one comes last."""
    told = sections.get(section, {})
    for name in (f"static_{member}s", f"dynamic_{member}s"):
        yield from (_mapping(one.get(member)) for one in _list(told.get(name)))


def _dynamic_listeners(section: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    for one in _list(_mapping(section).get("dynamic_listeners")):
        state = one.get("active_state") or one.get("warming_state")
        if isinstance(state, dict):
            yield str(one.get("name")), state.get("listener")


def _dynamic_clusters(section: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    for name in ("dynamic_warming_clusters", "dynamic_active_clusters"):
        for one in _list(_mapping(section).get(name)):
            cluster = _mapping(one.get("cluster"))
            yield str(cluster.get("name")), cluster


def _with_tables(value: Any, tables: Mapping[str, Any]) -> Any:
    """The same with each `rds` followed by its route table, where the dump has it."""
    if isinstance(value, list):
        return [_with_tables(one, tables) for one in value]
    if not isinstance(value, dict):
        return value
    made = {key: _with_tables(one, tables) for key, one in value.items()}
    table = tables.get(str(_mapping(value.get("rds")).get("route_config_name")))
    return made | {"route_config": table} if table is not None and "route_config" not in made else made


def _with_endpoints(clusters: Any, endpoints: Mapping[str, Any]) -> Any:
    def joined(cluster: Any) -> Any:
        fields = _mapping(cluster)
        service = _mapping(fields.get("eds_cluster_config")).get("service_name") or fields.get("name")
        assignment = endpoints.get(str(service))
        return fields | {"load_assignment": assignment} if assignment and "load_assignment" not in fields else cluster

    if isinstance(clusters, dict):
        return {name: joined(one) for name, one in clusters.items()}
    return [joined(one) for one in clusters] if isinstance(clusters, list) else clusters
