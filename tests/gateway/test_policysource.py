import json
import math
from typing import Any

import pytest
from envoy.config.core.v3.base_pb2 import Metadata
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest
from google.protobuf import text_format
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.policy import RoutingPolicy
from extproc.gateway.policysource import ATTRIBUTES, GATEWAY_NAMESPACE, NAMESPACE, ROUTE_METADATA, asked, asked_in
from extproc.gateway.routepolicy import FAULT_CHARS_MAX, KEY, RoutePolicies

Json = Any

DEFAULT = RoutingPolicy()
BATCH = RoutingPolicy(name="batch")
INLINE = {"name": "mine", "ttft_s": 1.5, "limits": {"kv_usage_max": "0.5"}, "aliases": {"fast": {"m": 2}}}
TEXT = json.dumps(INLINE)
UNKNOWN_TYPES = """
typed_filter_metadata { key: "a" value { [type.googleapis.com/no.such.Type] { b { c: "}" } d: [1, -2] e: <f: X> } } }
typed_filter_metadata { key: "b" value { type_url: "type.googleapis.com/no.such.Type" value: "\\377\\000" } }
"""


def policies() -> RoutePolicies:
    return RoutePolicies({"batch": BATCH}, DEFAULT, policy_bytes_max=4096)


def struct_of(mapping: Json) -> Struct:
    struct = Struct()
    struct.update(mapping)
    return struct


def text_of(namespaces: dict[str, Json]) -> str:
    """As Envoy writes a route's metadata."""
    metadata = Metadata()
    for name, mapping in namespaces.items():
        metadata.filter_metadata[name].update(mapping)
    return str(text_format.MessageToString(metadata, as_one_line=True))


def message(dynamic: Json = None, route: str | None = None) -> ProcessingRequest:
    made = ProcessingRequest()
    made.request_headers.SetInParent()
    made.metadata_context.filter_metadata["other"].update({"policy": "other"})
    if dynamic is not None:
        made.metadata_context.filter_metadata[NAMESPACE].update(dynamic)
    if route is not None:
        made.attributes[ATTRIBUTES].update({"xds.route_name": NAMESPACE, ROUTE_METADATA: route})
    return made


def of(sent: ProcessingRequest) -> tuple[RoutingPolicy, str | None]:
    # As it comes from the wire.
    return policies().of(asked_in(ProcessingRequest.FromString(sent.SerializeToString())))


def annotated(value: str) -> dict[str, Json]:
    resource = {"kind": "HTTPRoute", "name": "llm", "annotations": {"x": "y", NAMESPACE: value}}
    return {GATEWAY_NAMESPACE: {"resources": [{"kind": "Gateway"}, resource]}}


def test_the_last_value_in_grpc_metadata_holds() -> None:
    assert asked(((KEY, "default"), ("other", "x"), (KEY, "batch"), (f"{KEY}-2", "y"))) == "batch"
    assert asked(((KEY, b"\xffa"),)) == "\ufffda"
    assert asked((("user-agent", "grpc-c++"),)) is None
    assert asked(()) is None


@pytest.mark.parametrize(
    "sent",
    [
        ProcessingRequest(),
        message(),
        message({}),
        message({"policy": ""}),
        message(route=""),
        message(route=text_of({"other": {"policy": "batch"}})),
        message(route=text_of({"other": {"policy": NAMESPACE}})),
        message(route=text_of({NAMESPACE: {}})),
        message(route=text_of({NAMESPACE: {"policy": ""}})),
        message(route=text_of({GATEWAY_NAMESPACE: {"resources": [NAMESPACE, {"annotations": 7}]}})),
        message(route=text_of({GATEWAY_NAMESPACE: {"resources": NAMESPACE}})),
    ],
)
def test_what_is_empty_or_stands_elsewhere_asks_for_nothing(sent: ProcessingRequest) -> None:
    assert of(sent) == (DEFAULT, None)


