"""What a policy reads of a request's head beside what every policy does."""

from typing import Any

import pytest
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.config.core.v3.base_pb2 import Metadata as EnvoyMetadata
from envoy.service.ext_proc.v3.external_processor_pb2 import HttpHeaders, ProcessingRequest
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.admissionsettings import TENANT_CHARS_MAX
from extproc.core.policy import RoutingPolicy
from extproc.gateway.codec import event_of
from extproc.gateway.conversation import HeadersWanted, RequestHeaders
from extproc.gateway.routepolicy import headers_wanted

NAMED = HeadersWanted(frozenset(("x-tenant", "x-priority")))


def head(*pairs: tuple[str, bytes]) -> ProcessingRequest:
    values = [HeaderValue(key=key, raw_value=value) for key, value in pairs]
    return ProcessingRequest(request_headers=HttpHeaders(headers=HeaderMap(headers=values)))


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ([b"acme"], "acme"),
        ([b"evil", b"acme"], "acme"),
        ([b"evil", b""], ""),
        ([b"a, b"], "a, b"),
        (["größer".encode()], "größer"),
        ([b"a\xffb"], "a\ufffdb"),
        ([b"a\tb\x00\x7f"], "a\ufffdb\ufffd\ufffd"),
        (["a\u2028\u202e".encode()], "a\ufffd\ufffd"),
        ([b"x" * TENANT_CHARS_MAX], "x" * TENANT_CHARS_MAX),
        (["é".encode() * (TENANT_CHARS_MAX + 1)], "é" * TENANT_CHARS_MAX),
    ],
)
def test_a_header_that_a_policy_reads_is_its_last_value_as_a_log_may_have_it(values: list[bytes], read: str) -> None:
    event = event_of(head((":method", b"GET"), *(("x-tenant", value) for value in values), ("x-other", b"no")), NAMED)
    assert event == RequestHeaders("GET", "", named={"x-tenant": read})


def test_headers_that_no_policy_reads_are_not_kept() -> None:
    assert event_of(head(("x-tenant", b"acme"))) == RequestHeaders("", "")


def test_a_policy_may_read_what_is_read_anyway() -> None:
    event = event_of(head((":path", b"/v1"), ("x-request-id", b"t-1")), HeadersWanted(frozenset(("x-request-id",))))
    assert event == RequestHeaders("", "/v1", trace_id="t-1", named={"x-request-id": "t-1"})


def test_a_header_that_a_policy_reads_may_come_as_text_instead_of_bytes() -> None:
    headers = HeaderMap(headers=[HeaderValue(key="x-priority", value="batch")])
    event = event_of(ProcessingRequest(request_headers=HttpHeaders(headers=headers)), NAMED)
    assert event == RequestHeaders("", "", named={"x-priority": "batch"})


def told(**namespaces: dict[str, Any]) -> ProcessingRequest:
    """A request of which filters before us told this."""
    message = head()
    for namespace, fields in namespaces.items():
        message.metadata_context.filter_metadata[namespace].CopyFrom(ParseDict(fields, Struct()))
    return ProcessingRequest.FromString(message.SerializeToString())


def claim(path: str, message: ProcessingRequest) -> str | None:
    policy = RoutingPolicy(tenant_metadata=path)
    before = message.SerializeToString(deterministic=True)
    event = event_of(message, headers_wanted(policy))
    assert isinstance(event, RequestHeaders)
    assert message.SerializeToString(deterministic=True) == before, "reading protobuf's maps can write them"
    return event.tenant_claim


PAYLOAD: dict[str, Any] = {
    "sub": "alice",
    "n": 42,
    "half": 0.5,
    "big": 2**53,
    "huge": 1e300,
    "yes": True,
    "no": False,
    "nothing": None,
    "list": ["alice"],
    "empty": "",
    "odd": "a\nb",
    "long": "x" * 1000,
    "org": {"name": "acme", "deep": {"er": {"er": "yet"}}},
    "https://a.b/tenant": "dots",
    "a.b": {"c": "not found: only what ends a path may have dots"},
}


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("sub", "alice"),
        ("n", "42"),
        ("half", "0.5"),
        ("big", "9007199254740992"),
        ("huge", "1e+300"),
        ("yes", "true"),
        ("no", "false"),
        ("nothing", None),
        ("list", None),
        ("org", None),
        ("empty", ""),
        ("odd", "a\ufffdb"),
        ("long", "x" * TENANT_CHARS_MAX),
        ("org.name", "acme"),
        ("org.deep.er.er", "yet"),
        ("org.deep.er.er.er", None),
        ("sub.more", None),
        ("list.0", None),
        ("https://a.b/tenant", "dots"),
        ("a.b.c", None),
        ("other", None),
    ],
)
def test_a_claim_is_the_text_number_or_flag_at_its_path(path: str, read: str | None) -> None:
    assert claim(f"jwt:payload.{path}", told(other={"payload": {path: "no"}}, jwt={"payload": PAYLOAD})) == read


def test_a_claim_of_another_namespace_or_of_none_is_no_claim() -> None:
    assert claim("jwt:payload.sub", told(other={"payload": PAYLOAD})) is None
    assert claim("jwt:payload.sub", head()) is None
    event = event_of(told(jwt={"payload": PAYLOAD}), HeadersWanted())
    assert event == RequestHeaders("", "")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_a_claim_all_the_same(number: float) -> None:
    metadata = EnvoyMetadata()
    metadata.filter_metadata["jwt"].fields["n"].number_value = number
    assert claim("jwt:n", ProcessingRequest(request_headers=HttpHeaders(), metadata_context=metadata)) == str(number)


LEAVES = st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", "a.b", ""]), inner),
)


@given(tree=TREES, path=st.sampled_from(["a", "a.b", "b.a.b", "a.a.a.a.a.a.a.a"]))
def test_no_metadata_raises(tree: Any, path: str) -> None:
    read = claim(f"jwt:{path}", told(jwt={"a": tree}))
    assert read is None or read.isprintable()
