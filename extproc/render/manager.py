"""Envoy's HTTP connection manager: what is done with every request before and after its filters."""

from extproc.render.accesslogs import access_logs
from extproc.render.description import Description
from extproc.render.parts import Part, any_of, early_removal, processor_filter, seconds
from extproc.render.routing import virtual_host
from extproc.render.usage import usage_filter

_FLAGS_OF_NODES = ["UF", "UH", "UC", "UT", "LR", "UR", "UO", "UPE", "URX", "NC"]


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
    return {
        "mappers": [
            {"filter": _envoys_own(413, "llm.too_large"), "body_format_override": _error(*too_large)},
            node_gone,
            {"filter": _envoys_own(503, "llm.overloaded"), "body_format_override": _error(*overloaded)},
        ]
    }


def _envoys_own(code: int, runtime_key: str) -> Part:
    comparison = {"op": "EQ", "value": {"default_value": code, "runtime_key": runtime_key}}
    not_extprocs = {"filter": "extproc", "path": [{"key": "reason"}], "value": {"present_match": False}}
    return {
        "and_filter": {
            "filters": [
                {"status_code_filter": {"comparison": comparison}},
                {"metadata_filter": {"matcher": not_extprocs, "match_if_key_not_found": True}},
            ]
        }
    }


def _error(message: str, kind: str, code: str) -> Part:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return {"content_type": "application/json", "json_format": {"error": error}}
