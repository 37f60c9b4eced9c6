"""What Envoy Gateway does with resources: an Envoy's bootstrap, with its routes in place of RDS.

Settings that no resource says are as Envoy Gateway 1.9 has them: the external processor without mutation rules, forward
rules and a longest message timeout, and switched off but on its routes.
"""

from typing import Any

import yaml

Json = Any
TYPE = "type.googleapis.com/envoy."
EXT_PROC = "envoy.filters.http.ext_proc"
OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_ANY_PORT = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
ANNOTATIONS = "gateway.envoyproxy.io/"
BODIES = {
    "Buffered": "BUFFERED",
    "Streamed": "STREAMED",
    "BufferedPartial": "BUFFERED_PARTIAL",
    "FullDuplexStreamed": "FULL_DUPLEX_STREAMED",
    None: "NONE",
}


def resources(text: str) -> dict[str, dict[str, Json]]:
    """By kind and name."""
    found: dict[str, dict[str, Json]] = {}
    for one in yaml.safe_load_all(text):
        found.setdefault(one["kind"], {})[one["metadata"]["name"]] = one
    return found


def bootstrap(text: str, nodes: str = "nodes") -> Json:
    """The resources of a text, applied. `nodes` is the name of the cluster that is made of the Backends."""
    found = resources(text)
    (clients,) = (one["spec"] for one in found["ClientTrafficPolicy"].values())
    (traffic,) = (one["spec"] for one in found["BackendTrafficPolicy"].values())
    (proxy,) = (one["spec"] for one in found["EnvoyProxy"].values())
    policies = found["EnvoyExtensionPolicy"]
    times = clients["timeout"]["http"]
    http = {
        **_any("extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "llm",
        "early_header_mutation_extensions": [
            {
                "name": "early",
                "typed_config": {
                    **_any("extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"),
                    "mutations": [{"remove": one} for one in clients["headers"]["earlyRequestHeaders"]["remove"]],
                },
            }
        ],
        "use_remote_address": True,
        "preserve_external_request_id": clients["headers"]["requestID"] == "PreserveOrGenerate",
        "normalize_path": True,
        "merge_slashes": True,
        "request_timeout": times["requestReceivedTimeout"],
        "stream_idle_timeout": times["streamIdleTimeout"],
        "access_log": [_log(sink) for one in proxy["telemetry"]["accessLog"]["settings"] for sink in one["sinks"]],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "gateway",
                    "domains": ["*"],
                    "routes": [
                        _route(one, rule, nodes, traffic.get("retry"), policies)
                        for one in found["HTTPRoute"].values()
                        for rule in one["spec"]["rules"]
                    ],
                }
            ]
        },
        "http_filters": [
            *(_filter(name, one["spec"]["extProc"][0]) for name, one in policies.items()),
            {"name": "envoy.filters.http.router", "typed_config": _any("extensions.filters.http.router.v3.Router")},
        ],
    }
    listener = {
        "name": "llm",
        "per_connection_buffer_limit_bytes": clients.get("connection", {}).get("bufferLimit", 32768),
        "address": _ANY_PORT,
        "filter_chains": [{"filters": [{"name": "http", "typed_config": http}]}],
    }
    endpoints = [end for one in found["Backend"].values() for end in one["spec"]["endpoints"]]
    (service,) = {
        (one["name"], one["port"]) for each in policies.values() for one in each["spec"]["extProc"][0]["backendRefs"]
    }
    clusters = [_nodes(nodes, endpoints, traffic), _processor(*service)]
    return {"admin": {"address": _ANY_PORT}, "static_resources": {"listeners": [listener], "clusters": clusters}}


def _any(message: str) -> Json:
    return {"@type": f"{TYPE}{message}"}


def _filter_name(policy: str) -> str:
    return f"{EXT_PROC}/{policy}"


def _filter(policy: str, given: Json) -> Json:
    mode = given["processingMode"]
    request, response = mode["request"].get("body"), mode["response"].get("body")
    return {
        "name": _filter_name(policy),
        "disabled": True,
        "typed_config": {
            **_any("extensions.filters.http.ext_proc.v3.ExternalProcessor"),
            "grpc_service": {"envoy_grpc": {"cluster_name": "extproc"}, "timeout": "10s"},
            "failure_mode_allow": given["failOpen"],
            "message_timeout": given["messageTimeout"],
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": BODIES[request],
                "request_trailer_mode": "SEND" if request == "FullDuplexStreamed" else "SKIP",
                "response_header_mode": "SEND",
                "response_body_mode": BODIES[response],
                "response_trailer_mode": "SKIP",
            },
            "allow_mode_override": mode.get("allowModeOverride", False),
            "request_attributes": mode["request"]["attributes"],
            "metadata_options": {
                "receiving_namespaces": {"untyped": given["metadata"]["writableNamespaces"]},
                "forwarding_namespaces": {"untyped": given["metadata"]["accessibleNamespaces"]},
            },
        },
    }


