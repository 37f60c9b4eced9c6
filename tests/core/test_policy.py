import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.cost import DEFAULT_STRATEGY, STRATEGIES
from extproc.core.policy import RoutingPolicy, policy_from_mapping
from extproc.core.settings import NodeLimits


def test_an_empty_mapping_is_the_default_policy() -> None:
    assert policy_from_mapping({}) == RoutingPolicy()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_can_be_asked_for(strategy: str) -> None:
    assert policy_from_mapping({"strategy": strategy}) == RoutingPolicy(strategy=strategy)


def test_least_added_delay_is_the_default() -> None:
    assert RoutingPolicy().strategy == DEFAULT_STRATEGY == "least-added-delay"


def test_numbers_may_come_as_strings() -> None:
    """Envoy turns `1.5` in YAML into the string "1.5"."""
    policy = policy_from_mapping(
        {
            "weights": {"kv_usage": "1.5"},
            "limits": {"requests_waiting_max": "7"},
            "first_token_weight": "4",
            "output_token_weight": "0.5",
            "ttft_s": "1.5",
            "wait_fraction": "0.75",
            "aliases": {"fast": {"small": "9", "tiny": "1"}},
        }
    )
    assert isinstance(policy, RoutingPolicy)
    assert policy.weights.kv_usage == 1.5
    assert policy.limits.requests_waiting_max == 7
    assert (policy.first_token_weight, policy.output_token_weight) == (4.0, 0.5)
    assert (policy.ttft_s, policy.wait_fraction) == (1.5, 0.75)
    assert policy.aliases["fast"] == {"small": 9.0, "tiny": 1.0}


