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
        }
    )
    assert isinstance(policy, RoutingPolicy)
    assert policy.weights.kv_usage == 1.5
    assert policy.limits.requests_waiting_max == 7
    assert (policy.first_token_weight, policy.output_token_weight) == (4.0, 0.5)


@pytest.mark.parametrize(
    ("mapping", "line"),
    [
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


@given(
    mapping=st.dictionaries(st.sampled_from(["name", "strategy", "first_token_weight", "weights", "limits", "x"]), JSON)
)
def test_no_mapping_raises(mapping: dict[str, object]) -> None:
    assert policy_from_mapping(mapping) is not None


def test_node_limits_must_be_ordered() -> None:
    with pytest.raises(ValueError, match=r"fresh_s \(11\) <= stale_s \(10\)"):
        NodeLimits(fresh_s=11)
