"""Envoy's clusters: the node that extproc chose, the nodes that Envoy knows itself, and extproc."""

from collections.abc import Sequence
from typing import assert_never

from extproc.address import Address, TcpAddress, UnixAddress
from extproc.render.description import Description, Tls, is_name
from extproc.render.parts import (
    CHOSEN,
    ENDPOINT_HEADER,
    ENDPOINT_SERVED_KEY,
    FAILOVER,
    FAILOVER_CLUSTERS,
    KNOWN,
    LB_NAMESPACE,
    ORIGINAL_DST_HEADER,
    PROCESSOR,
    Part,
    any_of,
)

_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def address(one: Address) -> Part:
    """An address as Envoy writes it."""
    match one:
        case TcpAddress(host, port):
            return {"socket_address": {"address": host, "port_value": port}}
        case UnixAddress(path):
            return {"pipe": {"path": path}}
        case other:
            assert_never(other)


def raised_circuit_breakers() -> Part:
    """Bounds that are extproc's to judge: Envoy's own defaults are 1024 requests over all nodes."""
    return {
        "thresholds": [
            {"max_connections": 100000, "max_pending_requests": 100000, "max_requests": 100000, "max_retries": 1000}
        ]
    }


def transport_socket(tls: Tls, *, http2: bool) -> Part:
    """TLS of Envoy as the client of a cluster."""
    common: Part = {}
    if tls.certificate is not None:
        common["tls_certificates"] = [
            {"certificate_chain": {"filename": tls.certificate}, "private_key": {"filename": tls.key}}
        ]
    validation: Part = {"trusted_ca": {"filename": tls.ca}}
    numeric = tls.name is not None and not is_name(TcpAddress(tls.name, 0))
    if tls.name is not None:
        kind = "IP_ADDRESS" if numeric else "DNS"
        validation["match_typed_subject_alt_names"] = [{"san_type": kind, "matcher": {"exact": tls.name}}]
    common["validation_context"] = validation
    if http2:
        common["alpn_protocols"] = ["h2"]
    part = any_of("extensions.transport_sockets.tls.v3.UpstreamTlsContext")
    if tls.name is not None and not numeric:
        part["sni"] = tls.name
    part["common_tls_context"] = common
    return {"name": "envoy.transport_sockets.tls", "typed_config": part}


def node_http(d: Description) -> Part:
    """`typed_extension_protocol_options` towards nodes."""
    protocol = "http2_protocol_options" if d.node_http2 else "http_protocol_options"
    return {
        _HTTP_OPTIONS: any_of(
            "extensions.upstreams.http.v3.HttpProtocolOptions",
            common_http_protocol_options={"idle_timeout": "4s"},
            explicit_http_config={protocol: {}},
        )
    }


def override_host_policy() -> Part:
    """`load_balancing_policy`: the hosts that extproc lists, in their order, and if there is none in turn."""
    extensions = "extensions.load_balancing_policies"
    in_turn = {
        "name": "envoy.load_balancing_policies.round_robin",
        "typed_config": any_of(f"{extensions}.round_robin.v3.RoundRobin"),
    }
    listed = any_of(
        f"{extensions}.override_host.v3.OverrideHost",
        # Not the header as well, which says the same: Envoy would walk the list twice before it takes others.
        override_host_sources=[{"metadata": {"key": LB_NAMESPACE, "path": [{"key": ENDPOINT_HEADER}]}}],
        selected_host_key={"key": LB_NAMESPACE, "path": [{"key": ENDPOINT_SERVED_KEY}]},
        fallback_policy={"policies": [{"typed_extension_config": in_turn}]},
    )
    policy = {"name": "envoy.load_balancing_policies.override_host", "typed_config": listed}
    return {"policies": [{"typed_extension_config": policy}]}


def chosen_cluster(d: Description) -> Part:
    """The node that extproc chose, wherever it is: of `original-dst` and `original-dst-metadata`."""
    if d.destination == "original-dst-metadata":
        told: Part = {"metadata_key": {"key": LB_NAMESPACE, "path": [{"key": ORIGINAL_DST_HEADER}]}}
    else:
        told = {"use_http_header": True}
    part: Part = {
        "name": CHOSEN,
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "per_connection_buffer_limit_bytes": 65536,
        "connect_timeout": "2s",
        "original_dst_lb_config": told,
        "circuit_breakers": raised_circuit_breakers(),
        "typed_extension_protocol_options": node_http(d),
    }
    return part | _node_tls(d)