def _route(one: Json, rule: Json, nodes: str, retry: Json, policies: Json) -> Json:
    name = one["metadata"]["name"]
    (match,) = rule["matches"]
    prefix = match["path"]["value"]
    annotations = {
        key.removeprefix(ANNOTATIONS): value for key, value in one["metadata"].get("annotations", {}).items()
    }
    action: Json = {
        "cluster": nodes,
        "timeout": rule["timeouts"]["request"],
    }
    if retry is not None:
        action["retry_policy"] = {
            "retry_on": ",".join(retry["retryOn"]["triggers"]),
            "retriable_status_codes": retry["retryOn"]["httpStatusCodes"],
            "num_retries": retry["numRetries"],
        }
    for rewritten in rule.get("filters", []):
        action["prefix_rewrite"] = rewritten["urlRewrite"]["path"]["replacePrefixMatch"]
    (policy,) = (
        key for key, each in policies.items() if name in [target["name"] for target in each["spec"]["targetRefs"]]
    )
    on = {**_any("extensions.filters.http.ext_proc.v3.ExtProcPerRoute"), "overrides": {}}
    resource = {"kind": "HTTPRoute", "name": name, "namespace": "llm", "annotations": annotations}
    return {
        "name": name,
        "match": {"prefix": "/"} if prefix == "/" else {"path_separated_prefix": prefix},
        "route": action,
        "metadata": {"filter_metadata": {"envoy-gateway": {"resources": [resource]}}},
        "typed_per_filter_config": {_filter_name(policy): on},
    }


def _nodes(name: str, endpoints: list[Json], traffic: Json) -> Json:
    (source,) = traffic["loadBalancer"]["endpointOverride"]["extractFrom"]
    in_turn = {"name": "in-turn", "typed_config": _any("extensions.load_balancing_policies.round_robin.v3.RoundRobin")}
    listed = {
        **_any("extensions.load_balancing_policies.override_host.v3.OverrideHost"),
        "override_host_sources": [source],
        "fallback_policy": {"policies": [{"typed_extension_config": in_turn}]},
    }
    policy = {"name": "listed", "typed_config": listed}
    hosts = [(one["ip"]["address"], one["ip"]["port"]) for one in endpoints if "ip" in one]
    names = [(one["fqdn"]["hostname"], one["fqdn"]["port"]) for one in endpoints if "fqdn" in one]
    made = {
        "name": name,
        "type": "STRICT_DNS" if names else "STATIC",
        "connect_timeout": traffic["timeout"]["tcp"]["connectTimeout"],
        "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
        "load_assignment": _assignment(name, [*hosts, *names]),
    }
    if "healthCheck" in traffic:
        given = traffic["healthCheck"]["active"]
        made["health_checks"] = [
            {
                "timeout": given["timeout"],
                "interval": given["interval"],
                "unhealthy_threshold": given["unhealthyThreshold"],
                "healthy_threshold": given["healthyThreshold"],
                "http_health_check": {"path": given["http"]["path"]},
            }
        ]
    return made


def _processor(host: str, port: int) -> Json:
    options = {
        **_any("extensions.upstreams.http.v3.HttpProtocolOptions"),
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    return {
        "name": "extproc",
        "type": "STRICT_DNS",
        "typed_extension_protocol_options": {OPTIONS: options},
        "load_assignment": _assignment("extproc", [(host, port)]),
    }


def _assignment(name: str, hosts: list[tuple[str, int]]) -> Json:
    ends = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}} for host, port in hosts
    ]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": ends}]}


def _log(sink: Json) -> Json:
    if sink["type"] == "File":
        given = {**_any("extensions.access_loggers.file.v3.FileAccessLog"), "path": sink["file"]["path"]}
        return {"name": "file", "typed_config": given}
    als = sink["als"]
    assert (sink["type"], als["type"]) == ("ALS", "HTTP")
    common = {
        "log_name": als["logName"],
        "transport_api_version": "V3",
        "buffer_flush_interval": "0.1s",
        "grpc_service": {"envoy_grpc": {"cluster_name": "extproc"}},
    }
    return {
        "name": "als",
        "typed_config": {
            **_any("extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig"),
            "common_config": common,
        },
    }
