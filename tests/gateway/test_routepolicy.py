import json

import pytest
from structlog.testing import capture_logs

from extproc.core.policy import RoutingPolicy
from extproc.gateway.conversation import HeadersWanted
from extproc.gateway.routepolicy import FAULT_CHARS_MAX, KEY, RoutePolicies, headers_wanted

DEFAULT = RoutingPolicy()
BATCH = RoutingPolicy(name="batch")


def policies(policy_bytes_max: int = 1000, policies_cached_max: int = 4) -> RoutePolicies:
    return RoutePolicies(
        {"default": DEFAULT, "batch": BATCH},
        DEFAULT,
        policy_bytes_max=policy_bytes_max,
        policies_cached_max=policies_cached_max,
    )


def test_a_route_that_says_nothing_gets_the_default() -> None:
    assert policies().of(()) == (DEFAULT, None)
    assert policies().of((("user-agent", "grpc-c++"), (KEY, ""))) == (DEFAULT, None)


def test_a_route_can_name_a_policy() -> None:
    assert policies().of(((KEY, "batch"),)) == (BATCH, None)
    assert policies().of(((KEY, b" batch "),)) == (BATCH, None)


def test_the_last_of_several_values_holds() -> None:
    assert policies().of(((KEY, "default"), ("other", "x"), (KEY, "batch"))) == (BATCH, None)


def test_a_route_can_write_a_policy_with_numbers_as_strings() -> None:
    policy, fault = policies().of(((KEY, '{"limits": {"kv_usage_max": "0.5"}, "weights": {"kv_usage": 1}}'),))
    assert fault is None
    assert policy.name == "inline"
    assert policy.limits.kv_usage_max == 0.5
    assert policy.weights.kv_usage == 1
    assert policies().of(((KEY, '{"name": "mine"}'),))[0].name == "mine"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("nobody", "no policy is named 'nobody'"),
        ("{", "not valid JSON"),
        ("{" * 900, "not valid JSON"),
        ('{"a":' * 160 + "1" + "}" * 160, "a: wanted a known key"),
        ('{"strategy": "magic"}', "strategy: wanted one of"),
        ('{"limits": {"kv_usage_max": 7}}', "limits.kv_usage_max: wanted"),
        ('{"limits": {"kv_usage_max": NaN}}', "limits.kv_usage_max: wanted"),
        ('{"\\ud800": 1}', "(top): wanted"),
        ('{"strategy": "\\ud800"}', "strategy: wanted"),
        ('{"weights": {"\\ud800": 1}}', "weights: wanted"),
        (json.dumps(dict.fromkeys(map(str, range(100)), 1)), "0: wanted a known key"),
        ('["batch"]', "no policy is named"),
    ],
)
def test_what_cannot_be_used_is_told_and_the_default_serves(value: str, told: str) -> None:
    policy, fault = policies().of(((KEY, value),))
    assert policy is DEFAULT
    assert fault is not None
    assert told in fault
    assert len(fault) <= 400
    fault.encode()


def test_a_fault_is_logged_once_for_each_value() -> None:
    made = policies()
    with capture_logs() as logs:
        for value in ("nobody", "nobody", "else", "nobody"):
            made.of(((KEY, value),))
    assert [one["policy"] for one in logs] == ["nobody", "else"]


def test_a_value_as_long_as_allowed_is_read_and_a_longer_one_is_not() -> None:
    value = json.dumps({"name": "long"})
    value += " " * (1000 - len(value))
    assert policies().of(((KEY, value),))[0].name == "long"
    assert policies().of(((KEY, value + " "),)) == (DEFAULT, "wanted at most 1000 bytes, got 1001")
    assert policies().of(((KEY, "é" * 501),)) == (DEFAULT, "wanted at most 1000 bytes, got 1002")


def test_the_least_recently_used_value_is_forgotten_first() -> None:
    made = policies(policies_cached_max=2)
    with capture_logs() as logs:
        for value in ("a", "b", "a", "c", "a", "b"):
            made.of(((KEY, value),))
    assert [one["policy"] for one in logs] == ["a", "b", "c", "b"]


def test_a_policy_is_read_once() -> None:
    made = policies()
    value = ((KEY, "{}"),)
    assert made.of(value)[0] is made.of(value)[0]


def test_a_class_that_the_configuration_does_not_have_is_a_fault_however_the_policy_came() -> None:
    named = {name: RoutingPolicy(name=name, priority=name) for name in ("batch", "gone")}
    made = RoutePolicies(named, DEFAULT, classes=("interactive", "batch"))
    fault = "priority: wanted one of interactive, batch, got 'gone'"
    assert made.of(((KEY, "batch"),)) == (named["batch"], None)
    assert made.of(((KEY, "gone"),)) == (DEFAULT, fault)
    assert made.of(((KEY, '{"priority": "gone"}'),)) == (DEFAULT, fault)
    policy, none = made.of(((KEY, '{"priority": "interactive"}'),))
    assert (policy.priority, none) == ("interactive", None)
    assert made.of(((KEY, "{}"),))[1] is None, "it names none"
    assert RoutePolicies(named, DEFAULT).of(((KEY, "gone"),)) == (named["gone"], None), "any may be named"


def test_a_fault_does_not_list_classes_without_end() -> None:
    made = RoutePolicies({}, DEFAULT, classes=[f"class-{number}" for number in range(1000)])
    _, fault = made.of(((KEY, '{"priority": "gone"}'),))
    assert fault is not None
    assert len(fault) == FAULT_CHARS_MAX


def test_a_policy_reads_the_headers_and_the_claim_that_it_names() -> None:
    assert headers_wanted(DEFAULT) == HeadersWanted()
    by_header = RoutingPolicy(priority_header="X-Priority", tenant_header="x-tenant")
    assert headers_wanted(by_header) == HeadersWanted(frozenset(("x-priority", "x-tenant")))
    by_claim = RoutingPolicy(tenant_metadata="envoy.filters.http.jwt_authn:payload.a:b.sub")
    assert headers_wanted(by_claim) == HeadersWanted(frozenset(), "envoy.filters.http.jwt_authn", "payload.a:b.sub")
    assert headers_wanted(by_claim) is headers_wanted(RoutingPolicy(name="b", tenant_metadata=by_claim.tenant_metadata))
