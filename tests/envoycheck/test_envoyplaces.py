"""Where `extproc check --envoy` takes filters to be asked, and which policies it takes routes to have."""

from typing import Any

import pytest

from extproc.config import Config
from extproc.envoycheck import bodies, needs
from extproc.envoycheck.processors import Processors, processors_of
from extproc.gateway.routepolicy import FAULT_CHARS_MAX, RoutePolicies
from tests.bootstraps import (
    EVERYTHING,
    FILTER,
    HOST,
    JWT,
    LISTEN,
    MANAGER,
    METADATA,
    MODE,
    OWN,
    PER_ROUTE,
    ROUTE,
    TYPE,
    asking,
    bootstrap,
    configured,
    manager,
    own,
    put,
    without,
)

Json = Any

RULES, NAMESPACES = f"{FILTER}mutation_rules", f"{FILTER}metadata_options.forwarding_namespaces"
PLAIN = Config()


def good() -> Json:
    return put(manager(), f"{HOST}request_body_buffer_limit", 2**30)


def found(document: Json, settings: Config = PLAIN) -> list[str]:
    processors = processors_of(document, LISTEN)
    assert isinstance(processors, Processors)
    faults = [*needs.faults_in(processors, settings), *bodies.faults_in(processors, settings)]
    return [str(fault).replace(MANAGER, "") for fault in faults if "trailer" not in fault.path]


INLINE: dict[str, list[str]] = {
    "claims": [],
    " default ": [],
    '{"strategy": "round-robin"}': [],
    '{"name": "a", "priority": "batch"}': [],
    '{"limits": {"kv_usage_max": "0.5"}}': [],
    "absent": [": wanted a policy of the configuration, or one as a JSON object, got 'absent'"],
    "{'name': 'a'}": [''': wanted valid JSON, got "{'name': 'a'}"'''],
    '{"priority": "no-such"}': [".priority: wanted one of interactive, standard, batch, got 'no-such'"],
    '{"weight": 1, "limits": {"kv_usage_max": 2}}': [
        ".limits.kv_usage_max: wanted less than or equal to 1, got 2",
        ".weight: wanted a known key, got 1",
    ],
    '{"name": "' + "a" * 100_000 + '"}': [": wanted at most 16384 bytes (limits.policy_bytes_max), got 100012"],
    "[" * 100: [": wanted a policy of the configuration, or one as a JSON object, got '" + "[" * 76 + "..."],
}


@pytest.mark.parametrize("value", INLINE)
@pytest.mark.parametrize("of_a_route", [False, True])
def test_policies_that_routes_ask_for_are_read_as_serve_reads_them(value: str, *, of_a_route: bool) -> None:
    made = put(good(), NAMESPACES, {"untyped": [JWT]})
    made = (
        put(made, OWN, own(grpc_initial_metadata=asking(value))) if of_a_route else put(made, METADATA, asking(value))
    )
    at = f"{OWN}.overrides.grpc_initial_metadata.1.value" if of_a_route else f"{METADATA}.1.value"
    assert sorted(found(bootstrap(made), EVERYTHING)) == [f"{at}{fault}" for fault in INLINE[value]]
    policies = RoutePolicies(EVERYTHING.policies, EVERYTHING.policies["default"], classes=EVERYTHING.classes)
    _, fault = policies.of(value)
    assert (fault is None) == (INLINE[value] == [])
    assert fault is None or len(fault) <= FAULT_CHARS_MAX


@pytest.mark.parametrize("value", ["", None])
def test_a_route_that_asks_for_nothing_has_the_default_policy(value: Json) -> None:
    settings = configured(policies={"mine": {"tenant_metadata": f"{JWT}:sub"}}, default_policy="mine")
    assert len(found(bootstrap(put(good(), METADATA, asking(value))), settings)) == 1
    assert len(found(bootstrap(good()), settings)) == 1
    assert found(bootstrap(put(good(), METADATA, asking("default"))), settings) == []
    assert found(bootstrap(put(good(), METADATA, asking("absent"))), settings)[1:] == found(bootstrap(good()), settings)


