"""Entries of Envoy's access log."""

from typing import Any

from envoy.data.accesslog.v3.accesslog_pb2 import AccessLogType, HTTPAccessLogEntry

from extproc.gateway.accesslog import AnswerEnded

OURS = {
    "request_id": "3fa9c1-7",
    "model": "llama",
    "tokens": 120,
    "tokens_exact": True,
    "sequences": 3,
    "node": "gpu-1",
}
USAGE = {"prompt_tokens": 121, "completion_tokens": 9}
ENDED = AnswerEnded(
    request_id="3fa9c1-7",
    status=200,
    details="via_upstream",
    flags=(),
    upstream_host="10.0.0.1:8000",
    first_byte_s=0.25,
    duration_s=61.5,
    model="llama",
    counted_tokens=120,
    counted_exactly=True,
    prompt_tokens=121,
    completion_tokens=9,
    sequences=3,
)


def entry(ours: dict[str, Any] | None = OURS, usage: dict[str, Any] | None = USAGE) -> HTTPAccessLogEntry:
    """What Envoy says of a request that a node answered."""
    made = HTTPAccessLogEntry()
    common = made.common_properties
    for namespace, fields in (("extproc", ours), ("extproc.usage", usage), ("envoy.filters.http.jwt_authn", {"a": 1})):
        if fields is not None:
            common.metadata.filter_metadata[namespace].update(fields)
    common.access_log_type = AccessLogType.DownstreamEnd
    common.upstream_remote_address.socket_address.address = "10.0.0.1"
    common.upstream_remote_address.socket_address.port_value = 8000
    common.time_to_first_upstream_rx_byte.nanos = 250_000_000
    common.duration.seconds, common.duration.nanos = 61, 500_000_000
    made.response.response_code.value = 200
    made.response.response_code_details = "via_upstream"
    return made
