"""What `extproc check --envoy` finds that a configuration needs of Envoy's filter."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extproc.config import Config
from extproc.envoycheck.needs import QUOTA_HEADERS, READ_HEADERS, faults_in
from extproc.envoycheck.processors import Processors, processors_of
from extproc.gateway.codec import DESTINATION_HEADER
from tests.bootstraps import (
    EVERYTHING,
    FILTER,
    JWT,
    LISTEN,
    MANAGER,
    METADATA,
    MODE,
    OWN,
    asking,
    bootstrap,
    configured,
    manager,
    put,
)

Json = Any

ENVOY = Path(__file__).parent.parent.parent / "envoy"
RULES, FORWARD = f"{FILTER}mutation_rules", f"{FILTER}forward_rules"
NAMESPACES = f"{FILTER}metadata_options.forwarding_namespaces"
PLAIN = Config()


def good() -> Json:
    return put(manager(), RULES, {"allow_envoy": True})


def found(document: Json, settings: Config = PLAIN) -> list[str]:
    processors = processors_of(document, LISTEN)
    assert isinstance(processors, Processors)
    return [str(fault).replace(MANAGER, "") for fault in faults_in(processors, settings)]


def test_what_has_all_that_is_needed_has_no_faults() -> None:
    assert found(bootstrap(good())) == []
    assert found(bootstrap(good()), EVERYTHING) == []
    asks = put(put(good(), METADATA, asking("claims")), NAMESPACES, {"untyped": ["other", JWT]})
    assert found(bootstrap(asks), EVERYTHING) == []


def test_rules_of_mutations_let_pass_what_the_configuration_sets() -> None:
    nothing = bootstrap(put(manager(), RULES, {"disallow_all": True}))
    choice = f"{RULES}: wanted {DESTINATION_HEADER} let through (the choice of a node), got disallow_all"
    refusals = f"{RULES}: wanted content-type, retry-after let through (refusals), got disallow_all"
    quotas = f"{RULES}: wanted {', '.join(QUOTA_HEADERS)} let through (refusals by quotas), got disallow_all"
    length = f"{RULES}: wanted content-length let through (aliases of policy default), got disallow_all"
    assert found(nothing) == [choice, refusals]
    assert found(nothing, EVERYTHING) == [choice, refusals, quotas, length]
    fallback = put(put(manager(), RULES, {"disallow_all": True}), METADATA, asking("claims"))
    assert found(bootstrap(put(fallback, NAMESPACES, {"untyped": [JWT]})), EVERYTHING)[-1] == length.replace(
        "aliases of policy default", "fallback_models of policy claims"
    )
    assert found(bootstrap(put(manager(), RULES, None))) == [
        f"{RULES}: wanted {DESTINATION_HEADER} let through (the choice of a node), got nothing, so none of x-envoy-*"
    ]
    some = put(
        manager(), RULES, {"disallow_all": True, "allow_expression": {"regex": "x-envoy-.*|content-type|retry-after"}}
    )
    assert found(bootstrap(some)) == []
    assert [one.partition(" let ")[0].rpartition(" ")[2] for one in found(bootstrap(some), EVERYTHING)] == [
        QUOTA_HEADERS[-1],
        "content-length",
    ]


def test_the_header_of_each_destination_is_let_through() -> None:
    picked = "x-gateway-destination-endpoint"
    rules = bootstrap(
        put(manager(), RULES, {"disallow_all": True, "allow_expression": {"regex": "content-.*|retry-.*"}})
    )
    for policy, headers in (
        ({"destination": "original-dst"}, [DESTINATION_HEADER]),
        ({"destination": "override-host"}, [picked]),
        ({"destination": "original-dst-metadata"}, []),
        ({"mode": "observe"}, []),
        ({"mode": "off"}, []),
    ):
        faults = found(rules, configured(policies={"default": policy}))
        assert [one.partition("wanted ")[2].partition(" ")[0] for one in faults] == headers, policy
    off = configured(policies={"default": {"mode": "off"}})
    assert found(bootstrap(put(manager(), RULES, {"disallow_all": True})), off) == []


def test_rules_of_forwarding_show_what_policies_read() -> None:
    always = [{"exact": name} for name in READ_HEADERS]
    rules = bootstrap(put(good(), FORWARD, {"allowed_headers": {"patterns": always}}))
    assert found(rules) == []
    at = f"{FORWARD}.allowed_headers.patterns"
    assert found(rules, EVERYTHING) == [
        f"{at}: wanted x-priority let through (priority_header of policy default), got patterns of others",
        f"{at}: wanted x-tenant let through (tenant_header of policy default), got patterns of others",
    ]
    for name in READ_HEADERS:
        disallowed = bootstrap(put(good(), f"{FORWARD}.disallowed_headers.patterns", [{"exact": name}]))
        wanted = f"wanted {name} let through (read of every request), got {{'exact': '{name}'}}"
        assert found(disallowed) == [f"{FORWARD}.disallowed_headers.patterns: {wanted}"]
    custom: Json = {"patterns": [{"custom": {}}]}
    unknown = {"allowed_headers": custom, "disallowed_headers": custom}
    assert found(bootstrap(put(good(), FORWARD, unknown)), EVERYTHING) == []


def test_the_namespace_of_a_claim_is_forwarded() -> None:
    asks = put(good(), METADATA, asking("claims"))
    for namespaces, got in (({}, "nothing"), ({"untyped": ["other"]}, "['other']"), ({"typed": [JWT]}, "nothing")):
        assert found(bootstrap(put(asks, NAMESPACES, namespaces)), EVERYTHING) == [
            f"{NAMESPACES}.untyped: wanted {JWT} among them (tenant_metadata of policy claims), got {got}"
        ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["patterns", "key", "a"]), inner),
    max_leaves=5,
)


@given(
    st.sampled_from([RULES, FORWARD, MODE, METADATA, NAMESPACES, OWN, f"{FORWARD}.allowed_headers"]),
    st.sampled_from(["", ".value", ".untyped", ".overrides", ".regex", ".request_body_mode"]),
    JSON,
)
def test_nothing_in_a_file_makes_it_raise(path: str, below: str, value: Json) -> None:
    found(bootstrap(put(good(), path + below, value)), EVERYTHING)


@pytest.mark.parametrize("name", ["bootstrap.yaml", "demo.yaml"])
def test_the_shipped_bootstraps_do_for_every_feature_once_headers_and_namespaces_are_added(name: str) -> None:
    document = yaml.safe_load((ENVOY / name).read_text())
    assert found(document) == []
    faults = found(document, EVERYTHING)
    assert {fault.partition(": wanted ")[2].partition(" ")[0] for fault in faults} == {"x-priority", "x-tenant"}
    http_filters = document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"][
        "http_filters"
    ]
    (ours,) = (one["typed_config"] for one in http_filters if "ExternalProcessor" in one["typed_config"]["@type"])
    ours["forward_rules"]["allowed_headers"]["patterns"] += [{"exact": "x-priority"}, {"exact": "x-tenant"}]
    assert found(document, EVERYTHING) == []
    ours["grpc_service"]["initial_metadata"][0]["value"] = "claims"
    assert len(found(document, EVERYTHING)) == 1
    ours["metadata_options"]["forwarding_namespaces"] = {"untyped": [JWT]}
    assert found(document, EVERYTHING) == []
