"""What `extproc check --envoy` finds of lists of hosts, and of policies that are written where nobody reads."""

from typing import Any

import pytest
import yaml

from extproc.envoycheck import checks, heard
from extproc.envoycheck.file import Warned
from extproc.envoycheck.picking import faults_in
from extproc.envoycheck.processors import Processors, processors_of
from tests.bootstraps import (
    FILTER,
    HOST,
    LISTEN,
    MANAGER,
    METADATA,
    MODE,
    ROUTE,
    TYPE,
    asking,
    bootstrap,
    cluster,
    complete,
    complete_clusters,
    configured,
    in_metadata,
    override_host,
    put,
)
from tests.rendered import rendered

Json = Any

PICKED = "x-gateway-destination-endpoint"
PICKING = configured(policies={"default": {"destination": "override-host"}})
FORWARDING, RETRIES = f"{FILTER}metadata_options.forwarding_namespaces", f"{ROUTE}route.retry_policy"
HEADS, BODY = f"{MODE}.response_header_mode", f"{MODE}.request_body_mode"
SOURCES = "load_balancing_policy.policies.0.typed_extension_config.typed_config.override_host_sources"


def picking() -> Json:
    """One route to a cluster that walks the list."""
    route = {"cluster": "picking", "timeout": "0s", "retry_policy": {"retry_on": "reset", "num_retries": 2}}
    made = put(complete(), f"{HOST}routes", [{"match": {"prefix": "/"}, "route": route}])
    return put(put(made, FORWARDING, {"untyped": ["envoy.lb"]}), HEADS, "SEND")


def processors(manager: Json, *sources: Json) -> Processors:
    one = override_host(cluster("picking", LISTEN), *(sources or ({"header": PICKED},)))
    made = processors_of(bootstrap(manager, clusters=[*complete_clusters(), one]), LISTEN)
    assert isinstance(made, Processors)
    return made


def found(manager: Json, *sources: Json, **policy: Json) -> list[str]:
    settings = configured(policies={"default": {"destination": "override-host"} | policy})
    faults = list(faults_in(processors(manager, *sources), settings))
    assert all(isinstance(one, Warned) for one in faults)
    return [str(one).replace(MANAGER, "").partition(" (")[0] for one in faults]


def test_a_list_that_is_walked_has_no_faults() -> None:
    assert found(picking()) == []
    assert found(picking(), {"metadata": in_metadata(PICKED)}) == []


@pytest.mark.parametrize(
    ("at", "value", "policy", "fault"),
    [
        (RETRIES, None, {}, f"{RETRIES}: wanted retries, num_retries 2"),
        (RETRIES, {"num_retries": 2}, {}, f"{RETRIES}: wanted retries, num_retries 2"),
        (RETRIES, None, {"destinations_max": 1}, None),
        (RETRIES, None, {"destination": "original-dst"}, None),
        (RETRIES, None, {"mode": "observe"}, None),
        (BODY, "STREAMED", {}, None),
        (f"{RETRIES}.num_retries", 3, {}, f"{RETRIES}.num_retries: wanted at most 2"),
        (f"{RETRIES}.num_retries", 3, {"destinations_max": 4}, None),
        (f"{RETRIES}.num_retries", "1", {"destinations_max": 1}, None),
        (f"{RETRIES}.num_retries", 2, {"destinations_max": 1}, f"{RETRIES}.num_retries: wanted at most 1"),
        (f"{RETRIES}.num_retries", None, {}, None),
        (HEADS, "SKIP", {}, f"{HEADS}: wanted SEND"),
        (HEADS, "DEFAULT", {}, None),
        (FORWARDING, {"untyped": ["other"]}, {}, f"{FORWARDING}.untyped: wanted envoy.lb among them"),
        (FORWARDING, None, {}, f"{FORWARDING}.untyped: wanted envoy.lb among them"),
    ],
)
def test_what_keeps_it_from_being_walked_is_told(at: str, value: Json, policy: Json, fault: str | None) -> None:
    assert found(put(picking(), at, value), **policy) == ([] if fault is None else [fault])


