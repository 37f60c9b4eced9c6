"""What `extproc check --envoy` finds that keeps Envoy from starting, or its streams to `serve` from beginning."""

from typing import Any

import pytest

from extproc.config import Config
from extproc.envoycheck import needs
from extproc.envoycheck.processors import Processors, processors_of
from extproc.envoycheck.starting import faults_in
from extproc.gateway.routepolicy import DESTINATION_KEY
from tests.bootstraps import (
    LISTEN,
    MANAGER,
    METADATA,
    MODE,
    OPTIONS,
    ROUTE,
    TYPE,
    asking,
    bootstrap,
    complete,
    complete_clusters,
    configured,
    own,
    put,
    without,
)

Json = Any

AT = "static_resources.clusters.0.typed_extension_protocol_options"
PROTOCOL = {"@type": f"{TYPE}extensions.upstreams.http.v3.HttpProtocolOptions"}


def processors(manager: Json, clusters: Json) -> Processors:
    made = processors_of(bootstrap(manager, clusters=clusters), LISTEN)
    assert isinstance(made, Processors)
    return made


def found(manager: Json, first: Json = None) -> list[str]:
    clusters = complete_clusters()
    told = faults_in(processors(manager, clusters if first is None else [first, *clusters[1:]]))
    return [str(one).replace(MANAGER, "") for one in told]


def speaking(**options: Json) -> Json:
    return put(complete_clusters()[0], OPTIONS, PROTOCOL | options)


BARE = without(complete_clusters()[0], "typed_extension_protocol_options")
PROTOCOLS: dict[str, tuple[Json, str | None]] = {
    "HTTP/2": (complete_clusters()[0], None),
    "the older field": (put(BARE, "http2_protocol_options", {}), None),
    "by ALPN": (speaking(auto_config={}), None),
    "nothing": (BARE, "got nothing, so HTTP/1.1"),
    "another extension": (
        put(BARE, "typed_extension_protocol_options.other", {"@type": "x/y"}),
        "got nothing, so HTTP",
    ),
    "HTTP/1.1": (speaking(explicit_http_config={"http_protocol_options": {}}), "got http_protocol_options"),
    "the client's": (
        speaking(use_downstream_protocol_config={"http2_protocol_options": {}}),
        "got the protocol of the client",
    ),
    "of clusters": (put(BARE, "cluster_type", {"name": "envoy.clusters.aggregate"}), None),
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_serve_is_spoken_to_by_http_2(name: str) -> None:
    first, got = PROTOCOLS[name]
    told = found(complete(), first)
    assert (told == []) == (got is None)
    assert got is None or (told[0].startswith(f"{AT}") and got in told[0] and "gRPC is HTTP/2" in told[0])


@pytest.mark.parametrize("sender", ["request", "response"])
def test_full_duplex_wants_trailers(sender: str) -> None:
    duplex = put(complete(), f"{MODE}.{sender}_body_mode", "FULL_DUPLEX_STREAMED")
    at = f"{MODE}.{sender}_trailer_mode"
    why = f"wanted SEND (else Envoy does not start: {sender}_body_mode is FULL_DUPLEX_STREAMED)"
    for mode, got in ((None, "nothing, so SKIP"), ("SKIP", "'SKIP'"), ("DEFAULT", "'DEFAULT'"), (2, "2")):
        assert found(put(duplex, at, mode)) == [f"{at}: {why}, got {got}"]
    assert found(put(duplex, at, "SEND")) == []
    assert found(put(put(complete(), at, "SKIP"), f"{MODE}.{sender}_body_mode", "STREAMED")) == []


SIGNS: dict[str, tuple[str | None, bool]] = {
    "default": (None, False),
    "%REQ(x)%": (None, True),
    "%REQ(x):5% and %START_TIME(%s.%3f)%": (None, True),
    '{"canary": 5, "name": "a%%b"}': (None, False),
    '{"canary": 5, "name": "a%b"}': ('ame": "a%b"}', False),
    "50%": ("50%", False),
    "%%%": ("%%%", False),
    "%dynamic%": ("%dynamic%", False),
    "%REQ(x": ("%REQ(x", False),
    "%%%%REQ(x)%": ("%%%%REQ(x)%", False),
    "%REQ(x)% of 5%": ("(x)% of 5%", True),
}
"""Values of metadata: what is shown of a sign that stands alone, and whether Envoy puts the value together."""


@pytest.mark.parametrize("value", SIGNS)
@pytest.mark.parametrize("of_a_route", [True, False])
def test_signs_that_stand_alone_are_faults(value: str, of_a_route: bool) -> None:
    at = f"{ROUTE}typed_per_filter_config.ours" if of_a_route else METADATA
    made = put(complete(), at, own(grpc_initial_metadata=asking(value)) if of_a_route else asking(value))
    told = [one for one in needs.faults_in(processors(made, complete_clusters()), Config()) if "percent" in one.wanted]
    shown, _ = SIGNS[value]
    assert len(told) == (shown is not None)
    assert shown is None or shown in told[0].got


def test_the_rest_of_such_a_value_is_read() -> None:
    made = put(complete(), METADATA, asking('{"name": "50%", "weight": 1}'))
    told = [str(one).replace(MANAGER, "") for one in needs.faults_in(processors(made, complete_clusters()), Config())]
    assert [one.partition(": ")[0] for one in told] == [f"{METADATA}.1.value{of}" for of in ("", ".name", ".weight")]
    both = put(complete(), METADATA, asking("5% of %REQ(x)%"))
    assert len(needs.faults_in(processors(both, complete_clusters()), Config())) == 1


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("original-dst", "x-envoy-original-dst-host"),
        ("override-host", "x-gateway-destination-endpoint"),
        ("original-dst-metadata", None),
        ("", "x-gateway-destination-endpoint"),
        ("%REQ(x)%", "x-gateway-destination-endpoint"),
        ("nowhere", "one of original-dst, original-dst-metadata, override-host"),
        ("50%", "%% for each percent sign"),
    ],
)
def test_the_destination_that_envoy_asks_for_holds_instead_of_the_policys(value: str, wanted: str | None) -> None:
    picking = configured(policies={"default": {"destination": "override-host"}})
    rules = {"disallow_all": True, "allow_expression": {"regex": "content-.*|retry-.*"}}
    closed = put(complete(), f"{MODE.rpartition('.')[0]}.mutation_rules", rules)
    asked = {"grpc_initial_metadata": [{"key": DESTINATION_KEY, "value": value}]}
    filters = put(closed, METADATA, [{"key": DESTINATION_KEY, "value": value}])
    hosts = put(closed, "route_config.virtual_hosts.0.typed_per_filter_config.ours", own(**asked))
    over = put(hosts, METADATA, [{"key": DESTINATION_KEY, "value": "nowhere"}])
    for made in (filters, hosts, over):
        told = [one.wanted for one in needs.faults_in(processors(made, complete_clusters()), picking)]
        assert (told == []) if wanted is None else told[0].startswith(wanted), (made is over, told)
        assert not any("nowhere" in one for one in told)