@pytest.mark.parametrize(
    ("mapping", "line"),
    [
        ({"mode": "dry-run"}, "mode: wanted 'enforce', 'observe' or 'off', got 'dry-run'"),
        ({"mode": True}, "mode: wanted 'enforce', 'observe' or 'off', got True"),
        ({"canary": 100.1}, "canary: wanted less than or equal to 100, got 100.1"),
        ({"canary": -1}, "canary: wanted greater than or equal to 0, got -1"),
        ({"canary": "nan"}, "canary: wanted a finite number, got 'nan'"),
        ({"classify": "long"}, "classify: wanted 'expected-time', 'prefill-heavy' or 'decode', got 'long'"),
        (
            {"destination": "header"},
            "destination: wanted 'original-dst', 'original-dst-metadata' or 'override-host', got 'header'",
        ),
        ({"destinations_max": 0}, "destinations_max: wanted greater than or equal to 1, got 0"),
        ({"destinations_max": 17}, "destinations_max: wanted less than or equal to 16, got 17"),
        ({"model_header": "cookie"}, "model_header: wanted a header that carries no secret, got 'cookie'"),
        ({"strateggy": "x"}, "strateggy: wanted a known key, got 'x'"),
        (
            {"strategy": "fastest"},
            (
                "strategy: wanted one of least-added-delay, least-inflight, lmetric, load-score, power-of-two, random, "
                "round-robin, got 'fastest'"
            ),
        ),
        ({"strategy": 3}, "strategy: wanted a valid string, got 3"),
        ({"weights": {"kv_usage": -1}}, "weights.kv_usage: wanted greater than or equal to 0, got -1"),
        ({"weights": 5}, "weights: wanted a mapping, got 5"),
        ({"limits": {"kv_usage_max": 1.5}}, "limits.kv_usage_max: wanted less than or equal to 1, got 1.5"),
        (
            {"limits": {"requests_waiting_max": 0}},
            "limits.requests_waiting_max: wanted greater than or equal to 1, got 0",
        ),
        ({"weights": {"kv_usage": float("nan")}}, "weights.kv_usage: wanted a finite number, got nan"),
        ({"first_token_weight": -0.1}, "first_token_weight: wanted greater than or equal to 0, got -0.1"),
        ({"output_token_weight": 1001}, "output_token_weight: wanted less than or equal to 1000, got 1001"),
        ({"output_token_weight": "nan"}, "output_token_weight: wanted a finite number, got 'nan'"),
        ({"first_token_weight": "inf"}, "first_token_weight: wanted a finite number, got 'inf'"),
        ({"ttft_s": 0}, "ttft_s: wanted greater than 0, got 0"),
        ({"ttft_s": 3600.1}, "ttft_s: wanted less than or equal to 3600, got 3600.1"),
        ({"ttft_s": "nan"}, "ttft_s: wanted a finite number, got 'nan'"),
        ({"wait_fraction": -0.1}, "wait_fraction: wanted greater than or equal to 0, got -0.1"),
        ({"wait_fraction": 10.1}, "wait_fraction: wanted less than or equal to 10, got 10.1"),
        ({"wait_fraction": "inf"}, "wait_fraction: wanted a finite number, got 'inf'"),
        ({"priority": ""}, "priority: wanted String should have at least 1 character, got ''"),
        ({"tenant_header": "Cookie"}, "tenant_header: wanted a header that carries no secret, got 'Cookie'"),
        (
            {"priority_header": "AUTHORIZATION"},
            "priority_header: wanted a header that carries no secret, got 'AUTHORIZATION'",
        ),
        (
            {"tenant_header": "x-tenant", "tenant_metadata": "ns:sub"},
            "tenant_metadata: wanted one of tenant_header and tenant_metadata, got 'ns:sub'",
        ),
        *(
            (
                {"tenant_metadata": claim},
                f"tenant_metadata: wanted namespace:path.to.claim, of at most 8 names, got {claim!r}",
            )
            for claim in ("", "sub", "ns:", ":sub", "ns:a..b", "ns:.a", "ns:a.", "ns:a\nb", "ns:a.b.c.d.e.f.g.h.i")
        ),
        ({"aliases": ["a"]}, "aliases: wanted a mapping, got ['a']"),
        ({"aliases": {"a": 5}}, "aliases.a: wanted a model, or models with their weights, got 5"),
        ({"aliases": {"a": {"b": 0}}}, "aliases.a.b: wanted greater than 0, got 0"),
        ({"aliases": {"a": {"b": 1e7}}}, "aliases.a.b: wanted less than or equal to 1000000, got 10000000.0"),
        ({"aliases": {"a": {"b": "nan"}}}, "aliases.a.b: wanted a finite number, got 'nan'"),
        ({"aliases": {"a": "b\n"}}, "aliases.a.b\\n.[key]: wanted printable characters, got 'b\\n'"),
        ({"aliases": {"": "b"}}, "aliases..[key]: wanted String should have at least 1 character, got ''"),
        ({"aliases": {"a": "a"}}, "aliases: wanted another model than itself for 'a', got {'a': 'a'}"),
        ({"aliases": {"a": {"a": 3}}}, "aliases: wanted another model than itself for 'a', got {'a': {'a': 3}}"),
        (
            {"aliases": {"a": "b", "b": "c"}},
            "aliases: wanted models for 'a', and 'b' is an alias, got {'a': 'b', 'b': 'c'}",
        ),
        (
            {"aliases": {"a": "b", "b": {"b": 1, "c": 1}}},
            "aliases: wanted models for 'a', and 'b' is an alias, got {'a': 'b', 'b': {'b': 1, 'c': 1}}",
        ),
        ({"fallback_models": {"a": 3}}, "fallback_models.a: wanted a valid string, got 3"),
        ({"fallback_models": {"a": "a"}}, "fallback_models: wanted another model than itself for 'a', got {'a': 'a'}"),
        (
            {"aliases": {"a": "b"}, "fallback_models": {"c": "a"}},
            "fallback_models: wanted models, and 'a' is an alias, got {'c': 'a'}",
        ),
        (
            {"aliases": {"a": "b"}, "fallback_models": {"a": "c"}},
            "fallback_models: wanted models, and 'a' is an alias, got {'a': 'c'}",
        ),
    ],
)
def test_a_fault_names_where_what_was_wanted_and_what_came(mapping: dict[str, object], line: str) -> None:
    faults = policy_from_mapping(mapping)
    assert isinstance(faults, list)
    assert [str(fault) for fault in faults] == [line]


