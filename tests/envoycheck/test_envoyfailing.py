"""What `extproc check --envoy` finds of failures, refusals and load."""

from typing import Any

import pytest
import yaml

from extproc.config import Config
from extproc.envoycheck.failing import faults_in
from extproc.envoycheck.file import Warned
from extproc.envoycheck.processors import Processors, processors_of
from tests.bootstraps import (
    BREAKERS,
    FILTER,
    HOST,
    LISTEN,
    MANAGER,
    METADATA,
    MODE,
    asking,
    bootstrap,
    complete,
    complete_clusters,
    own,
    put,
)
from tests.rendered import rendered

Json = Any


def shipped(**changes: Json) -> Json:
    """As rendered."""
    return yaml.safe_load(rendered(**changes))


ALLOW, CLUSTER = f"{FILTER}failure_mode_allow", "static_resources.clusters"


def faults(document: Json) -> list[str]:
    processors = processors_of(document, LISTEN)
    assert isinstance(processors, Processors)
    found = dict.fromkeys(faults_in(processors, Config()))
    return [f"{'warning: ' * isinstance(one, Warned)}{one}".replace(MANAGER, "") for one in found]


def found(manager: Json, clusters: Json = None) -> list[str]:
    return faults(bootstrap(manager, clusters=clusters or complete_clusters()))


def test_what_fails_open_and_bears_load_has_no_faults() -> None:
    assert found(complete()) == []
    other = [{"max_requests": 1, "priority": "HIGH"}, *BREAKERS["thresholds"], {"priority": 0}]
    assert (
        faults(
            put(bootstrap(complete(), clusters=complete_clusters()), f"{CLUSTER}.0.circuit_breakers.thresholds", other)
        )
        == []
    )


def test_failing_closed_is_a_warning() -> None:
    why = "wanted true (else 500 while serve is away, and its crash cuts running answers)"
    for value, got in ((False, "False"), (None, "nothing, so false")):
        assert found(put(complete(), ALLOW, value)) == [f"warning: {ALLOW}: {why}, got {got}"]
    first, second = (f"{HOST}routes.{number}.typed_per_filter_config.ours" for number in (1, 0))
    closed = put(complete(), first, own(failure_mode_allow=False))
    assert found(closed) == [f"warning: {first}.overrides.failure_mode_allow: {why}, got False"]
    assert found(put(complete(), second, own(failure_mode_allow=False))) == [], "nobody is asked again there"
    opened = put(put(complete(), ALLOW, False), f"{HOST}typed_per_filter_config.ours", own(failure_mode_allow=True))
    assert found(opened) == []


@pytest.mark.parametrize("allow", [True, False])
def test_full_duplex_fails_closed_whatever_is_said(allow: bool) -> None:
    path = f"{MODE}.request_body_mode"
    (fault,) = found(put(put(complete(), ALLOW, allow), path, "FULL_DUPLEX_STREAMED"))
    assert fault.startswith(
        f"warning: {path}: wanted BUFFERED (its crash cuts running answers; 500 while serve is away"
    )
    assert ("needs health_checks" in fault) == allow


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "500 while serve is away, until health checks see it)"),
        (
            {"processor": ["10.0.0.1:9002", "10.0.0.2:9002"]},
            "500 while all of them are away, until health checks see it)",
        ),
        ({"fail_open": False}, "500 while serve is away)"),
    ],
)
def test_in_full_duplex_health_checks_open_what_one_or_all_serves_leave(changes: Json, words: str) -> None:
    made = shipped(body_mode="full-duplex", **changes)
    (fault,) = faults(made)
    assert words in fault
    if changes.get("fail_open", True):
        for at in ("health_checks", "common_lb_config"):
            (fault,) = faults(put(made, f"{CLUSTER}.2.{at}", None))
            assert "here failure_mode_allow needs health_checks" in fault


def test_of_a_composite_cluster_its_retries_count_and_its_members_breakers() -> None:
    made = shipped(failover=True)
    names = [one["name"] for one in made["static_resources"]["clusters"]]
    assert faults(made) == []
    told = {}
    for index, name in enumerate(names[:3]):
        (fault,) = faults(put(made, f"{CLUSTER}.{index}.circuit_breakers", None))
        assert fault.startswith(f"warning: {CLUSTER}.{index}.circuit_breakers.thresholds.0"), name
        told[name] = fault.partition(" wanted ")[2]
    assert told["chosen-node"].startswith("max_connections, ")
    assert told["known-nodes"].startswith("max_connections, ")
    assert told["chosen-then-known"].startswith("more, as 1000 (")
    assert told["chosen-then-known"].endswith("got nothing, so 3")


def test_refusals_are_heard() -> None:
    path = f"{FILTER}disable_immediate_response"
    assert found(put(complete(), path, False)) == []
    wanted = "false (refusals become 500, or with failure_mode_allow requests that go on)"
    assert found(put(complete(), path, True)) == [f"{path}: wanted {wanted}, got True"]


@pytest.mark.parametrize("value", ["%REQ(x-policy)%", "a%REQUEST_HEADER(X)%"])
def test_clients_do_not_choose_their_policy(value: str) -> None:
    (fault,) = found(put(complete(), METADATA, asking(value)))
    assert fault.startswith(f"warning: {METADATA}.1.value: wanted no header of the request")
    (fault,) = found(put(complete(), METADATA, [{"key": "x-extproc-destination", "value": value}]))
    assert "(clients choose their destination)" in fault
    for other in ("%ROUTE_NAME%", "100%%", "default"):
        assert found(put(complete(), METADATA, asking(other))) == []


def test_breakers_are_told() -> None:
    clusters = complete_clusters()
    for breakers in (
        {},
        {"thresholds": [{"max_connections": 5}]},
        {"thresholds": [{"priority": "HIGH", "max_requests": 9}]},
    ):
        without = [clusters[0] | {"circuit_breakers": breakers}, *clusters[1:]]
        (fault,) = found(complete(), without)
        assert fault == (
            f"{CLUSTER}.0.circuit_breakers.thresholds.0.max_requests: wanted more, as 20000 "
            "(limits.streams_max: each request in flight holds one), got nothing, so 1024"
        )
        (fault,) = found(complete(), [*clusters[:2], clusters[2] | {"circuit_breakers": breakers}])
        assert fault.startswith(f"warning: {CLUSTER}.2.circuit_breakers.thresholds.0: wanted max_")
    off = {"ours": {"@type": "x/envoy.config.route.v3.FilterConfig", "disabled": True}}
    unasked = put(complete(), f"{HOST}routes.0.typed_per_filter_config", off)
    assert found(unasked, [*clusters[:2], clusters[2] | {"circuit_breakers": {}}]) == []


def test_retries_are_told_of_where_envoy_does_not_heed_them() -> None:
    policy = {"retry_on": "unavailable"}
    inside = f"{FILTER}grpc_service.envoy_grpc.retry_policy"
    (said,) = found(put(complete(), inside, policy))
    assert said.startswith(f"warning: {inside}: wanted nothing, but the same at grpc_service (")
    assert found(put(complete(), f"{FILTER}grpc_service.retry_policy", policy)) == []
