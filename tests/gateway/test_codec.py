from typing import Any

import pytest
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)
from google.protobuf.json_format import MessageToDict

from extproc.core.policy import Destination
from extproc.gateway.codec import event_of, kind_of, reply_of
from extproc.gateway.conversation import (
    Acknowledge,
    Action,
    BodyMode,
    Continue,
    CountTokens,
    Event,
    Metadata,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    Respond,
    ResponseBody,
    ResponseHeaders,
    ResponseMessage,
    SetDestination,
    Wait,
)
from extproc.prompt import Prompt

KINDS = (
    "request_headers",
    "request_body",
    "request_trailers",
    "response_headers",
    "response_body",
    "response_trailers",
)


def head(*pairs: tuple[str, bytes], end_of_stream: bool = False, in_one: bool = False) -> ProcessingRequest:
    values = [HeaderValue(key=key, raw_value=value) for key, value in pairs]
    return ProcessingRequest(
        request_headers=HttpHeaders(headers=HeaderMap(headers=values), end_of_stream=end_of_stream),
        protocol_config=ProtocolConfiguration(request_body_mode=ProcessingMode.BUFFERED) if in_one else None,
    )


def status(text: bytes) -> ProcessingRequest:
    headers = [HeaderValue(key="server", raw_value=b"uvicorn"), HeaderValue(key=":status", raw_value=text)]
    return ProcessingRequest(response_headers=HttpHeaders(headers=HeaderMap(headers=headers)))


def over_the_wire(reply: ProcessingResponse) -> dict[str, Any]:
    """What Envoy reads."""
    again = ProcessingResponse.FromString(reply.SerializeToString())
    return MessageToDict(again, preserving_proto_field_name=True)


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (
            head(
                (":method", b"POST"),
                (":path", b"/v1/completions?x=1"),
                ("content-length", b"12"),
                ("x-request-id", b"t-1"),
                ("x-other", b"\xff"),
                in_one=True,
            ),
            RequestHeaders("POST", "/v1/completions?x=1", 12, "t-1", mode=BodyMode.BUFFERED),
        ),
        (head((":path", b"/\xff"), end_of_stream=True), RequestHeaders("", "/\ufffd", end_of_stream=True)),
        (head(), RequestHeaders("", "")),
        (head(("x-request-id", b"x" * 200)), RequestHeaders("", "", trace_id="x" * 128)),
        (
            ProcessingRequest(request_body=HttpBody(body=b"abc", end_of_stream=True)),
            RequestBody(b"abc", end_of_stream=True),
        ),
        (ProcessingRequest(request_body=HttpBody()), RequestBody(b"", end_of_stream=False)),
        (ProcessingRequest(request_trailers=HttpTrailers()), RequestTrailers()),
        (status(b"200"), ResponseHeaders(200)),
        (status(b"599"), ResponseHeaders(599)),
        (ProcessingRequest(response_headers=HttpHeaders()), ResponseHeaders(0)),
        *((status(text), ResponseHeaders(0)) for text in (b"", b"600", b"099", b"-200", b"2e2", b"2000", b"\xff00")),
        (status("²00".encode()), ResponseHeaders(0)),
        (
            ProcessingRequest(response_body=HttpBody(body=b"data: {}")),
            ResponseBody(has_output=True, end_of_stream=False),
        ),
        (
            ProcessingRequest(response_body=HttpBody(body=b":\n\n")),
            ResponseBody(has_output=False, end_of_stream=False),
        ),
        (
            ProcessingRequest(response_body=HttpBody(end_of_stream=True)),
            ResponseBody(has_output=False, end_of_stream=True),
        ),
        (ProcessingRequest(response_trailers=HttpTrailers()), ResponseMessage()),
        (ProcessingRequest(), ResponseMessage()),
        (ProcessingRequest.FromString(b"\xfa\x07\x02hi"), ResponseMessage()),
    ],
)
def test_each_message_becomes_an_event(message: ProcessingRequest, event: Event) -> None:
    assert event_of(ProcessingRequest.FromString(message.SerializeToString())) == event


@pytest.mark.parametrize("place", [0, 1])
def test_a_status_of_envoys_own_over_its_limits_is_none_of_a_nodes(place: int) -> None:
    headers = [HeaderValue(key=":status", raw_value=b"503")]
    headers.insert(place, HeaderValue(key="x-envoy-overloaded", raw_value=b"true"))
    message = ProcessingRequest(response_headers=HttpHeaders(headers=HeaderMap(headers=headers)))
    assert event_of(message) == ResponseHeaders(0)


def test_a_status_may_come_as_text_instead_of_bytes() -> None:
    headers = HeaderMap(headers=[HeaderValue(key=":status", value="503")])
    assert event_of(ProcessingRequest(response_headers=HttpHeaders(headers=headers))) == ResponseHeaders(503)


def test_a_header_may_come_as_text_instead_of_bytes() -> None:
    headers = HeaderMap(headers=[HeaderValue(key=":method", value="GET")])
    event = event_of(ProcessingRequest(request_headers=HttpHeaders(headers=headers)))
    assert isinstance(event, RequestHeaders)
    assert event.method == "GET"


