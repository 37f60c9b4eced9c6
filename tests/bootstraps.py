"""Bootstraps of Envoy for tests: with one external processor, all of whose timeouts are long or off."""

import copy
from typing import Any

from extproc.address import Address, TcpAddress, UnixAddress
from extproc.envoytimeouts import Hold

HOLD = Hold(31.1, "class batch waits up to 30 s", Hold(1.1, "counting tokens takes up to 0.1 s"))
LISTEN = TcpAddress("127.0.0.1", 9002)
LONGEST = "3600s"
TYPE = "type.googleapis.com/envoy."
PER_ROUTE = f"{TYPE}extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
FILTER = "http_filters.0.typed_config."
MANAGER = "static_resources.listeners.0.filter_chains.0.filters.0.typed_config."
ROUTE = "route_config.virtual_hosts.0.routes.0."
DURATION = "common_http_protocol_options.max_stream_duration"
OPTIONS = "typed_extension_protocol_options.envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
Json = Any


def manager() -> Json:
    """A connection manager with one route, all of whose timeouts are long or off."""
    return {
        "@type": f"{TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "llm",
        "stream_idle_timeout": LONGEST,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "llm",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "ours",
                "typed_config": {
                    "@type": f"{TYPE}extensions.filters.http.ext_proc.v3.ExternalProcessor",
                    "grpc_service": {"envoy_grpc": {"cluster_name": "extproc"}},
                    "message_timeout": LONGEST,
                    "mutation_rules": {"allow_envoy": True},
                    "processing_mode": {"request_body_mode": "BUFFERED", "response_header_mode": "SKIP"},
                },
            },
            {"name": "router", "typed_config": {"@type": f"{TYPE}extensions.filters.http.router.v3.Router"}},
        ],
    }


def cluster(name: str, address: Address, *, http2: bool = True) -> Json:
    match address:
        case TcpAddress(host, port):
            envoys: Json = {"socket_address": {"address": host, "port_value": port}}
        case UnixAddress(path):
            envoys = {"pipe": {"path": path}}
    protocol: Json = {"http2_protocol_options": {}} if http2 else {"http_protocol_options": {}}
    return {
        "name": name,
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": envoys}}]}],
        },
        "typed_extension_protocol_options": {
            OPTIONS.partition(".")[2]: {
                "@type": f"{TYPE}extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": protocol,
            }
        },
    }


def listener(one: Json, address: Json = None) -> Json:
    return {"address": address, "filter_chains": [{"filters": [{"name": "http", "typed_config": one}]}]}


def bootstrap(*managers: Json, clusters: Json = None) -> Json:
    clusters = [cluster("extproc", LISTEN)] if clusters is None else clusters
    return {"static_resources": {"listeners": [listener(one) for one in managers], "clusters": clusters}}


def put(into: Json, path: str, value: Json) -> Json:
    """A copy with a value at a path; mappings that are not there yet are made."""
    made = copy.deepcopy(into)
    at = made
    path = path.replace(OPTIONS, "typed_extension_protocol_options.OPTIONS")
    *above, last = (OPTIONS.partition(".")[2] if part == "OPTIONS" else part for part in path.split("."))
    for part in above:
        at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
    at[int(last) if isinstance(at, list) else last] = value
    return made


def without(into: Json, path: str) -> Json:
    made = copy.deepcopy(into)
    at = made
    *above, last = path.split(".")
    for part in above:
        at = at[int(part)] if isinstance(at, list) else at[part]
    del at[last]
    return made
