"""Envoy's HTTP connection manager: what is done with every request before and after its filters."""

from extproc.render.accesslogs import access_logs
from extproc.render.description import Description
from extproc.render.parts import Part, any_of, early_removal, processor_filter, seconds
from extproc.render.routing import virtual_host
from extproc.render.usage import usage_filter

_FLAGS_OF_NODES = ["UF", "UH", "UC", "UT", "LR", "UR", "UO", "UPE", "URX", "NC"]
_EXTPROCS_500 = "policy_error"
"""The outcome with which extproc itself answers 500."""


def connection_manager(d: Description) -> Part:
    """The network filter."""
    part = any_of(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="llm",
        early_header_mutation_extensions=early_removal(),
        use_remote_address=True,
        internal_address_config={"cidr_ranges": [{"address_prefix": "255.255.255.255", "prefix_len": 32}]},
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action="UNESCAPE_AND_FORWARD",
        request_headers_timeout="10s",
        request_timeout=seconds(d.upload_timeout_s),
        stream_idle_timeout=seconds(d.idle_timeout_s),
    )
    if d.websockets:
        part["upgrade_configs"] = [{"upgrade_type": "websocket"}]
    part |= {
        "access_log": access_logs(),
        "local_reply_config": local_replies(),
        "route_config": {"virtual_hosts": [virtual_host(d)]},
        "http_filters": http_filters(d),
    }
    return {"name": "envoy.filters.network.http_connection_manager", "typed_config": part}


def http_filters(d: Description) -> list[Part]:
    """In the order in which they see requests."""
    router = {"name": "envoy.filters.http.router", "typed_config": any_of("extensions.filters.http.router.v3.Router")}
    return [*([usage_filter()] if d.usage else []), processor_filter(d), router]


def local_replies() -> Part:
    """Envoy's own errors in the shape that OpenAI clients parse."""
    node_gone = {
        "filter": {"response_flag_filter": {"flags": _FLAGS_OF_NODES}},
        "body_format_override": _error(
            "the inference node did not answer (%RESPONSE_CODE_DETAILS%)", "server_error", "node_unreachable"
        ),
    }
    too_large = ("the body is larger than this gateway takes", "invalid_request_error", "request_too_large")
    overloaded = ("this gateway is out of memory for more requests; try again", "server_error", "overloaded")
    undecided = ("this gateway could not choose a node; try again (%RESPONSE_CODE_DETAILS%)", "server_error")
    failed = {"or_filter": {"filters": [_status(500, "llm.undecided"), _status(504, "llm.undecided_in_time")]}}
    return {
        "mappers": [
            {"filter": _envoys_own(413, "llm.too_large"), "body_format_override": _error(*too_large)},
            node_gone,
            {"filter": _envoys_own(503, "llm.overloaded"), "body_format_override": _error(*overloaded)},
            {"filter": _told("outcome", {"string_match": {"exact": _EXTPROCS_500}}, otherwise=False)},
            {"filter": failed, "body_format_override": _error(*undecided, "gateway_error")},
        ]
    }


def _envoys_own(code: int, runtime_key: str) -> Part:
    not_extprocs = _told("reason", {"present_match": False}, otherwise=True)
    return {"and_filter": {"filters": [_status(code, runtime_key), not_extprocs]}}


def _status(code: int, runtime_key: str) -> Part:
    comparison = {"op": "EQ", "value": {"default_value": code, "runtime_key": runtime_key}}
    return {"status_code_filter": {"comparison": comparison}}


def _told(key: str, value: Part, *, otherwise: bool) -> Part:
    """Matches by what extproc tells under a key; `otherwise` where it tells nothing."""
    matcher = {"filter": "extproc", "path": [{"key": key}], "value": value}
    return {"metadata_filter": {"matcher": matcher, "match_if_key_not_found": otherwise}}


def _error(message: str, kind: str, code: str) -> Part:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return {"content_type": "application/json", "json_format": {"error": error}}
