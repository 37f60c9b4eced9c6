"""ext_proc's protobuf messages ↔ events and actions. No I/O; the hot path, so plain `protobuf` and no detours.

Which of the replies made here are sent, and when, is for `replies` to say.
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import Final, assert_never

from envoy.config.core.v3.base_pb2 import HeaderValueOption
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    HeaderMutation,
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
)

from extproc.core.policy import Destination
from extproc.gateway import endpointpicker
from extproc.gateway.conversation import (
    Acknowledge,
    Action,
    BodyMode,
    Continue,
    CountTokens,
    Event,
    HeadersWanted,
    Metadata,
    RequestBody,
    RequestTrailers,
    Respond,
    ResponseBody,
    ResponseHeaders,
    ResponseMessage,
    SetDestination,
    Wait,
)
from extproc.gateway.output import has_output
from extproc.gateway.requesthead import NOTHING_MORE, head_of

DESTINATION_HEADER: Final = "x-envoy-original-dst-host"
NAMESPACE: Final = "extproc"
"""Of the dynamic metadata."""
_OVERLOADED_HEADER: Final = "x-envoy-overloaded"
"""On what Envoy answers itself for a request beyond its circuit breakers: the 503 is not the node's."""
_STATUS: Final = re.compile("[1-5][0-9][0-9]", re.ASCII)
HOLD_MARGIN_S: Final = 1.0
"""Envoy's timer runs while the answer is on its way, on a busy machine."""
_OVERWRITE: Final = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_NO_BODY: Final = ProcessingMode(
    request_header_mode=ProcessingMode.SEND,
    response_header_mode=ProcessingMode.SKIP,
    response_trailer_mode=ProcessingMode.SKIP,
)
"""Nothing more is shown of the request, nor of its answer: nobody counts it."""
_CHANGE_HEADERS: Final = ("request_headers", "request_body")
_HEADERS: Final[dict[Destination | None, str]] = {
    "original-dst": DESTINATION_HEADER,
    "override-host": endpointpicker.DESTINATION,
}


def kind_of(message: ProcessingRequest) -> str | None:
    """Which message this is, as `request_headers`; its reply must be of the same kind. `None`: none that we know."""
    kind: str | None = message.WhichOneof("request")
    return kind


def event_of(message: ProcessingRequest, wanted: HeadersWanted = NOTHING_MORE, mode: BodyMode | None = None) -> Event:
    """What a message says; of a head what is wanted beside what always is. See `head_of`."""
    match kind_of(message):
        case "request_headers":
            return head_of(message, wanted, mode)
        case "request_body":
            return RequestBody(message.request_body.body, message.request_body.end_of_stream)
        case "request_trailers":
            return RequestTrailers()
        case "response_headers":
            served_by = endpointpicker.served_by(message.metadata_context)
            return ResponseHeaders(_status(message.response_headers), served_by)
        case "response_body":
            return ResponseBody(has_output(message.response_body.body), message.response_body.end_of_stream)
        case _:
            return ResponseMessage()


def reply_of(action: Action, kind: str | None) -> ProcessingResponse:
    """The reply to a message of this kind; only to be read, as acknowledgements are shared."""
    if isinstance(action, Acknowledge):
        return _acknowledgement(kind)
    reply = ProcessingResponse()
    match action:
        case Continue():
            if kind is not None:
                getattr(reply, kind).SetInParent()
            if kind in _CHANGE_HEADERS and action.unnamed in _HEADERS:
                common = getattr(reply, kind).response
                common.header_mutation.remove_headers.append(_HEADERS[action.unnamed])
                common.clear_route_cache = True  # the route may have matched because of it
            _write_body(reply, kind, action)
            _write_metadata(reply, action.metadata)
        case SetDestination():
            assert kind in _CHANGE_HEADERS, "no other reply can change the request's headers"
            common = getattr(reply, kind).response
            # The route was chosen before we were asked; with the header set another one, to our clusters, matches.
            common.clear_route_cache = True
            _write_destination(reply, common.header_mutation, action.destination, action.hosts)
            _write_body(reply, kind, action)
            _write_metadata(reply, action.metadata)
        case Respond():
            immediate = reply.immediate_response
            immediate.status.code = action.status  # Envoy's StatusCode enum has HTTP's numbers
            immediate.body = action.body
            immediate.details = f"extproc_{action.code}"
            _write_headers(immediate.headers, action.headers)
            _write_metadata(reply, action.metadata)
        case CountTokens() | Wait():
            msg = f"{type(action).__name__} is no reply"
            raise TypeError(msg)
        case _:
            assert_never(action)
    return reply


