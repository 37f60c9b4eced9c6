"""Bootstraps of Envoy for tests: with one external processor, all of whose timeouts are long or off."""

import copy
from typing import Any

from extproc.address import Address, TcpAddress, UnixAddress
from extproc.config import Config, parse
from extproc.envoycheck.timeouts import Hold
from extproc.gateway.routepolicy import KEY

HOLD = Hold(31.1, "class batch waits up to 30 s", Hold(1.1, "counting tokens takes up to 0.1 s"))
LISTEN = TcpAddress("127.0.0.1", 9002)
LONGEST = "3600s"
TYPE = "type.googleapis.com/envoy."
PER_ROUTE = f"{TYPE}extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
FILTER = "http_filters.0.typed_config."
MANAGER = "static_resources.listeners.0.filter_chains.0.filters.0.typed_config."
HOST = "route_config.virtual_hosts.0."
ROUTE = f"{HOST}routes.0."
OWN = f"{ROUTE}typed_per_filter_config.ours"
MODE = f"{FILTER}processing_mode"
METADATA = f"{FILTER}grpc_service.initial_metadata"
JWT = "envoy.filters.http.jwt_authn"
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


def configured(**settings: Json) -> Config:
    made = parse(settings)
    assert isinstance(made, Config), made
    return made


EVERYTHING = configured(
    policies={
        "default": {"tenant_header": "X-Tenant", "priority_header": "x-priority", "aliases": {"fast": "m"}},
        "claims": {"tenant_metadata": f"{JWT}:payload.sub", "fallback_models": {"m": "n"}},
    },
    quotas=[{"tokens_per_minute": 1}],
)
"""Policies that read all that can be read."""


def asking(value: Json) -> Json:
    """Initial metadata that asks for a policy."""
    return [{"key": "other", "value": "x"}, {"key": KEY, "value": value}]


def own(**overrides: Json) -> Json:
    """A route's own configuration of the filter."""
    return {"@type": PER_ROUTE, "overrides": overrides}


DESTINATION = "x-envoy-original-dst-host"
EARLY = f"{TYPE}extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
OVERRIDE_HOST = f"{TYPE}extensions.load_balancing_policies.override_host.v3.OverrideHost"
BREAKERS = {"thresholds": [{"max_connections": 9999, "max_pending_requests": 9999, "max_requests": 99999}]}


def early(*mutations: Json) -> Json:
    """What is done to requests before anything else."""
    return [{"name": "early", "typed_config": {"@type": EARLY, "mutations": list(mutations)}}]


def two_routes() -> Json:
    """The one with a choice leads to the cluster `chosen`, the other one to `engines`."""
    headers = [{"name": DESTINATION, "present_match": True}]
    return [
        {"match": {"prefix": "/", "headers": headers}, "route": {"cluster": "chosen", "timeout": "0s"}},
        {"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}},
    ]


def grpc_log(cluster_name: str = "extproc") -> Json:
    """An access log to a cluster."""
    service = {"envoy_grpc": {"cluster_name": cluster_name}}
    config = {"log_name": "ends", "transport_api_version": "V3", "grpc_service": service}
    kind = f"{TYPE}extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig"
    return [{"name": "ends", "typed_config": {"@type": kind, "common_config": config}}]


def complete() -> Json:
    """A connection manager with nothing that is worth a word."""
    made = put(manager(), f"{HOST}routes", two_routes())
    made = put(put(made, f"{HOST}request_body_buffer_limit", "33554432"), f"{FILTER}failure_mode_allow", True)
    made = put(made, f"{FILTER}metadata_options.receiving_namespaces", {"untyped": ["extproc", "envoy.lb"]})
    made = put(put(made, f"{MODE}.response_trailer_mode", "SEND"), "access_log", grpc_log())
    return put(made, "early_header_mutation_extensions", early({"remove": DESTINATION}))


def original_dst(name: str = "chosen", **config: Json) -> Json:
    config = config or {"use_http_header": True}
    kind = {"type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED"}
    return {"name": name, **kind, "original_dst_lb_config": config, "circuit_breakers": BREAKERS}


def override_host(made: Json, *sources: Json) -> Json:
    """A cluster with the policy of endpoint pickers."""
    robin = {"@type": f"{TYPE}extensions.load_balancing_policies.round_robin.v3.RoundRobin"}
    config = {
        "@type": OVERRIDE_HOST,
        "override_host_sources": list(sources),
        "fallback_policy": {"policies": [{"typed_extension_config": {"name": "robin", "typed_config": robin}}]},
    }
    policy = {"typed_extension_config": {"name": "override", "typed_config": config}}
    return made | {"load_balancing_policy": {"policies": [policy]}}


def in_metadata(name: str) -> Json:
    """The key of a choice in dynamic metadata."""
    return {"key": "envoy.lb", "path": [{"key": name}]}


def complete_clusters(processor: Address = LISTEN, known: Address = LISTEN) -> list[Json]:
    """Clusters for `complete`."""
    engines = cluster("engines", known, http2=False)
    return [
        cluster("extproc", processor) | {"circuit_breakers": BREAKERS},
        engines | {"circuit_breakers": BREAKERS},
        original_dst(),
    ]
