import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.aliases import ALIASES_MAX, NAMES_CHARS_MAX, TARGETS_MAX
from extproc.core.policy import RoutingPolicy, policy_from_mapping


def is_fault(**fields: object) -> bool:
    return isinstance(policy_from_mapping(fields), list)


@pytest.mark.parametrize("field", ["aliases", "fallback_models"])
def test_names_of_models_have_bounds(field: str) -> None:
    def names(count: int, model: str = "m", chars: int = 8) -> dict[str, str]:
        return {f"{number:0{chars}}": model for number in range(count)}

    assert not is_fault(**{field: names(ALIASES_MAX)})
    assert is_fault(**{field: names(ALIASES_MAX + 1)})
    assert not is_fault(**{field: {"a" * 256: "b" * 256}})
    assert is_fault(**{field: {"a" * 257: "b"}})
    assert is_fault(**{field: {"a": "b" * 257}})
    longest = NAMES_CHARS_MAX // 512
    assert not is_fault(**{field: names(longest, "m" * 256, chars=256)})
    assert is_fault(**{field: names(longest, "m" * 256, chars=256) | {"a": "b"}})


def test_an_alias_has_so_many_targets_and_no_more() -> None:
    assert not is_fault(aliases={"a": dict.fromkeys("bcdefghijklmnopq"[:TARGETS_MAX], 1)})
    assert is_fault(aliases={"a": dict.fromkeys("bcdefghijklmnopqr"[: TARGETS_MAX + 1], 1)})
    assert is_fault(aliases={"a": {}})


def test_a_model_that_is_an_alias_of_itself_too_may_fall_back() -> None:
    assert not is_fault(aliases={"a": {"a": 9, "b": 1}}, fallback_models={"a": "c", "b": "a"})


MODEL = st.sampled_from(["a", "b", "c", "größer/x:y", "d"])
WEIGHT = st.floats(1e-6, 1e6) | st.integers(1, 10)
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "ttft_s": st.floats(0.001, 3600),
        "priority": st.sampled_from(["batch", "standard"]),
        "tenant_header": st.just("x-tenant"),
        "aliases": st.dictionaries(
            st.sampled_from(["fast", "slow"]), MODEL | st.dictionaries(MODEL, WEIGHT, min_size=1), max_size=2
        ),
        "fallback_models": st.dictionaries(MODEL, st.just("tiny")),
    },
)


def turned(mapping: Any) -> Any:
    """The same mapping, written the other way round."""
    if not isinstance(mapping, dict):
        return mapping
    return {key: turned(value) for key, value in reversed(list(mapping.items()))}


@given(mapping=POLICIES, request_id=st.text(max_size=5), asked=MODEL | st.just("fast"))
def test_equal_policies_have_one_hash_do_the_same_and_come_back_from_a_journal(
    mapping: dict[str, Any], request_id: str, asked: str
) -> None:
    policy = policy_from_mapping(mapping)
    assert isinstance(policy, RoutingPolicy)
    for again in (
        policy_from_mapping(turned(mapping)),
        policy_from_mapping(json.loads(json.dumps(policy.model_dump(mode="json")))),
        policy.model_copy(update={"name": "default"}),
        RoutingPolicy(**dict(policy)),
    ):
        assert isinstance(again, RoutingPolicy)
        assert again == policy
        assert hash(again) == hash(policy)
        assert again.model_for(asked, request_id) == policy.model_for(asked, request_id)


def test_policies_that_differ_in_an_alias_differ() -> None:
    policies = [
        RoutingPolicy(),
        RoutingPolicy(aliases={"a": "b"}),
        RoutingPolicy(aliases={"a": {"b": 1, "c": 1}}),
        RoutingPolicy(aliases={"a": {"b": 1, "c": 2}}),
        RoutingPolicy(fallback_models={"a": "b"}),
    ]
    assert len(set(policies)) == len(policies)
    assert RoutingPolicy(aliases={"a": "b"}) == RoutingPolicy(aliases={"a": {"b": 1}})


def test_what_is_no_alias_is_asked_for_itself() -> None:
    policy = RoutingPolicy(
        aliases={"fast": "small", "large": {"large": 1, "huge": 1}}, fallback_models={"small": "tiny"}
    )
    assert policy.model_for("fast", "1") == "small"
    assert policy.model_for("small", "1") == "small"
    assert policy.fallback_models["small"] == "tiny"
    assert {policy.model_for("large", str(number)) for number in range(100)} == {"large", "huge"}


@pytest.mark.parametrize(
    "weights", [{"a": 90, "b": 10}, {"a": 0.01, "b": 0.99}, {"a": 1, "b": 1, "c": 2}, {"a": 1e6, "b": 1e6}]
)
def test_each_model_gets_its_share_of_the_requests(weights: dict[str, float]) -> None:
    policy = RoutingPolicy(aliases={"alias": weights})
    requests = 20_000
    got = [policy.model_for("alias", f"a1b2c3-{number}") for number in range(requests)]
    for model, weight in weights.items():
        share = weight / sum(weights.values())
        error = (share * (1 - share) / requests) ** 0.5
        assert abs(got.count(model) / requests - share) < 4 * error


def test_the_same_request_always_gets_the_same_model() -> None:
    policy = RoutingPolicy(aliases={"alias": {"a": 1, "b": 1, "c": 1}})
    # In every process: Python hashes a text differently in each.
    assert "".join(policy.model_for("alias", str(number)) for number in range(12)) == "abcbcccabaca"