def piece(kind: str, data: bytes, *, end_of_stream: bool) -> ProcessingResponse:
    """A piece of a body given back, in full duplex; `kind` is `request_body` or `response_body`."""
    reply = ProcessingResponse()
    streamed = getattr(reply, kind).response.body_mutation.streamed_response
    streamed.body = data
    streamed.end_of_stream = end_of_stream
    return reply


def hold(for_s: float) -> ProcessingResponse:
    """What has Envoy wait longer for the reply to this message than its `message_timeout`; once for each message.

    Envoy does not hear it where it is longer than the filter's `max_message_timeout`, or where that is not set.
    """
    reply = ProcessingResponse()
    reply.override_message_timeout.FromMilliseconds(round((max(0.0, for_s) + HOLD_MARGIN_S) * 1000))
    return reply


@cache  # half of all replies, and building one takes 0.8 µs
def _acknowledgement(kind: str | None) -> ProcessingResponse:
    reply = ProcessingResponse()
    if kind is not None:
        getattr(reply, kind).SetInParent()
    return reply


def _status(headers: HttpHeaders) -> int:
    status = 0
    for header in headers.headers.headers:
        if header.key == ":status":
            text = header.raw_value.decode("ascii", "replace") if header.raw_value else header.value
            status = int(text) if _STATUS.fullmatch(text) else 0
        elif header.key == _OVERLOADED_HEADER:
            return 0
    return status


def _write_headers(mutation: HeaderMutation, headers: Iterable[tuple[str, str]]) -> None:
    for key, value in headers:
        option = mutation.set_headers.add(append_action=_OVERWRITE)
        option.header.key = key
        option.header.raw_value = value.encode()


def _write_destination(
    reply: ProcessingResponse, mutation: HeaderMutation, destination: Destination, hosts: tuple[str, ...]
) -> None:
    match destination:
        case "original-dst":
            _write_headers(mutation, ((DESTINATION_HEADER, hosts[0]),))
        case "original-dst-metadata":
            mutation.SetInParent()  # Envoy ignores `clear_route_cache` where no headers are changed
            _write_lb_metadata(reply, DESTINATION_HEADER, hosts[0])
        case "override-host":
            told = ",".join(hosts)
            _write_headers(mutation, ((endpointpicker.DESTINATION, told),))
            _write_lb_metadata(reply, endpointpicker.DESTINATION, told)
        case _:
            assert_never(destination)


def _write_lb_metadata(reply: ProcessingResponse, key: str, value: str) -> None:
    fields = reply.dynamic_metadata.fields[endpointpicker.NAMESPACE].struct_value.fields
    fields[key].string_value = value


def _write_body(reply: ProcessingResponse, kind: str | None, action: Continue | SetDestination) -> None:
    """The new body, where there is one; and before there is a body, whether it is wanted."""
    if kind == "request_headers" and not action.body_wanted:
        # Envoy hears it where `allow_mode_override` is set. Buffered for nobody, an upgrade to a websocket would hang.
        reply.mode_override.CopyFrom(_NO_BODY)
    if action.body is None:
        return
    assert kind == "request_body", "a body is replaced in the reply to the whole of it"
    response = reply.request_body.response
    response.body_mutation.body = action.body
    # Envoy keeps the old length in BUFFERED mode, and makes a 500 of a request whose new body has another.
    _write_headers(response.header_mutation, (("content-length", str(len(action.body))),))


def _write_metadata(reply: ProcessingResponse, metadata: Metadata) -> None:
    if not metadata:
        return
    # Assigning field by field costs 4 µs where Struct.update costs 8.
    fields = reply.dynamic_metadata.fields[NAMESPACE].struct_value.fields
    for key, value in metadata.items():
        if isinstance(value, str):
            fields[key].string_value = value
        elif isinstance(value, bool):
            fields[key].bool_value = value
        else:
            fields[key].number_value = value
