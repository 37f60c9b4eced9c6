"""What Istio is told to change in the Envoys that it configures: the patches of an EnvoyFilter."""

from collections.abc import Mapping
from typing import Final, Literal

import betterproto2
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.listener.v3 import Filter
from envoy_data_plane.envoy.config.route.v3 import Route as EnvoyRoute
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from msgspec import Struct

from extproc.address import TcpAddress
from extproc.envoyconf import from_mapping
from extproc.render.accesslogs import access_logs
from extproc.render.clusters import chosen_cluster, override_host_policy, processor_cluster
from extproc.render.description import Description, Route
from extproc.render.istiotls import mesh_socket
from extproc.render.parts import CHOSEN, Part, any_of, early_removal, per_route, processor_filter, seconds
from extproc.render.routing import routes
from extproc.render.usage import usage_filter

Context = Literal["gateway", "sidecar"]
"""Whose Envoys choose: those at the mesh's edge, or those beside the clients."""
AppliesTo = Literal["CLUSTER", "NETWORK_FILTER", "HTTP_FILTER", "HTTP_ROUTE"]
Operation = Literal["ADD", "MERGE", "INSERT_BEFORE"]

CONTEXTS: Final[Mapping[Context, str]] = {"gateway": "GATEWAY", "sidecar": "SIDECAR_OUTBOUND"}
MANAGER: Final = "envoy.filters.network.http_connection_manager"
ROUTER: Final = "envoy.filters.http.router"
ROUTE_NAME: Final = "llm"
"""Of a route that the description does not name."""

_MESSAGES: Final[Mapping[AppliesTo, type[betterproto2.Message]]] = {
    "CLUSTER": Cluster,
    "NETWORK_FILTER": Filter,
    "HTTP_FILTER": HttpFilter,
    "HTTP_ROUTE": EnvoyRoute,
}


class Patch(Struct, frozen=True):
    """One change, and the reason for it."""

    why: str
    applies_to: AppliesTo
    match: Part
    operation: Operation
    value: Part

    def checked(self) -> Part:
        """As Istio takes it. Raises KeyError where Envoy's API has no such field: a fault of ours."""
        from_mapping(_MESSAGES[self.applies_to], self.value)
        patch = {"operation": self.operation, "value": self.value}
        return {"applyTo": self.applies_to, "match": self.match, "patch": patch}


def route_name(route: Route) -> str:
    """The `http[].name` in a VirtualService by which a route is found: Istio gives it to Envoy's route."""
    return ROUTE_NAME if route.name is None else route.name


def patches(d: Description, service: TcpAddress, context: Context, mesh_tls: str | None) -> list[Patch]:
    """All of them, in the order in which Istio applies them.

    `service` is that of the engines, to which the VirtualService's routes lead; `mesh_tls` the beginning of the
    identities (SPIFFE) that engines and extproc have in the mesh, where it speaks mutual TLS with them.
    """
    here = CONTEXTS[context]
    return [
        *_cluster_patches(d, service, here, mesh_tls),
        _manager_patch(here),
        *_filter_patches(d, here),
        *(patch for index, route in enumerate(d.routes) for patch in _route_patches(d, route, here, first=index == 0)),
    ]


def _cluster_patches(d: Description, service: TcpAddress, here: str, mesh_tls: str | None) -> list[Patch]:
    def in_mesh(cluster: Part, *, http2: bool) -> Part:
        return cluster if mesh_tls is None else cluster | {"transport_socket": mesh_socket(mesh_tls, http2=http2)}

    added: Part = {"context": here}
    asked = Patch(
        "extproc itself, with health checks of its own: Istio's cluster for its Service has none.",
        *("CLUSTER", added, "ADD"),
        in_mesh(processor_cluster(d), http2=True),
    )
    if d.destination == "override-host":
        known: Part = {"context": here, "cluster": {"service": service.host, "portNumber": service.port}}
        listed = Patch(
            "Istio's own cluster of the engines, whose endpoints are the pods: those are taken that extproc lists, and "
            "in turn where it lists none. Envoy refuses this beside weighted localities: no localityLbSetting for the "
            "Service.",
            *("CLUSTER", known, "MERGE"),
            {"load_balancing_policy": override_host_policy()},
        )
        return [listed, asked]
    chosen = Patch(
        "The node that extproc chose: Envoy connects to whatever address it names.",
        *("CLUSTER", added, "ADD"),
        in_mesh(chosen_cluster(d), http2=d.node_http2),
    )
    return [chosen, asked]


