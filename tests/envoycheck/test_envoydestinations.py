"""What `extproc check --envoy` finds of choices that have no effect, and of those that clients make."""

from typing import Any

import pytest
import yaml

from extproc.config import Config
from extproc.envoycheck import checks, trust
from extproc.envoycheck.destinations import faults_in
from extproc.envoycheck.file import Warned
from extproc.envoycheck.processors import Processors, processors_of
from tests.bootstraps import (
    DESTINATION,
    FILTER,
    HOST,
    LISTEN,
    MANAGER,
    METADATA,
    ROUTE,
    TYPE,
    asking,
    bootstrap,
    cluster,
    complete,
    complete_clusters,
    configured,
    early,
    in_metadata,
    original_dst,
    override_host,
    put,
    without,
)
from tests.rendered import rendered

Json = Any

PLAIN = Config()
PICKED = "x-gateway-destination-endpoint"
EARLY, RECEIVING = "early_header_mutation_extensions", f"{FILTER}metadata_options.receiving_namespaces"
BY_METADATA = configured(policies={"default": {"destination": "original-dst-metadata"}})
PICKING = configured(policies={"default": {"destination": "override-host"}})


def found(manager: Json, settings: Config = PLAIN, clusters: Json = None) -> list[str]:
    processors = processors_of(bootstrap(manager, clusters=clusters or complete_clusters()), LISTEN)
    assert isinstance(processors, Processors)
    faults = dict.fromkeys([*faults_in(processors, settings), *trust.faults_in(processors)])
    return [f"{'warning: ' * isinstance(one, Warned)}{one}".replace(MANAGER, "") for one in faults]


def single(name: str) -> Json:
    return put(complete(), f"{HOST}routes", [{"match": {"prefix": "/"}, "route": {"cluster": name}}])


def test_two_routes_by_the_header_have_no_faults() -> None:
    assert found(complete()) == []
    for match in ({"prefix": "/v1/"}, {"path": "/v1/models"}, {"safe_regex": {"regex": ".*"}}):
        both = put(put(complete(), f"{HOST}routes.1.match", match), f"{ROUTE}match", match)
        headers = complete()["route_config"]["virtual_hosts"][0]["routes"][0]["match"]["headers"]
        assert found(put(both, f"{ROUTE}match.headers", headers)) == [], match


@pytest.mark.parametrize(
    ("settings", "obeying", "others"),
    [
        (PLAIN, [original_dst("one")], [original_dst("one", metadata_key=in_metadata(DESTINATION))]),
        (BY_METADATA, [original_dst("one", metadata_key=in_metadata(DESTINATION))], [original_dst("one")]),
        (
            PICKING,
            [
                override_host(cluster("one", LISTEN), {"header": PICKED}),
                override_host(cluster("one", LISTEN), {"metadata": in_metadata(PICKED)}),
            ],
            [
                override_host(cluster("one", LISTEN), {"header": "x-other"}),
                override_host(cluster("one", LISTEN), {"metadata": in_metadata("other")}),
                original_dst("one"),
            ],
        ),
    ],
)
def test_a_route_leads_to_a_cluster_that_obeys(settings: Config, obeying: Json, others: Json) -> None:
    opened = put(
        put(single("one"), f"{FILTER}failure_mode_allow", False),
        EARLY,
        early({"remove_on_match": {"key_matcher": {"prefix": "x-"}}}),
    )
    for one in obeying:
        assert found(opened, settings, [*complete_clusters(), one]) == []
    for one in (cluster("one", LISTEN), original_dst("one", use_http_header=True, http_header_name="x-other"), *others):
        (fault,) = found(opened, settings, [*complete_clusters(), one])
        assert fault.startswith(f"{ROUTE}route.cluster: wanted a cluster "), one
        off = configured(policies={"default": {"mode": "observe"}})
        assert found(opened, off, [*complete_clusters(), one]) == []
    assert found(opened, settings) == [], "a cluster that is not told"
    aggregate = cluster("one", LISTEN) | {"cluster_type": {"name": "envoy.clusters.aggregate"}}
    assert found(opened, settings, [*complete_clusters(), aggregate]) == []


