"""Parts of Envoy's configuration that every kind of output has, as mappings in the names of Envoy's API.

Mappings keep the order that people read in; whoever puts them together has them checked by Envoy's typed classes.
"""

import json
from collections.abc import Mapping
from typing import Any

from extproc.render.description import BodyMode, Description, Policy, Route

Part = dict[str, Any]

PROCESSOR = "extproc"
"""Name of the cluster of `extproc serve`."""
CHOSEN = "chosen-node"
KNOWN = "known-nodes"
FAILOVER = "chosen-then-known"
FAILOVER_CLUSTERS = (CHOSEN, KNOWN, KNOWN)
"""Of each attempt of a request that goes to `FAILOVER`. One attempt more would be answered 503, flag UH."""

ORIGINAL_DST_HEADER = "x-envoy-original-dst-host"
ENDPOINT_HEADER = "x-gateway-destination-endpoint"
ENDPOINT_SUBSET_HEADER = "x-gateway-destination-endpoint-subset"
ENDPOINT_SERVED_KEY = "x-gateway-destination-endpoint-served"
POLICY_HEADER = "x-extproc-policy"
DESTINATION_KEY = "x-extproc-destination"
"""gRPC metadata by which Envoy says how it wants to be told, whatever the policy says."""
LB_NAMESPACE = "envoy.lb"
FORWARDED_NAMESPACES = (LB_NAMESPACE, "envoy.lb.subset_hint", "extproc.policy")

ROUTING_HEADERS = (
    ORIGINAL_DST_HEADER,
    ENDPOINT_HEADER,
    ENDPOINT_SUBSET_HEADER,
    ENDPOINT_SERVED_KEY,
    POLICY_HEADER,
)
"""What only extproc, or whoever is trusted in front of it, may say: never clients."""

FIRST_TOKENS = "first-tokens"
"""The policy of routes for first tokens that have no other."""
_LEAVES = {"leave_after_first_token": True}

_EXT_PROC = "envoy.filters.http.ext_proc"
_BODY_MODES: Mapping[BodyMode, str] = {
    "buffered": "BUFFERED",
    "full-duplex": "FULL_DUPLEX_STREAMED",
    "streamed": "STREAMED",
    "buffered-partial": "BUFFERED_PARTIAL",
    "none": "NONE",
}


def any_of(message: str, **fields: Any) -> Part:
    """A message that stands where Envoy takes any: with its type."""
    return {"@type": f"type.googleapis.com/envoy.{message}", **fields}


def seconds(value: float) -> str:
    """A duration as Envoy takes it: at most nine decimals, and no exponent."""
    return f"{value:.9f}".rstrip("0").rstrip(".") + "s"


def policy_text(policy: str | Mapping[str, Any]) -> str:
    """A policy as the value of `grpc_initial_metadata`, where Envoy would replace what stands between percent signs."""
    return (policy if isinstance(policy, str) else json.dumps(policy)).replace("%", "%%")


def initial_metadata(d: Description) -> list[Part]:
    """gRPC metadata that tells extproc the policy, and how this Envoy is told if that is not by policies' default."""
    told = [] if d.destination == "original-dst" else [{"key": DESTINATION_KEY, "value": d.destination}]
    return [_policy_metadata(d.policy), *told]


def _policy_metadata(policy: str | Mapping[str, Any]) -> Part:
    return {"key": POLICY_HEADER, "value": policy_text(policy)}


def early_removal() -> list[Part]:
    """What takes the routing headers from clients before any filter runs, and before the first route is chosen."""
    return [
        {
            "name": "only-extproc-chooses",
            "typed_config": any_of(
                "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                mutations=[{"remove": header} for header in ROUTING_HEADERS],
            ),
        }
    ]


def previous_hosts() -> list[Part]:
    """A retry goes to a host that has not been tried."""
    return [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": any_of("extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"),
        }
    ]


def shows_whole_body(d: Description) -> bool:
    """Whether extproc has the whole body, or else depends on headers for the model's name."""
    return d.body_mode in ("buffered", "full-duplex")


def processing_mode(d: Description, *, first_tokens: bool = False) -> Part:
    """What extproc is shown of each request and its answer."""
    heads = first_tokens or d.destination == "override-host" or d.several_processors or len(d.processor) > 1
    return {
        "request_header_mode": "SEND",
        "request_body_mode": _BODY_MODES[d.body_mode],
        "request_trailer_mode": "SEND" if d.body_mode == "full-duplex" else "SKIP",
        "response_header_mode": "SEND" if heads else "SKIP",
        "response_body_mode": "STREAMED" if first_tokens else "NONE",
        "response_trailer_mode": "SEND",
    }


