import json
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from extproc.core.policy import DESTINATIONS, RoutingPolicy
from extproc.core.settings import Fault
from extproc.gateway.conversation import HeadersWanted
from extproc.gateway.routepolicy import FAULT_CHARS_MAX, Asked, RoutePolicies, headers_wanted, read_policy

DEFAULT = RoutingPolicy()
BATCH = RoutingPolicy(name="batch")
KNOWN = {"default": DEFAULT, "batch": BATCH}


def policies(policy_bytes_max: int = 1000, policies_cached_max: int = 4) -> RoutePolicies:
    return RoutePolicies(KNOWN, DEFAULT, policy_bytes_max=policy_bytes_max, policies_cached_max=policies_cached_max)


def read(text: str, classes: Collection[str] | None = None) -> RoutingPolicy | list[Fault]:
    return read_policy(text, KNOWN, classes, 1000)


def test_a_route_that_says_nothing_gets_the_default() -> None:
    assert policies().of(None) == (DEFAULT, None)
    assert policies().of("") == (DEFAULT, None)


def test_a_route_can_name_a_policy() -> None:
    assert policies().of("batch") == (BATCH, None)
    assert policies().of(" batch\n") == (BATCH, None)


def test_a_route_can_write_a_policy_with_numbers_as_strings() -> None:
    policy, fault = policies().of('{"limits": {"kv_usage_max": "0.5"}, "weights": {"kv_usage": 1}}')
    assert fault is None
    assert policy.name == "inline"
    assert policy.limits.kv_usage_max == 0.5
    assert policy.weights.kv_usage == 1
    assert policies().of('{"name": "mine"}')[0].name == "mine"


WRONG: dict[str, list[tuple[str, str, str]]] = {
    "nobody": [("", "a policy of the configuration, or one as a JSON object", "'nobody'")],
    '["batch"]': [("", "a policy of the configuration, or one as a JSON object", """'["batch"]'""")],
    "{": [("", "valid JSON", "'{'")],
    "{'a': 1}": [("", "valid JSON", '''"{'a': 1}"''')],
    '{"ttft_s": ' + "9" * 900 + "}": [("ttft_s", "a valid number", "9")],
    '{"strategy": "magic"}': [("strategy", "one of ", "'magic'")],
    '{"limits": {"kv_usage_max": 7}}': [("limits.kv_usage_max", "less than or equal to 1", "7")],
    '{"limits": {"kv_usage_max": NaN}}': [("limits.kv_usage_max", "", "nan")],
    '{"strategy": "\\ud800"}': [("strategy", "", "")],
    '{"priority": "gone"}': [("priority", "one of interactive, batch", "'gone'")],
    '{"b": 1, "limits": {"c": 2}, "wait_fraction": 11}': [
        ("limits.c", "a known key", "2"),
        ("wait_fraction", "less than or equal to 10", "11"),
        ("b", "a known key", "1"),
    ],
    "é" * 501: [("", "at most 1000 bytes (limits.policy_bytes_max)", "1002")],
    " " * 1001: [("", "at most 1000 bytes (limits.policy_bytes_max)", "1001")],
}


@pytest.mark.parametrize("text", WRONG)
def test_every_fault_is_told_with_its_place_and_the_default_serves(text: str) -> None:
    faults = read(text, ("interactive", "batch"))
    assert isinstance(faults, list)
    assert len(faults) == len(WRONG[text])
    for fault, (path, wanted, got) in zip(faults, WRONG[text], strict=True):
        assert fault.path == path
        assert fault.wanted.startswith(wanted)
        assert fault.got.startswith(got)
    made = RoutePolicies(KNOWN, DEFAULT, policy_bytes_max=1000, classes=("interactive", "batch"))
    policy, told = made.of(text)
    assert policy is DEFAULT
    assert told is not None
    assert WRONG[text][0][0] in told


