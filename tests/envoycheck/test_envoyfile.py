"""Bootstraps that are none, cannot be read, or are meant to take long."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.envoycheck.file import JSON_BYTES_MAX, NESTING_MAX, VALUES_MAX, YAML_BYTES_MAX
from extproc.envoycheck.timeouts import faults_in_bootstrap, faults_in_file
from tests.bootstraps import FILTER, HOLD, LISTEN, MANAGER, PER_ROUTE, ROUTE, bootstrap, manager, put

Json = Any


def doubled(levels: int) -> Json:
    """A list that holds itself twice, and so on: as aliases make it, with few objects."""
    made: Json = []
    for _ in range(levels):
        made = [made, made]
    return made


def test_a_bootstrap_that_is_none_is_a_fault() -> None:
    wrong: object
    for wrong in (None, [], "static_resources", 3):
        assert [one.wanted for one in faults_in_bootstrap(wrong, HOLD, LISTEN)] == ["a mapping, Envoy's bootstrap"]
    for empty in ({}, {"static_resources": None}, {"static_resources": {"listeners": 3, "clusters": "x"}}):
        (fault,) = faults_in_bootstrap(empty, HOLD, LISTEN)
        assert str(fault) == "static_resources: wanted a filter of type ExternalProcessor, got none"


def test_aliases_cannot_make_a_bootstrap_too_large_to_walk() -> None:
    cycle: list[Json] = []
    cycle.append(cycle)
    deep: Json = []
    for _ in range(NESTING_MAX):
        deep = [deep]
    for wrong in (doubled(40), cycle, deep, [None] * VALUES_MAX):
        (fault,) = faults_in_bootstrap({"admin": wrong}, HOLD, LISTEN)
        assert fault.wanted == f"at most {VALUES_MAX} values, {NESTING_MAX} levels deep, aliases followed"
    for right in (deep[0], [None] * (VALUES_MAX - 1)):
        (fault,) = faults_in_bootstrap({"admin": right}, HOLD, LISTEN)
        assert fault.wanted == "a filter of type ExternalProcessor"


KEYS = [
    *("name", "value", "@type", "type_url", "typed_config", "disabled", "ours", "typed_per_filter_config", "overrides"),
    *("listeners", "http_filters", "message_timeout", "route_config", "virtual_hosts", "matcher", "routes", "route"),
    *("grpc_service", "envoy_grpc", "cluster_name", "google_grpc", "target_uri"),
    *("clusters", "load_assignment", "socket_address", "port_value"),
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["ours", "1s", PER_ROUTE, "type.googleapis.com/xds.type.v3.TypedStruct", "x:9", "x:٣"])
    | st.sampled_from([manager()["@type"], manager()["http_filters"][0]["typed_config"]["@type"]]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=30,
)
PATHS = [
    "static_resources",
    "static_resources.clusters",
    MANAGER[:-1],
    *(MANAGER + path for path in ("route_config", "http_filters", "http_filters.0", FILTER[:-1], ROUTE[:-1])),
    *(MANAGER + ROUTE + path for path in ("typed_per_filter_config", "route", "route.idle_timeout")),
]


@given(VALUES, st.sampled_from(PATHS))
def test_no_bootstrap_makes_it_fail(value: Json, path: str) -> None:
    for document in (value, {"static_resources": value}, put(bootstrap(manager()), path, value)):
        for fault in faults_in_bootstrap(document, HOLD, LISTEN):
            assert "\n" not in str(fault)


MERGED = "\n".join(["a0: &a0 {b: c}", *(f"a{n + 1}: &a{n + 1} {{<<: [*a{n}, *a{n}]}}" for n in range(20))])
"""PyYAML would copy a million times what it merges."""


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: [", ":1:5: wanted YAML, got expected the node content, but found '<stream end>'"),
        ("a: *b", ":1:4: wanted YAML, got found undefined alias 'b'"),
        ("[" * 2000, ": wanted YAML, got maximum recursion depth exceeded"),
        ("{[]: 1}", ":1:2: wanted YAML, got found unhashable key"),
        ("a: \x00", ": wanted YAML, got "),
        (" " * (YAML_BYTES_MAX + 1), f": wanted JSON, or YAML of at most {YAML_BYTES_MAX} bytes, got Input data was"),
        (" " * (JSON_BYTES_MAX + 1), f": wanted at most {JSON_BYTES_MAX} bytes, got more"),
        ("[" * (YAML_BYTES_MAX + 1), f": wanted JSON, or YAML of at most {YAML_BYTES_MAX} bytes, got "),
        ("- 1", ": (top): wanted a mapping, Envoy's bootstrap, got [1]"),
        ("a: &a [*a]", ": (top): wanted at most"),
        (MERGED, ": (top): wanted at most"),
        ("x", ": (top): wanted a mapping, Envoy's bootstrap, got 'x'"),
        ("", ": (top): wanted a mapping, Envoy's bootstrap, got None"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "envoy.yaml"
    path.write_text(text)
    (one,) = faults_in_file(path, HOLD, LISTEN)
    assert str(one).startswith(f"{path}{fault}")
    (one,) = faults_in_file(tmp_path / "none", HOLD, LISTEN)
    assert str(one) == f"{tmp_path}/none: wanted a readable file, got No such file or directory"


def test_aliases_and_tags_are_read_as_envoy_reads_them(tmp_path: Path) -> None:
    text = json.dumps(put(bootstrap(manager()), f"{MANAGER}stream_idle_timeout", "short"))
    path = tmp_path / "envoy.yaml"
    tags = "!ignore base: {a: &short !own 1s, <<: {b: c}, d: !own [!own {e: f}]}\n"
    path.write_text(tags + text.removeprefix("{").removesuffix("}").replace('"short"', "*short"))
    (fault,) = faults_in_file(path, HOLD, LISTEN)
    assert fault.path == f"{path}: {MANAGER}stream_idle_timeout"