def mutation_rules(d: Description) -> Part:
    """The headers that extproc may set: a destination, a new body's length, and those of its refusals."""
    destination = {"original-dst": [ORIGINAL_DST_HEADER], "override-host": [ENDPOINT_HEADER]}.get(d.destination, [])
    allowed = [*destination, "content-length", "content-type", "retry-after", "x-ratelimit-.*"]
    return {"disallow_all": True, "allow_expression": {"regex": "|".join(allowed)}}


def headers_shown(d: Description) -> list[str]:
    """The headers that extproc is shown, of requests and answers."""
    needed = [":method", ":path", "content-length", "x-request-id", ":status", "x-envoy-overloaded"]
    model = [] if shows_whole_body(d) else [d.model_header]
    return list(dict.fromkeys([*needed, *model, *d.headers_shown]))


def metadata_options(d: Description) -> Part:
    """The namespaces of dynamic metadata that extproc may write, and those it is shown."""
    told_by_metadata = d.destination != "original-dst"
    return {
        "receiving_namespaces": {"untyped": [PROCESSOR, *([LB_NAMESPACE] if told_by_metadata else [])]},
        "forwarding_namespaces": {"untyped": list(dict.fromkeys([*FORWARDED_NAMESPACES, *d.metadata_shown]))},
    }


def processor(d: Description, *, cluster: str = PROCESSOR) -> Part:
    """The external processor's settings: a typed mapping of `ExternalProcessor`."""
    part = any_of(
        "extensions.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={
            "envoy_grpc": {"cluster_name": cluster},
            "retry_policy": {
                "retry_on": "connect-failure,refused-stream,unavailable",
                "num_retries": 2,
                "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.1s"},
                "retry_host_predicate": previous_hosts(),
                "host_selection_retry_max_attempts": 3,
            },
            "initial_metadata": initial_metadata(d),
        },
        failure_mode_allow=d.fail_open,
        message_timeout=seconds(d.message_timeout_s),
        max_message_timeout=seconds(d.queue_timeout_s),
        processing_mode=processing_mode(d),
    )
    if d.body_mode in ("buffered", "buffered-partial", "streamed"):
        part["allow_mode_override"] = True
    part["mutation_rules"] = mutation_rules(d)
    part["forward_rules"] = {"allowed_headers": {"patterns": [{"exact": header} for header in headers_shown(d)]}}
    part["metadata_options"] = metadata_options(d)
    if d.route_metadata:
        part["request_attributes"] = ["xds.route_metadata"]
    return part


def processor_filter(d: Description, *, cluster: str = PROCESSOR) -> Part:
    """The HTTP filter that asks extproc; `cluster` is where it is found."""
    return {"name": _EXT_PROC, "typed_config": processor(d, cluster=cluster)}


def per_route(**fields: Any) -> Part:
    """`typed_per_filter_config` of the external processor."""
    return {_EXT_PROC: any_of("extensions.filters.http.ext_proc.v3.ExtProcPerRoute", **fields)}


def route_overrides(d: Description, route: Route) -> Part | None:
    """What a route says otherwise than the filter: `typed_per_filter_config`, or nothing."""
    overrides: Part = {}
    policy = route.policy
    if route.first_tokens:
        overrides["processing_mode"] = processing_mode(d, first_tokens=True)
        policy = leaving_policy(d) if policy is None else policy
    if policy is not None:
        overrides["grpc_initial_metadata"] = [_policy_metadata(policy)]
    return per_route(overrides=overrides) if overrides else None


def leaving_policy(d: Description) -> Policy | None:
    """Of a route that shows first tokens and has no policy of its own. `None`: the description's named one, which its
    author has made; extproc's `default` cannot be known here, and one in its place has defaults only.
    """
    if isinstance(d.policy, str):
        return {"name": FIRST_TOKENS, **_LEAVES} if d.policy == "default" else None
    return {**d.policy, **_LEAVES}


def retries(d: Description, cluster: str) -> Part | None:
    """`retry_policy` of a route to this cluster; `None`: it has none.

    Where a body goes on while extproc sees it, retries have Envoy send what has gone on once more when extproc fails.
    That is worth it only where a retry comes to another node.
    """
    streams = d.body_mode in ("streamed", "buffered-partial")
    if streams and cluster != FAILOVER and d.destination != "override-host":
        return None
    if d.destination == "override-host":
        return {
            "retry_on": "reset,retriable-status-codes",
            "retriable_status_codes": [503],
            "num_retries": max(1, d.destinations_max - 1),
        }
    if cluster == CHOSEN:
        return {"retry_on": "reset", "num_retries": 1}
    if cluster == FAILOVER:
        return {"retry_on": "reset", "num_retries": len(FAILOVER_CLUSTERS) - 1}
    return {
        "retry_on": "reset",
        "num_retries": 1,
        "retry_host_predicate": previous_hosts(),
        "host_selection_retry_max_attempts": 5,
    }
