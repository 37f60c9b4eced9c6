"""Envoy Gateway's policies: what its Envoys ask of extproc, and what they do towards nodes and clients."""

from collections.abc import Mapping
from typing import Final

from extproc.render.description import BodyMode, Description
from extproc.render.parts import (
    ENDPOINT_HEADER,
    KNOWN,
    ROUTING_HEADERS,
    Part,
    metadata_options,
    retries,
    seconds,
)

_BODIES: Final[Mapping[BodyMode, str | None]] = {
    "buffered": "Buffered",
    "full-duplex": "FullDuplexStreamed",
    "streamed": "Streamed",
    "buffered-partial": "BufferedPartial",
    "none": None,
}
_PARTIAL_BYTES: Final = 1024 * 1024
"""Of a body that extproc is shown the beginning of; as Envoy's own default, for Envoy Gateway's is 32 KiB."""
_RAISED: Final = {
    "maxConnections": 100000,
    "maxPendingRequests": 100000,
    "maxParallelRequests": 100000,
    "maxParallelRetries": 1000,
}


def extension(d: Description, services: list[Part], *, first_tokens: bool) -> Part:
    """Of an EnvoyExtensionPolicy: the external processor."""
    body = _BODIES[d.body_mode]
    request: Part = {} if body is None else {"body": body}
    mode: Part = {"request": request | {"attributes": ["xds.route_metadata"]}}
    mode["response"] = {"body": "Streamed"} if first_tokens else {}
    if d.body_mode in ("buffered", "buffered-partial", "streamed"):
        mode["allowModeOverride"] = True
    options = metadata_options(d)
    grpc = {"service": "envoy.service.ext_proc.v3.ExternalProcessor"}
    healthy = {"type": "GRPC", "grpc": grpc, "timeout": "1s", "interval": "1s"}
    return {
        "extProc": [
            {
                "backendRefs": services,
                "backendSettings": {
                    "circuitBreaker": _RAISED,
                    "healthCheck": {"active": healthy | {"unhealthyThreshold": 2, "healthyThreshold": 1}},
                    "timeout": {"tcp": {"connectTimeout": "1s"}},
                },
                "failOpen": d.fail_open,
                "messageTimeout": _duration(d.queue_timeout_s),
                "processingMode": mode,
                "metadata": {
                    "writableNamespaces": options["receiving_namespaces"]["untyped"],
                    "accessibleNamespaces": options["forwarding_namespaces"]["untyped"],
                },
            }
        ]
    }


def backend_traffic(d: Description) -> Part:
    """Of a BackendTrafficPolicy: which node, and what if it fails."""
    retried: Part = {}
    if (policy := retries(d, KNOWN)) is not None:
        retry_on = {"triggers": policy["retry_on"].split(","), "httpStatusCodes": policy["retriable_status_codes"]}
        retried = {"retry": {"numRetries": policy["num_retries"], "retryOn": retry_on}}
    made: Part = {
        "loadBalancer": {"type": "RoundRobin", "endpointOverride": {"extractFrom": [{"header": ENDPOINT_HEADER}]}},
        **retried,
        "circuitBreaker": _RAISED,
        "timeout": {
            "tcp": {"connectTimeout": "2s"},
            "http": {"requestTimeout": "0s", "connectionIdleTimeout": "4s"},
        },
    }
    if d.health_path is not None:
        asked = {"type": "HTTP", "http": {"path": d.health_path}, "timeout": "1s", "interval": "2s"}
        made["healthCheck"] = {"active": asked | {"unhealthyThreshold": 2, "healthyThreshold": 1}}
    return made


def client_traffic(d: Description) -> Part:
    """Of a ClientTrafficPolicy: what is taken from clients."""
    made: Part = {
        "headers": {"earlyRequestHeaders": {"remove": list(ROUTING_HEADERS)}, "requestID": "PreserveOrGenerate"},
        "path": {"escapedSlashesAction": "UnescapeAndForward"},
        "timeout": {
            "http": {
                "requestReceivedTimeout": _duration(d.upload_timeout_s),
                "streamIdleTimeout": _duration(d.idle_timeout_s),
            }
        },
    }
    if d.body_mode == "buffered":
        made["connection"] = {"bufferLimit": d.body_bytes_max}
    elif d.body_mode == "buffered-partial":
        made["connection"] = {"bufferLimit": _PARTIAL_BYTES}
    return made


def _duration(value: float) -> str:
    """As the Gateway API has durations: whole milliseconds."""
    whole, milliseconds = divmod(max(1, round(value * 1000)), 1000)
    return seconds(whole) if milliseconds == 0 else f"{whole}s{milliseconds}ms" if whole else f"{milliseconds}ms"
