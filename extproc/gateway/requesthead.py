"""The head of a request: what every policy reads of it, and what one names: a class of priority, a tenant."""

from typing import Final

from envoy.config.core.v3.base_pb2 import HeaderValue
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest
from google.protobuf.struct_pb2 import Struct

from extproc.core.admissionsettings import TENANT_CHARS_MAX
from extproc.gateway.conversation import BodyMode, HeadersWanted, RequestHeaders
from extproc.gateway.endpointpicker import subset_of

TRACE_ID_CHARS_MAX: Final = 128
NOTHING_MORE: Final = HeadersWanted()
_LENGTH_DIGITS_MAX: Final = 18
_WHOLE_MAX: Final = 2**53
"""Whole numbers up to this are what they were in a claim: Envoy has all numbers as floats."""
_MODES: Final = {
    ProcessingMode.NONE: BodyMode.NONE,
    ProcessingMode.STREAMED: BodyMode.STREAMED,
    ProcessingMode.BUFFERED: BodyMode.BUFFERED,
    ProcessingMode.BUFFERED_PARTIAL: BodyMode.PARTIAL,
    ProcessingMode.FULL_DUPLEX_STREAMED: BodyMode.DUPLEX,
}
_ALWAYS: Final = frozenset((":method", ":path", "content-length", "x-request-id"))


def head_of(
    message: ProcessingRequest, wanted: HeadersWanted = NOTHING_MORE, mode: BodyMode | None = None
) -> RequestHeaders:
    """What a message of kind `request_headers` says; of headers and metadata what is wanted beside what always is.

    `mode` is what the stream's first message told; `None`: this is the first.
    """
    headers, found, named = message.request_headers, {}, {}
    for header in headers.headers.headers:
        key = header.key
        if key in _ALWAYS:
            found[key] = _text(header)
        if key in wanted.names:
            named[key] = _printable(_text(header))
    return RequestHeaders(
        method=found.get(":method", ""),
        path=found.get(":path", ""),
        content_length=_length(found.get("content-length", "")),
        trace_id=_printable(found.get("x-request-id", ""))[:TRACE_ID_CHARS_MAX],
        end_of_stream=headers.end_of_stream,
        mode=mode_of(message) if mode is None else mode,
        observed=message.observability_mode,
        named=named,
        subset=subset_of(message.metadata_context),
        tenant_claim=_tenant_claim(message, wanted) if wanted.namespace else None,
    )


def mode_of(message: ProcessingRequest) -> BodyMode:
    """How the request's body will be shown; told by a stream's first message alone."""
    if not message.HasField("protocol_config"):
        return BodyMode.UNTOLD
    return _MODES.get(message.protocol_config.request_body_mode, BodyMode.UNTOLD)


def _text(header: HeaderValue) -> str:
    text: str = header.raw_value.decode("utf-8", "replace") if header.raw_value else header.value
    return text


def _tenant_claim(message: ProcessingRequest, wanted: HeadersWanted) -> str | None:
    """The value at the path. What is left of a path is looked up whole first: names as `https://a.b/c` have dots."""
    found = message.metadata_context.filter_metadata
    if wanted.namespace not in found:  # asking a map of protobuf's for a key writes it
        return None
    inner: Struct = found[wanted.namespace]
    path, dot = wanted.claim, "."
    while path not in inner.fields:
        name, dot, path = path.partition(".")
        if not dot or name not in inner.fields:
            return None
        inner = inner.fields[name].struct_value
    value = inner.fields[path]
    match value.WhichOneof("kind"):
        case "string_value":
            return _printable(value.string_value)
        case "number_value":
            number: float = value.number_value
            return str(int(number)) if abs(number) <= _WHOLE_MAX and number.is_integer() else str(number)
        case "bool_value":
            return "true" if value.bool_value else "false"
        case _:
            return None


def _printable(text: str) -> str:
    """As it may stand in a line of a log."""
    text = text[:TENANT_CHARS_MAX]
    return text if text.isprintable() else "".join(one if one.isprintable() else "\ufffd" for one in text)


def _length(content_length: str) -> int | None:
    if not (content_length.isascii() and content_length.isdigit()):
        return None
    return int(content_length) if len(content_length) <= _LENGTH_DIGITS_MAX else 10**_LENGTH_DIGITS_MAX