@pytest.mark.parametrize("written", [{"policy": "batch"}, {"policy": " batch "}])
def test_a_namespace_can_name_a_policy(written: Json) -> None:
    assert of(message(written)) == (BATCH, None)
    assert of(message(route=text_of({NAMESPACE: written, "other": {"x": [1]}}))) == (BATCH, None)


@pytest.mark.parametrize("written", [INLINE, {"policy": TEXT}])
def test_a_namespace_can_be_a_policy_or_hold_one_as_text(written: Json) -> None:
    policy = RoutePolicies({}, DEFAULT).of(TEXT)[0]
    assert policy.ttft_s == 1.5
    assert policy.aliases["fast"] == {"m": 2}
    assert of(message(written)) == (policy, None)
    assert of(message(route=text_of({NAMESPACE: written}))) == (policy, None)


def test_an_annotation_of_envoy_gateways_can_ask_and_the_routes_own_metadata_comes_first() -> None:
    assert of(message(route=text_of(annotated("batch")))) == (BATCH, None)
    assert of(message(route=text_of(annotated(TEXT))))[0].name == "mine"
    assert of(message(route=text_of(annotated("batch") | {NAMESPACE: INLINE})))[0].name == "mine"
    assert of(message(route=text_of(annotated("batch") | {NAMESPACE: {"policy": ""}}))) == (BATCH, None)


def test_dynamic_metadata_comes_before_the_routes() -> None:
    route = text_of({NAMESPACE: INLINE})
    assert of(message({"policy": "batch"}, route)) == (BATCH, None)
    assert of(message({"policy": "nobody"}, route))[0] is DEFAULT, "what is wrong is not made good elsewhere"
    for empty in ({}, {"policy": ""}):
        assert of(message(empty, route))[0].name == "mine"


def test_metadata_of_types_that_nobody_knows_is_skipped() -> None:
    for text in (UNKNOWN_TYPES + text_of({NAMESPACE: INLINE}), text_of({NAMESPACE: INLINE}) + UNKNOWN_TYPES):
        assert of(message(route=text))[0].name == "mine"


WRONG: list[tuple[Json, str]] = [
    ({"policy": 7}, "policy: wanted a name or a policy as JSON text, and no other key, got the keys ['policy']"),
    ({"policy": {"name": "mine"}}, "policy: wanted a name"),
    ({"policy": None}, "policy: wanted a name"),
    ({"policy": "batch", "ttft_s": 1}, "got the keys ['policy', 'ttft_s']"),
    ({"policy": "nobody"}, "wanted a policy of the configuration"),
    ({"ttft_s": math.nan}, "wanted finite numbers"),
    ({"limits": {"kv_usage_max": math.inf}}, "wanted finite numbers"),
    ({"ttft_s": "soon"}, "ttft_s: wanted a valid number"),
    ({"ttft_s": 1e300}, "ttft_s: wanted"),
    ({"\x00\n": 1}, "wanted a known key"),
    ({"": ""}, "wanted a known key"),
    ({"limits": [1, [2, {}]]}, "limits: wanted"),
    ({"name": "a" * 4000}, "name: wanted"),
    ({"name": "a" * 5000}, "wanted at most 4096 bytes"),
    ({"policy": "a" * 5000}, "wanted at most 4096 bytes"),
]


@pytest.mark.parametrize(("written", "told"), WRONG, ids=[told for _, told in WRONG])
def test_what_cannot_be_used_is_told_and_the_default_serves(written: Json, told: str) -> None:
    for sent in (message(written), message(route=text_of({NAMESPACE: written}))):
        policy, fault = of(sent)
        assert policy is DEFAULT
        assert fault is not None
        assert told in fault or fault.startswith("wanted at most 4096 bytes, got ")
        assert len(fault) <= FAULT_CHARS_MAX


NAMED = 'filter_metadata { key: "extproc.policy" value { fields { key: "policy" value { string_value: "batch" } } } }'