def composite(*names: str) -> Json:
    made = yaml.safe_load(rendered(failover=True))
    (_, _, one, _) = made["static_resources"]["clusters"]
    return put(one, "cluster_type.typed_config.clusters", [{"name": name} for name in names])


def test_of_a_composite_cluster_the_first_is_the_one_to_obey() -> None:
    failover = put(complete(), f"{ROUTE}route.cluster", "chosen-then-known")
    for names in (("chosen", "engines", "engines"), ("chosen",), ("not told", "engines")):
        assert found(failover, clusters=[*complete_clusters(), composite(*names)])[1:] == []
        assert (names[0] == "chosen") == (found(failover, clusters=[*complete_clusters(), composite(*names)]) == [])
    for names in (("engines", "engines"), ("engines", "chosen")):
        told = found(failover, clusters=[*complete_clusters(), composite(*names)])
        paths = [f"{HOST}routes.{number}.route.cluster: wanted a cluster of type ORIGINAL_DST" for number in (0, 1)]
        assert [one.partition(" with use")[0] for one in told] == paths
        assert all(one.endswith("got 'engines', STATIC without it") for one in told)


def test_clients_are_obeyed_by_any_of_a_composite_cluster() -> None:
    made = put(without(complete(), EARLY), f"{HOST}routes", [])
    for names, count in ((("chosen", "engines"), 1), (("engines", "chosen"), 1), (("engines",), 0)):
        routes = [{"match": {"prefix": "/"}, "route": {"cluster": "chosen-then-known"}}]
        told = found(put(made, f"{HOST}routes", routes), clusters=[*complete_clusters(), composite(*names)])
        assert len([one for one in told if f"removes {DESTINATION}" in one]) == count


def test_a_rendered_failover_has_no_faults() -> None:
    for destination in ("original-dst", "original-dst-metadata"):
        made = rendered(failover=True, destination=destination, routes=[{"prefix": "/v1/"}])
        processors = processors_of(yaml.safe_load(made), LISTEN)
        assert isinstance(processors, Processors)
        assert checks.faults_in(processors, configured(policies={"default": {"destination": destination}})) == []


def test_a_route_past_the_choice_needs_one_beside_it_for_the_same_paths() -> None:
    wanted = f"{HOST}routes.1.route.cluster: wanted a cluster of type ORIGINAL_DST"
    for at, value in (
        (f"{ROUTE}match.prefix", "/v1/"),
        (f"{ROUTE}match.headers", [{"name": DESTINATION, "present_match": False}]),
        (f"{ROUTE}match.headers", [{"name": DESTINATION, "present_match": True, "invert_match": True}]),
        (f"{ROUTE}route.cluster", "engines"),
    ):
        faults = found(put(complete(), at, value))
        assert any(one.startswith(wanted) for one in faults), (at, value, faults)
    asks = put(complete(), METADATA, asking("%REQ(x)%"))
    assert found(put(asks, f"{ROUTE}match.prefix", "/v1/"), configured(policies={"a": {}})) == [], "not known which"


def test_each_cluster_of_a_weighted_route_obeys() -> None:
    weighted = {"weighted_clusters": {"clusters": [{"name": "engines", "weight": 1}, {"name": "chosen", "weight": 1}]}}
    (fault,) = found(put(put(single("x"), f"{ROUTE}route", weighted), f"{FILTER}failure_mode_allow", False))
    assert fault.startswith(f"{ROUTE}route.weighted_clusters: wanted a cluster of type ORIGINAL_DST")
    assert fault.endswith("got 'engines', STATIC without it")


