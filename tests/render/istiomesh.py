"""What Istio does with a VirtualService and an EnvoyFilter: an Envoy's bootstrap, with its routes in place of RDS."""

import copy
from typing import Any

import yaml

from extproc.address import TcpAddress
from extproc.render.istiopatches import MANAGER, ROUTER

Json = Any
CONTEXTS = ("GATEWAY", "SIDECAR_OUTBOUND")
TYPE = "type.googleapis.com/envoy."


def documents(text: str) -> dict[str, Json]:
    """By kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def bootstrap(text: str, engines: str = "outbound|8000||engines.llm.svc.cluster.local") -> Json:
    """The resources, applied. `engines` is the name of Istio's cluster of the engines."""
    resources = documents(text)
    service = _service(resources["VirtualService"])
    made = _unpatched(resources["VirtualService"], engines, service)
    patches = resources["EnvoyFilter"]["spec"]["configPatches"]
    # Istio merges first and adds then; within each in the order of the patches.
    for operation in ("MERGE", "ADD", "INSERT_BEFORE"):
        for patch in patches:
            if patch["patch"]["operation"] == operation:
                _apply(made, patch, {engines: service})
    return made


def merge(into: Json, patch: Json) -> None:
    """As protobuf merges: messages field by field, lists are joined, all else is replaced."""
    for key, value in patch.items():
        if key == "typed_per_filter_config":
            into.setdefault(key, {}).update(copy.deepcopy(value))  # of a map whole entries are replaced
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        elif isinstance(value, list):
            into.setdefault(key, []).extend(copy.deepcopy(value))
        else:
            into[key] = copy.deepcopy(value)


def manager(made: Json) -> Json:
    return made["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def routes(made: Json) -> list[Json]:
    found: list[Json] = manager(made)["route_config"]["virtual_hosts"][0]["routes"]
    return found


def cluster(made: Json, name: str) -> Json:
    (found,) = (one for one in made["static_resources"]["clusters"] if one["name"] == name)
    return found


def _service(virtual_service: Json) -> TcpAddress:
    (found,) = {
        (one["destination"]["host"], one["destination"]["port"]["number"])
        for http in virtual_service["spec"]["http"]
        for one in http["route"]
    }
    return TcpAddress(*found)


def _unpatched(virtual_service: Json, engines: str, service: TcpAddress) -> Json:
    """What Istio makes of a VirtualService alone, as far as it matters here."""
    spec = virtual_service["spec"]
    router = {"name": ROUTER, "typed_config": {"@type": f"{TYPE}extensions.filters.http.router.v3.Router"}}
    http = {
        "@type": f"{TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "llm",
        "access_log": [
            {
                "name": "mesh",
                "typed_config": {"@type": f"{TYPE}extensions.access_loggers.stream.v3.StdoutAccessLog"},
            }
        ],
        "route_config": {
            "virtual_hosts": [
                {"name": "mesh", "domains": ["*"], "routes": [_route(one, engines) for one in spec["http"]]}
            ]
        },
        "http_filters": [router],
    }
    listener = {
        "name": "llm",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [{"filters": [{"name": MANAGER, "typed_config": http}]}],
    }
    clusters = [
        {
            "name": engines,
            "type": "STRICT_DNS",
            "lb_policy": "ROUND_ROBIN",
            "common_lb_config": {},
            "load_assignment": _assignment(engines, service.host, service.port),
        },
        {"name": "sds-grpc", "type": "STATIC", "load_assignment": _assignment("sds-grpc", "127.0.0.1", 1)},
    ]
    admin = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
    node = {"id": "gateway", "cluster": "mesh"}
    return {"node": node, "admin": admin, "static_resources": {"listeners": [listener], "clusters": clusters}}


def _route(http: Json, engines: str) -> Json:
    (match,) = http["match"]
    action: Json = {
        "cluster": engines,
        "timeout": http["timeout"],
    }
    if http["retries"]["attempts"] > 0:
        action["retry_policy"] = {
            "retry_on": http["retries"]["retryOn"],
            "num_retries": http["retries"]["attempts"],
        }
    if "rewrite" in http:
        action["prefix_rewrite"] = http["rewrite"]["uri"]
    return {"name": http["name"], "match": {"prefix": match["uri"]["prefix"]}, "route": action}


def _assignment(name: str, host: str, port: int) -> Json:
    address = {"socket_address": {"address": host, "port_value": port}}
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]}


def _apply(made: Json, patch: Json, services: dict[str, TcpAddress]) -> None:
    match, operation, value = patch["match"], patch["patch"]["operation"], patch["patch"]["value"]
    assert match["context"] in CONTEXTS, match
    match patch["applyTo"], operation:
        case "CLUSTER", "ADD":
            made["static_resources"]["clusters"].append(copy.deepcopy(value))
        case "CLUSTER", "MERGE":
            wanted = TcpAddress(match["cluster"]["service"], match["cluster"]["portNumber"])
            (name,) = (name for name, service in services.items() if service == wanted)
            merge(cluster(made, name), value)
        case "NETWORK_FILTER", "MERGE":
            assert match["listener"]["filterChain"]["filter"] == {"name": MANAGER}
            merge(manager(made), value["typed_config"])
        case "HTTP_FILTER", "INSERT_BEFORE":
            found = match["listener"]["filterChain"]["filter"]
            assert found == {"name": MANAGER, "subFilter": {"name": ROUTER}}
            filters = manager(made)["http_filters"]
            assert [one["name"] for one in filters][-1] == ROUTER
            filters.insert(len(filters) - 1, copy.deepcopy(value))
        case "HTTP_ROUTE", operation:
            name = match["routeConfiguration"]["vhost"]["route"]["name"]
            (index,) = (index for index, one in enumerate(routes(made)) if one["name"] == name)
            if operation == "MERGE":
                merge(routes(made)[index], value)
            else:
                assert operation == "INSERT_BEFORE"
                routes(made).insert(index, copy.deepcopy(value))
        case other:
            raise AssertionError(other)
