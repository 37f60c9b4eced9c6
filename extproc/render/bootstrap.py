"""A whole bootstrap of Envoy: checked by Envoy's typed classes, written with the reason for each setting."""

from typing import Any

from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap

from extproc.core.settings import Fault
from extproc.envoyconf import from_mapping
from extproc.render.clusters import address, clusters, has_known
from extproc.render.description import Description
from extproc.render.manager import connection_manager
from extproc.render.notes import HEAD, notes
from extproc.render.parts import Part, any_of
from extproc.render.routing import route_faults
from extproc.render.yamltext import yaml_text

_MONITORS = "envoy.resource_monitors"


def render(d: Description) -> str | list[Fault]:
    """The bootstrap as YAML with comments, or what the description lacks for one.

    Raises KeyError where a part has a field that
    Envoy's API does not have: a fault of ours.
    """
    if has_known(d) and not d.nodes:
        why = "override-host chooses of them" if d.destination == "override-host" else "or fail_open: false"
        return [*route_faults(d), Fault("nodes", f"at least one: {why}", "nothing")]
    if faults := route_faults(d):
        return faults
    mapping = bootstrap(d)
    from_mapping(Bootstrap, mapping)
    return yaml_text(mapping, notes(d), "\n".join((*d.about.splitlines(), HEAD)))


def bootstrap(d: Description) -> Part:
    """The same as a mapping, unchecked."""
    return {
        "admin": {"address": address(d.admin)},
        "overload_manager": _overload(d),
        "static_resources": {"listeners": [_listener(d)], "clusters": clusters(d)},
    }


def _listener(d: Description) -> Part:
    return {
        "name": "llm",
        "per_connection_buffer_limit_bytes": 65536,
        "address": address(d.listen),
        "filter_chains": [{"filters": [connection_manager(d)]}],
    }


def _overload(d: Description) -> Part:
    def action(name: str, threshold: float) -> dict[str, Any]:
        trigger = {"name": f"{_MONITORS}.fixed_heap", "threshold": {"value": threshold}}
        return {"name": f"envoy.overload_actions.{name}", "triggers": [trigger]}

    monitors = "extensions.resource_monitors"
    return {
        "resource_monitors": [
            {
                "name": f"{_MONITORS}.global_downstream_max_connections",
                "typed_config": any_of(
                    f"{monitors}.downstream_connections.v3.DownstreamConnectionsConfig",
                    max_active_downstream_connections=d.connections_max,
                ),
            },
            {
                "name": f"{_MONITORS}.fixed_heap",
                "typed_config": any_of(
                    f"{monitors}.fixed_heap.v3.FixedHeapConfig", max_heap_size_bytes=d.heap_bytes_max
                ),
            },
        ],
        "actions": [action("shrink_heap", 0.9), action("stop_accepting_requests", 0.95)],
    }
