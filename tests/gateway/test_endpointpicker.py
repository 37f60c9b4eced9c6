"""The endpoint-picker protocol's words in Envoy's messages, read and written."""

from typing import Any

import pytest
from envoy.config.core.v3.base_pb2 import Metadata
from envoy.service.ext_proc.v3.external_processor_pb2 import HttpHeaders, ProcessingRequest, ProcessingResponse
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct, Value
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.policy import Destination
from extproc.core.request import SUBSET_HOSTS_MAX
from extproc.gateway import endpointpicker
from extproc.gateway.codec import event_of, reply_of
from extproc.gateway.conversation import RequestHeaders, ResponseHeaders, SetDestination

HOSTS = ("10.0.0.1:80", "[fc00::2]:8000", "10.0.0.3:80")


def metadata(**namespaces: Any) -> Metadata:
    told = Metadata()
    for namespace, fields in namespaces.items():
        told.filter_metadata[namespace.replace("__", ".")].CopyFrom(ParseDict(fields, Struct()))
    return told


def hint(value: Any) -> Metadata:
    return metadata(**{endpointpicker.SUBSET_NAMESPACE: {endpointpicker.SUBSET: value}})


@pytest.mark.parametrize(
    ("value", "hosts"),
    [
        (["10.0.0.2:80", "10.0.0.1:80"], ("10.0.0.1:80", "10.0.0.2:80")),
        (["10.0.0.2:80", "10.0.0.2:80"], ("10.0.0.2:80",)),
        ("10.0.0.2:80,10.0.0.1:80", ("10.0.0.1:80", "10.0.0.2:80")),
        (" 10.0.0.2:80 , 10.0.0.1 ", ("10.0.0.1", "10.0.0.2:80")),
        ([], ()),
        ("", ()),
        (",,", ()),
        (["x" * 65], ()),
        (["x" * 64], ("x" * 64,)),
        ([1, None, {"a": 1}, "10.0.0.1:80"], ("10.0.0.1:80",)),
        (7, ()),
        (None, ()),
        (True, ()),
        ({"a": "10.0.0.1:80"}, ()),
    ],
)
def test_a_hint_is_a_list_or_a_text_and_one_that_cannot_be_read_allows_nobody(
    value: Any, hosts: tuple[str, ...]
) -> None:
    assert endpointpicker.subset_of(hint(value)) == hosts


@pytest.mark.parametrize(
    "told", [Metadata(), metadata(other={"a": 1}), metadata(**{endpointpicker.SUBSET_NAMESPACE: {"other": "x"}})]
)
def test_without_a_hint_any_host_is_allowed_and_reading_writes_nothing(told: Metadata) -> None:
    before = told.SerializeToString(deterministic=True)
    assert endpointpicker.subset_of(told) is None
    assert endpointpicker.served_by(told) is None
    assert told.SerializeToString(deterministic=True) == before


def test_of_a_long_hint_so_many_hosts_are_read() -> None:
    many = [f"10.0.{one // 256}.{one % 256}:80" for one in range(SUBSET_HOSTS_MAX + 1)]
    for value in (many, ",".join(many)):
        found = endpointpicker.subset_of(hint(value))
        assert found is not None
        assert set(found) == set(many[:-1])


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=20))
def test_no_hint_raises(value: Any) -> None:
    told = Metadata()
    told.filter_metadata[endpointpicker.SUBSET_NAMESPACE].fields[endpointpicker.SUBSET].CopyFrom(
        ParseDict(value, Value())
    )
    found = endpointpicker.subset_of(told)
    assert found is not None
    assert list(found) == sorted(set(found))


@pytest.mark.parametrize(
    ("value", "host"), [("10.0.0.1:80", "10.0.0.1:80"), ("", None), ("x" * 65, None), (7, None), (["a"], None)]
)
def test_the_host_that_served_is_one_text(value: Any, host: str | None) -> None:
    told = metadata(**{endpointpicker.NAMESPACE: {endpointpicker.SERVED: value}})
    assert endpointpicker.served_by(told) == host
    message = ProcessingRequest(response_headers=HttpHeaders(), metadata_context=told)
    assert event_of(message) == ResponseHeaders(0, host)


def test_the_hint_is_part_of_a_requests_head() -> None:
    message = ProcessingRequest(request_headers=HttpHeaders(), metadata_context=hint(["10.0.0.1:80"]))
    event = event_of(message)
    assert isinstance(event, RequestHeaders)
    assert event.subset == ("10.0.0.1:80",)


@pytest.mark.parametrize("kind", ["request_headers", "request_body"])
@pytest.mark.parametrize(
    ("destination", "header", "told"),
    [
        ("original-dst", {"x-envoy-original-dst-host": HOSTS[0]}, {}),
        ("original-dst-metadata", {}, {"x-envoy-original-dst-host": HOSTS[0]}),
        (
            "override-host",
            {"x-gateway-destination-endpoint": ",".join(HOSTS)},
            {"x-gateway-destination-endpoint": ",".join(HOSTS)},
        ),
    ],
)
def test_each_destination_is_told_in_its_way_and_in_no_other(
    kind: str, destination: Destination, header: dict[str, str], told: dict[str, str]
) -> None:
    action = SetDestination(HOSTS, destination, {"node": "a"})
    reply = ProcessingResponse.FromString(reply_of(action, kind).SerializeToString())
    common = getattr(reply, kind).response
    assert {one.header.key: one.header.raw_value.decode() for one in common.header_mutation.set_headers} == header
    assert common.clear_route_cache
    written = MessageToDict(reply.dynamic_metadata)
    assert written.pop("extproc") == {"node": "a"}
    assert written == ({endpointpicker.NAMESPACE: told} if told else {})