@pytest.mark.parametrize(
    "value",
    [
        "{" * 900,
        '{"a":' * 160 + "1" + "}" * 160,
        '{"\\ud800": 1}',
        '{"weights": {"\\ud800": 1}}',
        json.dumps(dict.fromkeys(map(str, range(100)), 1)),
        '{"a": "\\u0000\\n\\u2028"}',
        '{"a\\n\\u0000": 1}',
        "a\x00b\n",
        "%s" * 20,
    ],
)
def test_a_hostile_value_is_told_in_one_short_line(value: str) -> None:
    policy, fault = policies().of(value)
    assert policy is DEFAULT
    assert fault is not None
    assert len(fault) <= FAULT_CHARS_MAX
    assert fault.isprintable()
    fault.encode()


@pytest.mark.parametrize("depth", [*range(50, 1000, 50), 5000])
@pytest.mark.parametrize("pair", ['{"a":|}', '{"aliases":|}', '{"weights":[|]}'])
def test_no_depth_is_too_much(pair: str, depth: int) -> None:
    before, _, after = pair.partition("|")
    faults = read_policy(before * depth + "1" + after * depth, KNOWN, None, 1_000_000)
    assert isinstance(faults, list)
    assert faults


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
_KEYS = st.sampled_from(sorted(RoutingPolicy.model_fields)) | st.text(max_size=5)


@given(st.text() | st.dictionaries(_KEYS, _JSON, max_size=4).map(json.dumps))
def test_any_text_is_a_policy_or_has_faults_that_can_be_told(text: str) -> None:
    found = read_policy(text, KNOWN, ("batch",), 1000)
    made = RoutePolicies(KNOWN, DEFAULT, policy_bytes_max=1000, classes=("batch",))
    policy, told = made.of(text)
    if isinstance(found, RoutingPolicy):
        assert (policy, told) == (found, None)
        assert found.priority in (None, "batch")
    else:
        assert found
        assert policy is DEFAULT
        assert (told is None) == (text == "")
        for line in map(str, found):
            line.encode()


def test_a_fault_is_logged_once_for_each_value() -> None:
    made = policies()
    with capture_logs() as logs:
        for value in ("nobody", "nobody", "else", "nobody"):
            made.of(value)
    assert [one["policy"] for one in logs] == ["nobody", "else"]


def test_a_value_as_long_as_allowed_is_read_and_a_longer_one_is_not() -> None:
    value = json.dumps({"name": "long"})
    value += " " * (1000 - len(value))
    assert policies().of(value)[0].name == "long"
    assert policies().of(value + " ") == (DEFAULT, "wanted at most 1000 bytes, got 1001")
    assert policies().of("é" * 501) == (DEFAULT, "wanted at most 1000 bytes, got 1002")


def test_of_a_value_that_is_too_long_little_is_kept_and_nothing_is_read() -> None:
    def read(_: object) -> str:
        raise AssertionError

    made = policies()
    for form in ("a" * 100_000, b"a" * 100_000):
        with capture_logs() as logs:
            for _ in range(2):
                assert made.of(Asked(form, read)) == (DEFAULT, "wanted at most 1000 bytes, got 100000")
                assert made.of("a" * 100_000) == (DEFAULT, "wanted at most 1000 bytes, got 100000")
        assert all(len(one["policy"]) < 100 for one in logs)
    assert sum(len(str(key)) for key in made._cached) < 300


def test_the_least_recently_used_value_is_forgotten_first() -> None:
    made = policies(policies_cached_max=2)
    with capture_logs() as logs:
        for value in ("a", "b", "a", "c", "a", "b"):
            made.of(value)
    assert [one["policy"] for one in logs] == ["a", "b", "c", "b"]


def test_a_policy_is_read_once_for_equal_bytes_and_each_way_of_reading_them() -> None:
    reads: list[object] = []

    def one(form: object) -> str:
        reads.append(form)
        return '{"name": "one"}'

    def other(form: object) -> None:
        reads.append(form)

    made = policies()
    assert made.of("{}")[0] is made.of("{" + "}")[0]
    for _ in range(3):
        assert made.of(Asked(b"batch", one))[0].name == "one"
        assert made.of(Asked(b"batch", other)) == (DEFAULT, None)
        assert made.of("batch") == (BATCH, None)
    assert reads == [b"batch", b"batch"]