@pytest.mark.parametrize(
    ("claims", "read"),
    [
        ([b"0"], 0),
        ([b"007"], 7),
        ([b"999999999999999999"], 999_999_999_999_999_999),
        ([b"1" + b"0" * 18], 10**18),
        ([b"9" * 10_000], 10**18),
        ([b"-5"], None),
        ([b"+5"], None),
        ([b"5.0"], None),
        ([b" 5"], None),
        ([b""], None),
        ([b"many"], None),
        ([b"5, 5"], None),
        ([b"\xff"], None),
        (["٣".encode()], None),
        (["²".encode()], None),
        ([b"5", b"6"], 6),
        ([b"5", b"x"], None),
    ],
)
def test_a_content_length_is_a_number_or_nothing(claims: list[bytes], read: int | None) -> None:
    event = event_of(head(*(("content-length", claim) for claim in claims)))
    assert isinstance(event, RequestHeaders)
    assert event.content_length == read


@pytest.mark.parametrize("kind", KINDS)
def test_an_acknowledgement_is_the_empty_reply_of_the_same_kind(kind: str) -> None:
    assert over_the_wire(reply_of(Acknowledge(), kind)) == {kind: {}}
    assert over_the_wire(reply_of(Continue(), kind)) == {kind: {}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("destination", "header"),
    [
        ("original-dst", "x-envoy-original-dst-host"),
        ("override-host", "x-gateway-destination-endpoint"),
        ("original-dst-metadata", None),
        (None, None),
    ],
)
def test_who_goes_on_without_a_destination_goes_without_one_that_its_client_named(
    kind: str, destination: Destination | None, header: str | None
) -> None:
    reply = over_the_wire(reply_of(Continue(unnamed=destination), kind))
    if kind in ("request_headers", "request_body") and header is not None:
        removed = {"header_mutation": {"remove_headers": [header]}, "clear_route_cache": True}
        assert reply == {kind: {"response": removed}}
    else:
        assert reply == {kind: {}}


def test_a_message_of_no_known_kind_gets_an_empty_reply() -> None:
    assert kind_of(ProcessingRequest()) is None
    assert over_the_wire(reply_of(Acknowledge(), None)) == {}


@pytest.mark.parametrize("kind", ["request_headers", "request_body"])
def test_a_destination_is_set_as_the_header_and_clears_the_route_cache(kind: str) -> None:
    metadata: Metadata = {"node": "gpu-1", "tokens": 12, "tokens_exact": True}
    reply = reply_of(SetDestination(("10.0.0.1:8000",), "original-dst", metadata), kind)
    assert over_the_wire(reply) == {
        kind: {
            "response": {
                "header_mutation": {
                    "set_headers": [
                        {
                            "header": {"key": "x-envoy-original-dst-host", "raw_value": "MTAuMC4wLjE6ODAwMA=="},
                            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                        }
                    ]
                },
                "clear_route_cache": True,
            }
        },
        "dynamic_metadata": {"extproc": {"node": "gpu-1", "tokens": 12.0, "tokens_exact": True}},
    }


def test_continuing_without_a_destination_still_tells_access_logs_why() -> None:
    assert over_the_wire(reply_of(Continue({"outcome": "unknown"}), "request_body")) == {
        "request_body": {},
        "dynamic_metadata": {"extproc": {"outcome": "unknown"}},
    }


def test_an_answer_to_the_client_carries_status_body_headers_details_and_metadata() -> None:
    action = Respond(429, "overloaded", b"{}", (("retry-after", "1"),), {"outcome": "overloaded"})
    reply = reply_of(action, "request_body")
    assert reply.immediate_response.status.code == 429
    assert over_the_wire(reply) == {
        "immediate_response": {
            "status": {"code": "TooManyRequests"},
            "headers": {
                "set_headers": [
                    {
                        "header": {"key": "retry-after", "raw_value": "MQ=="},
                        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                    }
                ]
            },
            "body": "e30=",
            "details": "extproc_overloaded",
        },
        "dynamic_metadata": {"extproc": {"outcome": "overloaded"}},
    }


@pytest.mark.parametrize(
    ("action", "kind", "error"),
    [
        (SetDestination(("10.0.0.1:80",), "original-dst", {}), "response_headers", AssertionError),
        (SetDestination(("10.0.0.1:80",), "original-dst", {}), None, AssertionError),
        (CountTokens("m", Prompt(), 1), "request_body", TypeError),
        (Wait(0.0, 1.0, "batch"), "request_body", TypeError),
        (SetDestination(("10.0.0.1:80",), "original-dst", {}, b"{}"), "request_headers", AssertionError),
        (Continue({}, b"{}"), "request_headers", AssertionError),
        (Continue({}, b""), None, AssertionError),
    ],
)
def test_what_is_no_reply_is_a_fault_of_ours(action: Action, kind: str | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        reply_of(action, kind)