def _manager_patch(here: str) -> Patch:
    manager = any_of(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        early_header_mutation_extensions=early_removal(),
        access_log=[log for log in access_logs() if log["name"] != "stdout"],
    )
    return Patch(
        "For all listeners of these Envoys: headers that only extproc may set are taken from clients, who could aim at "
        "any address while extproc is down; and extproc is told how the requests ended that it was asked about.",
        *("NETWORK_FILTER", {"context": here, "listener": {"filterChain": {"filter": {"name": MANAGER}}}}, "MERGE"),
        {"name": MANAGER, "typed_config": manager},
    )


def _filter_patches(d: Description, here: str) -> list[Patch]:
    chain = {"filter": {"name": MANAGER, "subFilter": {"name": ROUTER}}}
    match: Part = {"context": here, "listener": {"filterChain": chain}}

    def inserted(why: str, http_filter: Part) -> Patch:
        switched_off = {"name": http_filter["name"], "disabled": True} | http_filter
        return Patch(why, "HTTP_FILTER", match, "INSERT_BEFORE", switched_off)

    asks = inserted("Switched off: the routes below, and no others, switch it on.", processor_filter(d))
    told = "What engines say of tokens, for the log `ends`; the routes below switch it on."
    return [*([inserted(told, usage_filter())] if d.usage else []), asks]


def _route_patches(d: Description, route: Route, here: str, *, first: bool) -> list[Patch]:
    name = route_name(route)
    match: Part = {"context": here, "routeConfiguration": {"vhost": {"route": {"name": name}}}}
    refused, *served = (
        one for one in routes(d.model_copy(update={"routes": (route,)})) if one["name"] != "nothing-else"
    )
    *chosen, own = (_switched_on(d, one) for one in served)
    before = [
        Patch(
            "Once extproc has named a destination the request is matched anew, and comes here.",
            *("HTTP_ROUTE", match, "INSERT_BEFORE"),
            {**one, "name": f"{name}-chosen"},
        )
        for one in chosen
    ]
    if first:
        adapters = "Not for clients: vLLM loads adapters by this path below /v1/, where it was started so that it does."
        before.insert(0, Patch(adapters, "HTTP_ROUTE", match, "INSERT_BEFORE", refused))
    kept = {key: own[key] for key in ("request_body_buffer_limit", "typed_per_filter_config")}
    action = {key: own["route"][key] for key in ("timeout", "idle_timeout")}
    if own["route"]["cluster"] == CHOSEN:
        action = {"cluster": CHOSEN} | action  # nobody else shall serve
    why = f"The VirtualService's own route {name}, where requests start. Its retries are the VirtualService's."
    return [*before, Patch(why, "HTTP_ROUTE", match, "MERGE", {"route": action, **kept})]


def _switched_on(d: Description, one: Part) -> Part:
    """A route with what the bootstrap says of all routes and filters at once."""
    filters = per_route(overrides={}) | one.get("typed_per_filter_config", {})
    if d.usage:
        filters[usage_filter()["name"]] = any_of("extensions.filters.http.lua.v3.LuaPerRoute", filter_context={})
    return {
        **{key: value for key, value in one.items() if key != "typed_per_filter_config"},
        "route": {**one["route"], "idle_timeout": seconds(d.idle_timeout_s)},
        "request_body_buffer_limit": d.body_bytes_max,
        "typed_per_filter_config": filters,
    }