def test_the_metadata_of_a_choice_is_received() -> None:
    closed = put(put(single("one"), f"{FILTER}failure_mode_allow", False), EARLY, early({"remove": PICKED}))
    clusters = [*complete_clusters(), original_dst("one", metadata_key=in_metadata(DESTINATION))]
    without_lb = put(closed, RECEIVING, {"untyped": ["extproc"]})
    why = "(destination original-dst-metadata of policy default)"
    assert found(without_lb, BY_METADATA, clusters) == [
        f"{RECEIVING}.untyped: wanted envoy.lb among them {why}, got ['extproc']"
    ]
    clusters[-1] = override_host(cluster("one", LISTEN), {"header": PICKED})
    (fault,) = found(without_lb, PICKING, clusters)
    assert fault.startswith("warning: ")
    assert found(put(complete(), RECEIVING, {"untyped": ["extproc"]})) == []
    (fault,) = found(put(complete(), RECEIVING, None))
    assert fault.startswith(f"{RECEIVING}.untyped: wanted extproc among them (else serve knows none of its requests")
    off = configured(policies={"default": {"mode": "off"}})
    assert found(put(complete(), RECEIVING, None), off) == []


def test_clients_cannot_name_a_destination() -> None:
    wanted = f"{EARLY}: wanted a HeaderMutation that removes {DESTINATION} (else clients can name any address where"
    (fault,) = found(without(complete(), EARLY))
    assert fault.startswith(wanted)
    assert fault.endswith("got nothing")
    (fault,) = found(put(complete(), EARLY, early({"remove": PICKED})))
    assert fault.endswith("got others")
    mutation: Json = {"@type": f"{TYPE}extensions.filters.http.header_mutation.v3.HeaderMutation"}
    mutation["mutations"] = {"request_mutations": [{"remove": DESTINATION}]}
    first = {"name": "first", "typed_config": mutation}
    made = without(complete(), EARLY)
    made["http_filters"].insert(0, first)
    assert found(made) == []
    made["http_filters"][0] = first | {"disabled": True}
    assert len(found(made)) == 1
    made["http_filters"] = [*complete()["http_filters"][:1], first]
    (fault,) = found(made)
    assert fault.startswith(f"http_filters.1.typed_config.mutations.request_mutations.0: wanted no {DESTINATION} (")
    picking = override_host(cluster("one", LISTEN), {"header": PICKED})
    (fault,) = found(single("one"), PICKING, [*complete_clusters(), picking])
    assert fault.startswith(
        f"warning: {EARLY}: wanted a HeaderMutation that removes {PICKED} (else clients can name a node"
    )


@pytest.mark.parametrize("at", [ROUTE, HOST, "route_config."])
def test_the_choice_is_not_removed_again(at: str) -> None:
    path = f"{at}request_headers_to_remove"
    (fault,) = found(put(complete(), path, ["x-other", DESTINATION.title()]))
    assert fault.startswith(f"{path}.1: wanted no {DESTINATION} (the choice is removed too:")


def test_routes_are_chosen_anew() -> None:
    for field, value in (
        ("route_cache_action", "RETAIN"),
        ("route_cache_action", 2),
        ("disable_clear_route_cache", True),
    ):
        (fault,) = found(put(complete(), f"{FILTER}{field}", value))
        assert fault.startswith(f"{FILTER}{field}: wanted ")
        closed = put(put(single("chosen"), f"{FILTER}failure_mode_allow", False), f"{FILTER}{field}", value)
        assert found(closed) == [], "one route is enough"
    for value in ("CLEAR", "DEFAULT", 1):
        assert found(put(complete(), f"{FILTER}route_cache_action", value)) == []


def test_what_fails_open_has_somewhere_to_go() -> None:
    (fault,) = found(single("chosen"))
    assert fault.startswith(f"warning: {ROUTE}match.headers: wanted {DESTINATION} present, and a second route")
    assert found(put(single("chosen"), f"{FILTER}failure_mode_allow", False)) == []
    (fault,) = found(put(complete(), f"{HOST}routes.1.match.prefix", "/v1/"))
    assert fault.startswith(f"warning: {ROUTE}match: wanted a second route for the same paths without this header")