def test_retries_are_not_asked_for_where_they_break_bodies() -> None:
    bare = put(put(picking(), RETRIES, None), BODY, "STREAMED")
    assert found(bare) == []
    assert len(found(put(bare, f"{FILTER}failure_mode_allow", False))) == 1
    spare = {"retry_on": "reset", "num_retries": 9, "retry_host_predicate": [{"name": "previous_hosts"}]}
    assert found(put(picking(), RETRIES, spare)) == []
    host = put(put(picking(), RETRIES, None), f"{HOST}retry_policy", {"retry_on": "reset", "num_retries": 9})
    assert found(host) == [f"{HOST}retry_policy.num_retries: wanted at most 2"]


def test_two_sources_walk_it_twice() -> None:
    (fault,) = found(picking(), {"metadata": in_metadata(PICKED)}, {"header": PICKED})
    assert fault == f"static_resources.clusters.3.{SOURCES}: wanted one of header and metadata"


@pytest.mark.parametrize("most", [1, 3])
def test_what_is_rendered_walks_it(most: int) -> None:
    settings = configured(policies={"default": {"destination": "override-host", "destinations_max": most}})
    made = processors_of(yaml.safe_load(rendered(destination="override-host", destinations_max=most)), LISTEN)
    assert isinstance(made, Processors)
    assert checks.faults_in(made, settings) == []


METADATA_OF = f"{HOST}routes.1.metadata.filter_metadata"
SETTING: Json = {"@type": f"{TYPE}extensions.filters.http.set_metadata.v3.Config"}


def unheard(manager: Json) -> list[str]:
    faults = list(heard.faults_in(processors(manager)))
    assert all(isinstance(one, Warned) for one in faults)
    return [str(one).replace(MANAGER, "").partition(" (")[0] for one in faults]


def setting(*entries: Json, at: int = 0) -> Json:
    made = complete()
    made["http_filters"].insert(at, {"name": "set", "typed_config": SETTING | {"metadata": list(entries)}})
    return made


NAMED = {"metadata_namespace": "extproc.policy", "value": {"policy": "default"}}
ROUTES = put(complete(), METADATA_OF, {"extproc.policy": {"policy": "default"}})
SHOWN = "request_attributes"
FORWARDED = "metadata_options.forwarding_namespaces"


@pytest.mark.parametrize(
    ("made", "faults"),
    [
        (complete(), []),
        (ROUTES, [f"{FILTER}{SHOWN}: wanted xds.route_metadata among them"]),
        (
            put(ROUTES, f"{FILTER}{SHOWN}", ["xds.route_name"]),
            [f"{FILTER}{SHOWN}: wanted xds.route_metadata among them"],
        ),
        (put(ROUTES, f"{FILTER}{SHOWN}", ["xds.route_metadata"]), []),
        (put(ROUTES, METADATA, asking("other")), [f"{METADATA}.1.value: wanted nothing"]),
        (put(ROUTES, METADATA, asking("")), [f"{FILTER}{SHOWN}: wanted xds.route_metadata among them"]),
        (put(complete(), METADATA_OF, {"other": {"policy": "default"}}), []),
        (setting(NAMED), [f"http_filters.1.typed_config.{FORWARDED}.untyped: wanted extproc.policy among them"]),
        (setting(NAMED | {"metadata_namespace": "other"}), []),
        (setting(NAMED, at=1), []),
        (put(setting(NAMED), "http_filters.0.disabled", True), []),
        (put(setting(NAMED), f"http_filters.1.typed_config.{FORWARDED}", {"untyped": ["extproc.policy"]}), []),
        (
            put(complete(), f"{HOST}typed_per_filter_config.set", SETTING | {"metadata": [NAMED]}),
            [f"{FILTER}{FORWARDED}.untyped: wanted extproc.policy among them"],
        ),
    ],
)
def test_policies_are_written_where_they_are_heard(made: Json, faults: list[str]) -> None:
    assert unheard(made) == faults