def test_every_fault_is_told_at_once() -> None:
    faults = policy_from_mapping({"a": 1, "strategy": "b", "limits": {"kv_usage_max": 0, "c": 2}})
    assert isinstance(faults, list)
    assert {fault.path for fault in faults} == {"a", "strategy", "limits.kv_usage_max", "limits.c"}


def test_what_came_is_cut_to_a_line() -> None:
    faults = policy_from_mapping({"strategy": "x" * 10_000})
    assert isinstance(faults, list)
    assert len(faults[0].got) == 80


def test_a_fault_is_one_line_whatever_stands_there() -> None:
    faults = policy_from_mapping({"a\nb": 1, "x" * 1000: 2, "limits": {"kv_usage_max": 10**5000}})
    assert isinstance(faults, list)
    assert [fault.path for fault in faults][1:] == ["a\\nb", "x" * 80]
    assert "too long to print" in str(faults[0])
    assert all(str(fault).isprintable() for fault in faults)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
)


NAMES = st.text(min_size=1, max_size=4)


@given(
    mapping=st.dictionaries(st.sampled_from([*RoutingPolicy.model_fields, "x"]), JSON | st.dictionaries(NAMES, JSON))
)
def test_no_mapping_raises(mapping: dict[str, object]) -> None:
    assert policy_from_mapping(mapping) is not None


def test_node_limits_must_be_ordered() -> None:
    with pytest.raises(ValueError, match=r"fresh_s \(11\) <= stale_s \(10\)"):
        NodeLimits(fresh_s=11)


@pytest.mark.parametrize("field", ["priority_header", "tenant_header"])
@pytest.mark.parametrize("name", [":path", "x y", "x-tenänt", "x\n", "x" * 65, ""])
def test_what_is_no_name_of_a_header_is_a_fault(field: str, name: str) -> None:
    faults = policy_from_mapping({field: name})
    assert isinstance(faults, list)
    assert [fault.path for fault in faults] == [field]


def test_headers_are_asked_for_in_lower_case_as_envoy_shows_them() -> None:
    policy = policy_from_mapping({"tenant_header": "X-Tenant-" + "X" * 55, "priority_header": "Priority!#$%&'*+.^_`|~"})
    assert isinstance(policy, RoutingPolicy)
    assert (policy.tenant_header, policy.priority_header) == ("x-tenant-" + "x" * 55, "priority!#$%&'*+.^_`|~")


@pytest.mark.parametrize(
    "claim",
    ["envoy.filters.http.jwt_authn:payload.sub", "ns:a.b.c.d.e.f.g.h", "ns:payload.https://a.b/c:d", "ns:" + "x" * 253],
)
def test_a_claim_is_a_namespace_and_a_path(claim: str) -> None:
    assert RoutingPolicy(tenant_metadata=claim).tenant_metadata == claim


def test_a_claim_has_a_bound() -> None:
    assert isinstance(policy_from_mapping({"tenant_metadata": "ns:" + "x" * 254}), list)


def test_off_may_come_as_yaml_1_1_reads_it() -> None:
    assert policy_from_mapping({"mode": False}) == policy_from_mapping({"mode": "off"}) == RoutingPolicy(mode="off")


@pytest.mark.parametrize(
    ("destination", "most", "others"),
    [("original-dst", 3, 0), ("original-dst-metadata", 16, 0), ("override-host", 3, 2), ("override-host", 1, 0)],
)
def test_others_are_named_only_in_a_list(destination: str, most: int, others: int) -> None:
    policy = policy_from_mapping({"destination": destination, "destinations_max": str(most)})
    assert isinstance(policy, RoutingPolicy)
    assert policy.others_max == others