@pytest.mark.parametrize(
    "text",
    [
        NAMESPACE,
        NAMED[:-2],
        NAMED + "}",
        NAMED.replace("batch", "\\377"),
        NAMED.replace("batch", "\\ud800"),
        NAMED.replace("batch", "\\x"),
        NAMED.replace("batch", "\\+"),
        NAMED.replace("batch", '" string_value: "'),
        NAMED.replace("batch", '" number_value: 1 bool_value: "'),
        NAMED.replace("fields", "Fields"),
        NAMED.replace("filter_metadata", "1"),
        "\x00" + NAMED,
        *(
            f'filter_metadata{{key:"{NAMESPACE}" value{{fields{{key:"a" value{{{before * depth}{after * depth}}}}}}}}}'
            for depth in (20, 50, 90)
            for before, after in (("list_value{values{", "}}"), ('struct_value{fields{key:"a" value{', "}}}"))
        ),
        f"{NAMESPACE}: {'[' * 2000}",
        f'{NAMESPACE}: "{"a" * 10_000_000}"',
    ],
)
def test_a_hostile_text_of_a_routes_metadata_does_no_harm(text: str) -> None:
    policy, fault = of(message(route=text))
    assert policy in (DEFAULT, BATCH)
    assert fault is None or len(fault) <= FAULT_CHARS_MAX
    assert (fault is None) == ("Fields" in text or '"1' in text or "1 { key" in text)


def test_of_two_namespaces_with_one_name_the_last_holds() -> None:
    assert of(message(route=NAMED.replace("batch", "nobody") + NAMED)) == (BATCH, None)


def test_equal_namespaces_are_read_once_however_their_keys_are_ordered() -> None:
    made = policies()
    first = message(dict(INLINE))
    second = message(dict(reversed(INLINE.items())))
    assert made.of(asked_in(first))[0] is made.of(asked_in(second))[0]
    route = text_of({NAMESPACE: INLINE})
    assert made.of(asked_in(message(route=route)))[0] is made.of(asked_in(message(route=route)))[0]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\x00é", max_size=3), inner, max_size=3),
    max_leaves=12,
)
_FIELDS = st.sampled_from(["policy", *sorted(RoutingPolicy.model_fields)]) | st.text("ab\x00é", max_size=3)


@given(st.dictionaries(_FIELDS, _VALUES, max_size=4))
def test_any_namespace_is_a_policy_or_a_fault_the_same_both_ways(written: Json) -> None:
    dynamic, route = of(message(written)), of(message(route=text_of({NAMESPACE: written})))
    assert dynamic == route
    policy, fault = dynamic
    if fault is not None:
        assert policy is DEFAULT
        assert len(fault) <= FAULT_CHARS_MAX
        fault.encode()


_TOKENS = st.sampled_from(
    ["{", "}", "<", ">", "[", "]", ":", ",", ";", '"', "'", "\\", "#", "-", "1", "1.5f", "nan", "\n", "\x00", "é", "/",
     "key", "value", "fields", "filter_metadata", "typed_filter_metadata", "string_value", "list_value", "values",
     "struct_value", "null_value", "NULL_VALUE", '"policy"', f'"{NAMESPACE}"', f'"{GATEWAY_NAMESPACE}"', '"\\377"']
)  # fmt: skip


@given(st.lists(_TOKENS, max_size=40).map(" ".join) | st.text(), st.integers(0, len(NAMED)))
def test_any_text_of_a_routes_metadata_is_answered(text: str, at: int) -> None:
    for one in (NAMED[:at] + text + NAMED[at:], NAMED + text):
        sent = message()
        sent.attributes[ATTRIBUTES].fields[ROUTE_METADATA].string_value = one.encode("utf-8", "replace").decode()
        policy, fault = policies().of(asked_in(sent))
        assert policy in (DEFAULT, BATCH)
        assert fault is None or len(fault) <= FAULT_CHARS_MAX