def known_cluster(d: Description) -> Part:
    """The nodes that Envoy knows itself."""
    balanced: Part = {"lb_policy": "ROUND_ROBIN"}
    if d.destination == "override-host":
        balanced = {"load_balancing_policy": override_host_policy()}
    part: Part = {
        "name": KNOWN,
        "type": _discovery(d.nodes),
        **balanced,
        "per_connection_buffer_limit_bytes": 65536,
        "connect_timeout": "2s",
        "circuit_breakers": raised_circuit_breakers(),
        "typed_extension_protocol_options": node_http(d),
        **_node_tls(d),
    }
    if d.health_path is not None:
        asked = {"path": d.health_path, **({"codec_client_type": "HTTP2"} if d.node_http2 else {})}
        part["health_checks"] = [_asked_every(2, {"http_health_check": asked})]
    return part | {"load_assignment": _assignment(KNOWN, d.nodes)}


def failover_cluster() -> Part:
    """A cluster of its own for every attempt: the chosen node, then known ones. Since Envoy 1.37."""
    names = [{"name": name} for name in FAILOVER_CLUSTERS]
    composite = any_of("extensions.clusters.composite.v3.ClusterConfig", clusters=names)
    return {
        "name": FAILOVER,
        "connect_timeout": "2s",
        "lb_policy": "CLUSTER_PROVIDED",
        "circuit_breakers": raised_circuit_breakers(),
        "cluster_type": {"name": "envoy.clusters.composite", "typed_config": composite},
    }


def processor_cluster(d: Description) -> Part:
    """`extproc serve`, each of them, with all its workers."""
    keepalive = {"interval": "10s", "timeout": "5s"}
    part: Part = {
        "name": PROCESSOR,
        "type": _discovery(d.processor),
        "lb_policy": "ROUND_ROBIN",
        "connect_timeout": "1s",
        "circuit_breakers": raised_circuit_breakers(),
        "health_checks": [
            _asked_every(1, {"grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"}})
        ],
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "typed_extension_protocol_options": {
            _HTTP_OPTIONS: any_of(
                "extensions.upstreams.http.v3.HttpProtocolOptions",
                explicit_http_config={"http2_protocol_options": {"connection_keepalive": keepalive}},
            )
        },
    }
    if len(d.endpoints) > 1:
        part["outlier_detection"] = _left_out_when_gone()
    if d.processor_tls is not None:
        part["transport_socket"] = transport_socket(d.processor_tls, http2=True)
    return part | {"load_assignment": _assignment(PROCESSOR, d.endpoints)}


def _left_out_when_gone() -> Part:
    """Of several that are asked in turn, one that cannot be reached: sooner than health checks see it."""
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 2,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
        "interval": "1s",
        "base_ejection_time": "5s",
        "max_ejection_time": "5s",
        "max_ejection_percent": 50,
    }


def clusters(d: Description) -> list[Part]:
    """All that this description needs."""
    chosen = [] if d.destination == "override-host" else [chosen_cluster(d)]
    known = [known_cluster(d)] if has_known(d) else []
    failover = [failover_cluster()] if d.failover else []
    return [*chosen, *known, *failover, processor_cluster(d)]


def has_known(d: Description) -> bool:
    """Whether some request may go to a node that Envoy knows itself."""
    return d.fail_open or d.destination == "override-host"


def _node_tls(d: Description) -> Part:
    if d.node_tls is None:
        return {}
    return {"transport_socket": transport_socket(d.node_tls, http2=d.node_http2)}


def _asked_every(interval_s: int, asked: Part) -> Part:
    interval = f"{interval_s}s"
    return {
        "timeout": "1s",
        "interval": interval,
        "no_traffic_interval": interval,
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        **asked,
    }


def _discovery(addresses: Sequence[Address]) -> str:
    return "STRICT_DNS" if any(is_name(one) for one in addresses) else "STATIC"


def _assignment(cluster: str, addresses: Sequence[Address]) -> Part:
    endpoints = [{"endpoint": {"address": address(one)}} for one in addresses]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]}