def test_where_it_is_not_told_which_policy_is_asked_for_it_may_be_any() -> None:
    settings = configured(policies={"claims": {"tenant_metadata": f"{JWT}:sub"}})
    assert found(bootstrap(good()), settings) == []
    untold = [
        put(good(), METADATA, asking("%REQ(x-policy)%")),
        put(good(), METADATA, asking(7)),
        put(without(good(), "route_config"), "rds", {}),
        put(good(), "route_config.vhds", {}),
        put(put(without(good(), "route_config"), "rds", {}), METADATA, asking("default")),
    ]
    for made in untold:
        assert len(found(bootstrap(made), settings)) == 1, made
    assert found(bootstrap(put(good(), METADATA, asking("100%%"))), settings) == [
        f"{METADATA}.1.value: wanted a policy of the configuration, or one as a JSON object, got '100%'"
    ]
    elsewhere = {"clusters": [{"filters": [{"typed_config": good()["http_filters"][0]["typed_config"]}]}]}
    assert len(found({"static_resources": elsewhere}, settings)) == 1, "a filter of a cluster, as of its upstreams"


def test_what_a_route_says_holds_there_and_nowhere_else() -> None:
    off = put(good(), OWN, {"@type": PER_ROUTE, "disabled": True})
    assert found(bootstrap(put(put(off, f"{MODE}.request_body_mode", "NONE"), RULES, None))) == []
    other = {"match": {"prefix": "/b"}, "route": {"cluster": "engines"}}
    made = put(good(), OWN, own(processing_mode={"request_body_mode": "NONE"}, grpc_initial_metadata=asking("absent")))
    made["route_config"]["virtual_hosts"][0]["routes"].append(other)
    assert [one.partition(":")[0] for one in found(bootstrap(made))] == [
        f"{OWN}.overrides.grpc_initial_metadata.1.value",
        f"{OWN}.overrides.processing_mode.request_body_mode",
    ]
    struct = {"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": PER_ROUTE, "value": made_of(made)}
    wrapped = {"@type": f"{TYPE}config.route.v3.FilterConfig", "config": own(**made_of(made)["overrides"])}
    for one, inside in ((struct, "value"), (wrapped, "config")):
        assert [fault.partition(":")[0] for fault in found(bootstrap(put(made, OWN, one)))] == [
            f"{OWN}.{inside}.overrides.grpc_initial_metadata.1.value",
            f"{OWN}.{inside}.overrides.processing_mode.request_body_mode",
        ]


def made_of(document: Json) -> Json:
    config = document["route_config"]["virtual_hosts"][0]["routes"][0]["typed_per_filter_config"]["ours"]
    return {"overrides": config["overrides"]}


def test_each_cluster_of_a_weighted_route_counts() -> None:
    config = own(processing_mode={"request_body_mode": "NONE"})
    clusters = [{"name": "a", "typed_per_filter_config": {"ours": config}}, {"name": "b"}]
    (fault,) = found(bootstrap(put(good(), f"{ROUTE}route", {"weighted_clusters": {"clusters": clusters}})))
    assert fault.startswith(f"{ROUTE}route.weighted_clusters.clusters.0.typed_per_filter_config.ours.overrides.")


def test_a_routes_metadata_may_ask_where_the_filter_shows_it() -> None:
    shows = put(good(), f"{FILTER}request_attributes", ["xds.route_metadata"])
    settings = configured(policies={"claims": {"tenant_metadata": f"{JWT}:sub"}})
    at = f"{ROUTE}metadata.filter_metadata"
    for namespaces, faults in (
        ({"extproc.policy": {"policy": "claims"}}, [f"{NAMESPACES}.untyped"]),
        ({"extproc.policy": {"policy": "absent"}}, [f"{at}.extproc.policy.policy"]),
        ({"extproc.policy": {"canary": "200"}}, [f"{at}.extproc.policy.canary"]),
        ({"extproc.policy": {"canary": "20"}}, []),
        ({"envoy-gateway": {"resources": [{"annotations": {"extproc.policy": "claims"}}]}}, [f"{NAMESPACES}.untyped"]),
        ({"extproc.policy": {"policy": ""}, "envoy-gateway": {"resources": [{}]}}, []),
        ({"other": {"policy": "absent"}}, []),
    ):
        asks = put(shows, at, namespaces)
        assert [one.partition(": ")[0] for one in found(bootstrap(asks), settings)] == faults, namespaces
        assert found(bootstrap(put(asks, METADATA, asking("default"))), settings) == []
        assert found(bootstrap(put(asks, f"{FILTER}request_attributes", [])), settings) == []
    dynamic = put(good(), NAMESPACES, {"untyped": ["extproc.policy"]})
    assert len(found(bootstrap(dynamic), settings)) == 1, "any may come in dynamic metadata"
