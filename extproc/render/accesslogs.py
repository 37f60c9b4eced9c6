"""Envoy's logs: one line a request for people, and how each request ended for extproc."""

from extproc.render.parts import PROCESSOR, Part, any_of

_LINE = {
    "time": "%START_TIME%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "method": "%REQ(:METHOD)%",
    "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
    "code": "%RESPONSE_CODE%",
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "cluster": "%UPSTREAM_CLUSTER%",
    "host": "%UPSTREAM_HOST%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "bytes_received": "%BYTES_RECEIVED%",
    "bytes_sent": "%BYTES_SENT%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "duration_ms": "%DURATION%",
}
_DECIDED = (
    *("outcome", "arm", "model", "node", "policy", "policy_error", "strategy", "phase", "tokens", "tokens_source"),
    *("tokens_exact", "priority", "queued_ms", "model_asked", "reason"),
)
_KEYS = {"policy_error": "x-extproc-policy-error"}
"""Where the name in the metadata is another than in the log."""


def access_logs(cluster: str = PROCESSOR) -> list[Part]:
    """The line on standard output, and the two logs that `cluster`, which is extproc, is sent."""
    decided = {one: f"%DYNAMIC_METADATA(extproc:{_KEYS.get(one, one)})%" for one in _DECIDED}
    line = {
        "name": "stdout",
        "typed_config": any_of(
            "extensions.access_loggers.stream.v3.StdoutAccessLog", log_format={"json_format": _LINE | decided}
        ),
    }
    failed = {"op": "GE", "value": {"default_value": 500, "runtime_key": "llm.failed"}}
    fine = {"op": "LE", "value": {"default_value": 499, "runtime_key": "llm.not_failed"}}
    return [line, _to_extproc("failures", failed, 0, cluster), _to_extproc("ends", fine, 1048576, cluster)]


def _to_extproc(name: str, codes: Part, buffer_bytes: int, cluster: str) -> Part:
    asked = {"filter": "extproc", "path": [{"key": "request_id"}], "value": {"present_match": True}}
    return {
        "name": name,
        "filter": {
            "and_filter": {
                "filters": [
                    {"status_code_filter": {"comparison": codes}},
                    {"metadata_filter": {"matcher": asked, "match_if_key_not_found": False}},
                ]
            }
        },
        "typed_config": any_of(
            "extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
            common_config={
                "log_name": name,
                "transport_api_version": "V3",
                "buffer_size_bytes": buffer_bytes,
                "buffer_flush_interval": "0.1s",
                "grpc_service": {"envoy_grpc": {"cluster_name": cluster}},
            },
        ),
    }