def test_a_fault_of_the_form_is_told_as_one_of_the_policy() -> None:
    made = policies()
    asked = Asked(b"1", lambda _: Fault("policy", "a name", "1"))
    with capture_logs() as logs:
        for _ in range(2):
            assert made.of(asked) == (DEFAULT, "policy: wanted a name, got 1")
    assert len(logs) == 1


def test_a_class_that_the_configuration_does_not_have_is_a_fault_however_the_policy_came() -> None:
    named = {name: RoutingPolicy(name=name, priority=name) for name in ("batch", "gone")}
    made = RoutePolicies(named, DEFAULT, classes=("interactive", "batch"))
    fault = "priority: wanted one of interactive, batch, got 'gone'"
    assert made.of("batch") == (named["batch"], None)
    assert made.of("gone") == (DEFAULT, fault)
    assert made.of('{"priority": "gone"}') == (DEFAULT, fault)
    policy, none = made.of('{"priority": "interactive"}')
    assert (policy.priority, none) == ("interactive", None)
    assert made.of("{}")[1] is None, "it names none"
    assert RoutePolicies(named, DEFAULT).of("gone") == (named["gone"], None), "any may be named"


def test_a_fault_does_not_list_classes_without_end() -> None:
    made = RoutePolicies({}, DEFAULT, classes=[f"class-{number}" for number in range(1000)])
    _, fault = made.of('{"priority": "gone"}')
    assert fault is not None
    assert len(fault) == FAULT_CHARS_MAX


def test_a_policy_reads_the_headers_and_the_claim_that_it_names() -> None:
    assert headers_wanted(DEFAULT) == HeadersWanted(frozenset(("x-model",)))
    none = RoutingPolicy(model_header=None)
    assert headers_wanted(none) == HeadersWanted()
    by_header = RoutingPolicy(priority_header="X-Priority", tenant_header="x-tenant", model_header="x-m")
    assert headers_wanted(by_header) == HeadersWanted(frozenset(("x-priority", "x-tenant", "x-m")))
    claim = "envoy.filters.http.jwt_authn:payload.a:b.sub"
    by_claim = RoutingPolicy(tenant_metadata=claim, model_header=None)
    assert headers_wanted(by_claim) == HeadersWanted(frozenset(), "envoy.filters.http.jwt_authn", "payload.a:b.sub")
    assert headers_wanted(by_claim) is headers_wanted(RoutingPolicy(name="b", tenant_metadata=claim, model_header=None))


@pytest.mark.parametrize("asked", [None, "batch", '{"canary": 10}', "nobody's"])
def test_how_envoy_wants_to_be_told_holds_over_what_the_policy_says(asked: str | None) -> None:
    made = policies()
    plain, fault = made.of(asked)
    for destination in (*DESTINATIONS, *DESTINATIONS):
        policy, same = made.of(asked, destination)
        assert same == fault
        assert policy == plain.model_copy(update={"destination": destination})
        assert made.of(asked, destination)[0] is policy, "read once"
    assert made.of(asked) == (plain, fault)


def test_another_destination_than_there_is_is_a_fault_and_the_policy_serves() -> None:
    made = policies()
    for _ in range(2):
        policy, fault = made.of("batch", "elsewhere")
        assert policy == made.of("batch")[0]
        assert fault == (
            "x-extproc-destination: wanted one of original-dst, original-dst-metadata, override-host, got 'elsewhere'"
        )
    assert made.of("nobody's", "elsewhere")[1] == made.of("nobody's")[1], "the first fault is told"


def test_long_texts_are_not_kept_for_a_destination_either() -> None:
    made = policies(policy_bytes_max=100)
    for number in range(5):
        made.of("x" * 10_000 + str(number), "override-host")
        made.of("batch", "y" * 10_000 + str(number))
    assert all(len(str(key)) < 500 for key in made._cached)
