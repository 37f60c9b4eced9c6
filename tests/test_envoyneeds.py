"""What `extproc check --envoy` finds that a configuration needs of Envoy's filter."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from extproc import cli
from extproc.config import Config, parse
from extproc.core.quotas import Quotas
from extproc.envoyfile import At
from extproc.envoyheaders import dropped, hidden, matches
from extproc.envoyneeds import QUOTA_HEADERS, READ_HEADERS, faults_in
from extproc.envoyprocessors import Processors, processors_of
from extproc.gateway import requesthead
from extproc.gateway.codec import DESTINATION_HEADER
from extproc.gateway.routepolicy import FAULT_CHARS_MAX, KEY, RoutePolicies
from tests.bootstraps import FILTER, LISTEN, MANAGER, PER_ROUTE, ROUTE, TYPE, bootstrap, manager, put, without

Json = Any

ENVOY = Path(__file__).parent.parent / "envoy"
RULES, FORWARD, MODE = f"{FILTER}mutation_rules", f"{FILTER}forward_rules", f"{FILTER}processing_mode"
METADATA, NAMESPACES = f"{FILTER}grpc_service.initial_metadata", f"{FILTER}metadata_options.forwarding_namespaces"
OWN = f"{ROUTE}typed_per_filter_config.ours"
JWT = "envoy.filters.http.jwt_authn"


def configured(**settings: Json) -> Config:
    made = parse(settings)
    assert isinstance(made, Config), made
    return made


EVERYTHING = configured(
    policies={
        "default": {"tenant_header": "X-Tenant", "priority_header": "x-priority", "aliases": {"fast": "m"}},
        "claims": {"tenant_metadata": f"{JWT}:payload.sub", "fallback_models": {"m": "n"}},
    },
    quotas=[{"tokens_per_minute": 1}],
)
PLAIN = Config()


def good() -> Json:
    return put(manager(), RULES, {"allow_envoy": True})


def found(document: Json, settings: Config = PLAIN) -> list[str]:
    processors = processors_of(document, LISTEN)
    assert isinstance(processors, Processors)
    return [str(fault).replace(MANAGER, "") for fault in faults_in(processors, settings)]


def asking(value: Json) -> Json:
    return [{"key": "other", "value": "x"}, {"key": KEY, "value": value}]


def own(**overrides: Json) -> Json:
    return {"@type": PER_ROUTE, "overrides": overrides}


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


@pytest.mark.parametrize(
    ("mode", "plain", "rewriting"),
    [
        ("BUFFERED", None, None),
        (2, None, None),
        ("STREAMED", None, "'STREAMED'"),
        (1, None, "1"),
        ("FULL_DUPLEX_STREAMED", None, "'FULL_DUPLEX_STREAMED'"),
        ("NONE", "'NONE'", "'NONE'"),
        (0, "0", "0"),
        (None, "nothing, so NONE", "nothing, so NONE"),
        ([], None, "[]"),
    ],
)
def test_bodies_are_sent_and_in_one_where_another_model_is_put_in(
    mode: Json, plain: str | None, rewriting: str | None
) -> None:
    path = f"{MODE}.request_body_mode"
    made = bootstrap(put(good(), path, mode))
    model = f"{path}: wanted BUFFERED (the model stands in the body), got {plain}"
    assert found(made) == ([] if plain is None else [model])
    alias = f"{path}: wanted BUFFERED (aliases of policy default), got {rewriting}"
    assert found(made, EVERYTHING) == ([] if rewriting is None else [alias])


@pytest.mark.parametrize("skip", ["SKIP", 2])
def test_heads_are_sent(skip: Json) -> None:
    path = f"{MODE}.request_header_mode"
    wanted = "wanted SEND (else a node is chosen before the body is there)"
    assert found(bootstrap(put(good(), path, skip))) == [f"{path}: {wanted}, got {skip!r}"]
    assert found(bootstrap(put(good(), path, "DEFAULT"))) == []


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
    '{"name": "' + "a" * 100_000 + '"}': [": wanted at most 16384 bytes (limits.policy_bytes_max), got more"],
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
    _, fault = policies.of([(KEY, value)])
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


@pytest.mark.parametrize(
    ("regex", "whether"),
    [
        ("x-a", True),
        ("x-", False),
        ("X-A", False),
        ("(?i)X-A", True),
        ("[[:alpha:]-]+", True),
        ("a|x-a", True),
        (r"\pL-\pL", True),
        ("(([a-z-])+)+!", False),
        (r"\Qx-a\E", None),
        ("(", None),
        ("\ud800", False),
        (7, None),
        ({}, None),
    ],
)
def test_expressions_match_whole_texts_and_those_that_cannot_be_read_tell_nothing(
    regex: Json, whether: bool | None
) -> None:
    assert matches(regex, "x-a") is whether
    if whether is None:
        rules = At("", {"allow_expression": {"regex": regex}, "disallow_expression": {"regex": regex}})
        assert dropped(rules, DESTINATION_HEADER) is None
        patterns = {"patterns": [{"safe_regex": {"regex": regex}}]}
        assert hidden(At("", {"allowed_headers": patterns, "disallowed_headers": patterns}), "x-a") is None


def test_the_headers_are_those_that_are_set_and_read() -> None:
    assert set(READ_HEADERS) == requesthead._ALWAYS
    quotas = Quotas(configured(quotas=[{"tokens_per_minute": 1}]).quotas, buckets_max=1)
    quotas.take("first", "", "m", 1, 0.0)
    exceeded = quotas.check("", "m", 1, 0.0)
    assert exceeded is not None
    assert {name for name, _ in exceeded.headers} == set(QUOTA_HEADERS)


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


def test_check_tells_it_beside_the_timeouts(tmp_path: Path) -> None:
    ours, envoys = tmp_path / "ours.yaml", tmp_path / "envoy.json"
    ours.write_text("policies: {default: {aliases: {fast: m}}}\n")
    envoys.write_text(json.dumps(bootstrap(put(good(), METADATA, asking("absent")))))
    check = ["check", str(ours), "--envoy", str(envoys)]
    result = CliRunner().invoke(cli.main, check)
    assert (result.exit_code, result.stdout) == (1, "")
    wanted = "wanted a policy of the configuration, or one as a JSON object, got 'absent'"
    assert result.stderr == f"{envoys}: {MANAGER}{METADATA}.1.value: {wanted}\n"
    envoys.write_text(json.dumps(bootstrap(put(good(), "stream_idle_timeout", "1s"))))
    result = CliRunner().invoke(cli.main, check)
    assert [line.partition(" wanted")[0] for line in result.stderr.splitlines()] == [
        f"{envoys}: {MANAGER}stream_idle_timeout:"
    ]
    envoys.write_text("[]")
    result = CliRunner().invoke(cli.main, check)
    assert result.stderr == f"{envoys}: (top): wanted a mapping, Envoy's bootstrap, got []\n"
