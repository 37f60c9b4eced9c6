import operator
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc import cli
from extproc.render.bootstrap import bootstrap, render
from extproc.render.clusters import has_known
from extproc.render.description import Description, parse
from extproc.render.notes import notes
from extproc.render.parts import ROUTING_HEADERS
from tests.rendered import SHIPPED, described

NODES = ["10.0.0.1:8000", "10.0.0.2:8000"]
TLS = {"ca": "/ca.pem", "certificate": "/one.pem", "key": "/one.key", "name": "engines"}
TWO_ROUTES = "fail_open: wanted false, or destination override-host"
POLICIES = st.sampled_from(["default", {"strategy": "round-robin"}])
ROUTES = st.fixed_dictionaries(
    {"prefix": st.sampled_from(["/", "/v1/", "/batch/v1/"])},
    optional={
        "rewrite": st.just("/v1/"),
        "name": st.sampled_from(["a", "b"]),
        "policy": POLICIES,
        "first_tokens": st.booleans(),
    },
)
DESTINATIONS = st.sampled_from(["original-dst", "original-dst-metadata", "override-host"])
MAPPINGS = st.fixed_dictionaries(
    {"nodes": st.just(NODES)},
    optional={
        "destination": DESTINATIONS,
        "destinations_max": st.integers(1, 16),
        "body_mode": st.sampled_from(["buffered", "full-duplex", "streamed", "buffered-partial", "none"]),
        "processor": st.sampled_from([["extproc:9002"], ["unix:/run/a", "unix:/run/b"], ["10.0.0.9:1", "10.0.0.8:1"]]),
        "several_processors": st.booleans(),
        "processor_tls": st.just(TLS),
        "node_tls": st.sampled_from([TLS, {"ca": "/ca.pem"}, {"ca": "/ca.pem", "name": "10.0.0.1"}]),
        "node_http2": st.booleans(),
        "health_path": st.none(),
        "fail_open": st.booleans(),
        "routes": st.lists(ROUTES, min_size=1, max_size=3),
        "policy": POLICIES,
        "route_metadata": st.booleans(),
        "headers_shown": st.just(["x-tenant"]),
        "metadata_shown": st.just(["envoy.filters.http.jwt_authn"]),
        "websockets": st.booleans(),
        "usage": st.booleans(),
        "decision_headers": st.booleans(),
    },
)


def described_by(mapping: Any) -> Description:
    found = parse(mapping)
    assert isinstance(found, Description), found
    return found


def renderable(mapping: Any) -> Any:
    """With one route where two are refused."""
    if mapping.get("body_mode") == "buffered-partial" and mapping.get("destination") != "override-host":
        return mapping | {"fail_open": False, "failover": False}
    return mapping


WITH_FAILOVER = st.fixed_dictionaries(
    {
        "destination": st.sampled_from(["original-dst", "original-dst-metadata"]),
        "failover": st.just(value=True),
        "fail_open": st.just(value=True),
        "health_path": st.just("/health"),
    }
)
DESCRIPTIONS = st.builds(operator.or_, MAPPINGS, st.just({}) | WITH_FAILOVER).map(renderable).map(described_by)


def manager(found: Any) -> Any:
    return found["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def processor(found: Any) -> Any:
    (one,) = (one for one in manager(found)["http_filters"] if one["name"] == "envoy.filters.http.ext_proc")
    return one["typed_config"]


def routes(found: Any) -> Any:
    return manager(found)["route_config"]["virtual_hosts"][0]["routes"]


@pytest.mark.parametrize("name", ["bootstrap", "demo"])
def test_the_shipped_files_are_fresh(name: str) -> None:
    assert render(described(name)) == (SHIPPED / f"{name}.yaml").read_text(), "make envoy"


@settings(max_examples=10)
@given(DESCRIPTIONS)
def test_what_is_written_is_what_envoys_types_have_checked(d: Description) -> None:
    text = render(d)
    assert isinstance(text, str)
    assert yaml.safe_load(text) == bootstrap(d)


@given(DESCRIPTIONS)
def test_clients_can_set_no_routing_header(d: Description) -> None:
    (early,) = manager(bootstrap(d))["early_header_mutation_extensions"]
    assert {one["remove"] for one in early["typed_config"]["mutations"]} >= set(ROUTING_HEADERS)
    assert manager(bootstrap(d))["use_remote_address"] is True, "else x-envoy-retry-on and its like are obeyed"


@given(DESCRIPTIONS)
def test_extproc_may_say_what_it_has_to_and_no_more(d: Description) -> None:
    rules = processor(bootstrap(d))["mutation_rules"]
    allowed = rules["allow_expression"]["regex"].split("|")
    assert rules["disallow_all"] is True
    assert {"content-length", "content-type", "retry-after"} < set(allowed)
    told = {"original-dst": ["x-envoy-original-dst-host"], "override-host": ["x-gateway-destination-endpoint"]}
    assert [one for one in allowed if one in ROUTING_HEADERS] == told.get(d.destination, [])
    received = processor(bootstrap(d))["metadata_options"]["receiving_namespaces"]["untyped"]
    assert ("envoy.lb" in received) == (d.destination != "original-dst")


@given(DESCRIPTIONS)
def test_nothing_but_the_destination_makes_the_expression_longer(d: Description) -> None:
    """Envoy's limit for it is small: that it takes each destination's is tried in test_bootstrap_valid.py."""
    ours = processor(bootstrap(d))["mutation_rules"]
    assert ours == processor(bootstrap(Description(destination=d.destination)))["mutation_rules"]


@given(DESCRIPTIONS)
def test_extprocs_stream_lasts_until_the_answer_ends(d: Description) -> None:
    modes = [processor(bootstrap(d))["processing_mode"]]
    for route in routes(bootstrap(d)):
        (per_route,) = route.get("typed_per_filter_config", {"": {}}).values()
        modes += [mode] if (mode := per_route.get("overrides", {}).get("processing_mode")) else []
    for mode in modes:
        assert (mode["request_header_mode"], mode["response_trailer_mode"]) == ("SEND", "SEND")
        assert (mode["request_trailer_mode"] == "SEND") == (mode["request_body_mode"] == "FULL_DUPLEX_STREAMED")
        assert d.destination != "override-host" or mode["response_header_mode"] == "SEND"


@given(DESCRIPTIONS)
def test_no_cluster_stops_at_envoys_default_of_1024_requests(d: Description) -> None:
    for cluster in bootstrap(d)["static_resources"]["clusters"]:
        (threshold,) = cluster["circuit_breakers"]["thresholds"]
        assert min(threshold[key] for key in ("max_connections", "max_pending_requests", "max_requests")) >= 100_000


@given(DESCRIPTIONS)
def test_every_route_leads_to_a_cluster_that_is_there_and_generations_have_time(d: Description) -> None:
    there = {one["name"] for one in bootstrap(d)["static_resources"]["clusters"]}
    led_to = there - {"extproc"} - ({"chosen-node"} if d.failover else set())
    actions = [one["route"] for one in routes(bootstrap(d)) if "route" in one]
    assert {one["cluster"] for one in actions} == led_to
    assert {one["timeout"] for one in actions} == {"0s"}
    assert len(actions) == len(d.routes) * len(led_to)


@given(DESCRIPTIONS)
def test_retries_are_as_many_as_there_are_nodes_to_try(d: Description) -> None:
    clusters = {one["name"]: one for one in bootstrap(d)["static_resources"]["clusters"]}
    for action in (one["route"] for one in routes(bootstrap(d)) if "route" in one):
        streams = d.body_mode in ("streamed", "buffered-partial") and d.destination != "override-host"
        if streams and action["cluster"] != "chosen-then-known":
            assert "retry_policy" not in action, "when extproc fails nodes would get what they have once more"
            continue
        retries = action["retry_policy"]["num_retries"]
        kind = clusters[action["cluster"]].get("cluster_type")
        if d.destination == "override-host":
            assert retries == max(1, d.destinations_max - 1)
        elif kind is None:
            assert retries == 1
        else:
            attempts = [one["name"] for one in kind["typed_config"]["clusters"]]
            assert (attempts[0], retries) == ("chosen-node", len(attempts) - 1), "one more would be 503"
            assert attempts[1:]
            assert set(attempts[1:]) == {"known-nodes"} < set(clusters)


@given(DESCRIPTIONS)
def test_what_a_route_says_about_policy_stands_on_both_of_its_routes(d: Description) -> None:
    served = [one for one in routes(bootstrap(d)) if "route" in one]
    if d.destination == "override-host" or not has_known(d):
        return
    for chosen, known in zip(served[::2], served[1::2], strict=True):
        assert chosen.get("typed_per_filter_config") == known.get("typed_per_filter_config")
        assert chosen["match"]["prefix"] == known["match"]["prefix"]
        assert "headers" in chosen["match"] or "dynamic_metadata" in chosen["match"]
        assert set(known["match"]) == {"prefix"}


@given(DESCRIPTIONS)
def test_engines_other_pages_and_adapters_are_not_for_clients(d: Description) -> None:
    first, *_, last = routes(bootstrap(d))
    assert first["name"] == "no-adapters"
    assert first["direct_response"]["status"] == 404
    everything = any(one.prefix == "/" for one in d.routes)
    assert everything or (last["match"], last["direct_response"]["status"]) == ({"prefix": "/"}, 404)


def test_every_note_is_written_somewhere() -> None:
    unwritten: dict[str, set[bool]] = {}
    for destination in ("original-dst", "original-dst-metadata", "override-host"):
        for body_mode in ("buffered", "full-duplex"):
            route = {"prefix": "/v1/", "policy": "batch", "first_tokens": body_mode == "buffered"}
            d = described_by(
                {
                    "nodes": NODES,
                    "destination": destination,
                    "failover": destination == "original-dst-metadata",
                    "body_mode": body_mode,
                    "routes": [route],
                    "usage": True,
                    "decision_headers": True,
                    "route_metadata": True,
                    "node_tls": TLS,
                    "processor_tls": TLS,
                }
            )
            text = " ".join(str(render(d)).replace("#", " ").split())
            for path, note in notes(d).items():
                unwritten.setdefault(path, set()).add(" ".join(note.split()) in text)
    assert [path for path, written in unwritten.items() if True not in written] == []


@pytest.mark.parametrize(
    "options",
    [["--destination", "override-host"], ["--fail-closed", "--destination", "override-host"], []],
)
def test_nodes_are_asked_for_where_envoy_needs_them(options: list[str]) -> None:
    result = CliRunner().invoke(cli.main, ["render", "bootstrap", *options])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("--node: wanted at least one: o")
    assert CliRunner().invoke(cli.main, ["render", "bootstrap", "--node", "a:1", *options]).exit_code == 0


@pytest.mark.parametrize("destination", ["original-dst", "original-dst-metadata", "override-host"])
@pytest.mark.parametrize("body_mode", ["buffered", "full-duplex", "streamed", "buffered-partial", "none"])
@pytest.mark.parametrize("is_open", [True, False])
def test_two_routes_are_refused_where_envoy_would_stay_on_the_first(
    destination: str, body_mode: str, is_open: bool
) -> None:
    given = {"nodes": NODES, "destination": destination, "body_mode": body_mode, "fail_open": is_open}
    made = render(described_by(given))
    if is_open and body_mode == "buffered-partial" and destination != "override-host":
        assert [str(one).partition(": with")[0] for one in made] == [TWO_ROUTES]
    else:
        assert isinstance(made, str)


def test_options_say_what_a_description_says() -> None:
    options = (
        "--listen 0.0.0.0:80 --destination original-dst-metadata --body-mode full-duplex --processor a:1"
        " --processor b:2 --node c:3 --fail-closed --tls-ca /ca --tls-certificate /one --tls-key /key"
        " --tls-name extproc --node-tls-ca /nodes --node-tls-name engines"
    )
    result = CliRunner().invoke(cli.main, ["render", "bootstrap", *options.split()])
    assert result.exit_code == 0, result.stderr
    wanted = {
        "listen": "0.0.0.0:80",
        "destination": "original-dst-metadata",
        "body_mode": "full-duplex",
        "processor": ["a:1", "b:2"],
        "nodes": ["c:3"],
        "fail_open": False,
        "processor_tls": {"ca": "/ca", "certificate": "/one", "key": "/key", "name": "extproc"},
        "node_tls": {"ca": "/nodes", "name": "engines"},
    }
    assert result.stdout == render(described_by(wanted))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--node", "here"], "--node: wanted host:port, [ipv6]:port or unix:/path, got 'here'\n"),
        (["--node-tls-name", "engines"], "--node-tls-ca: wanted a value, got nothing\n"),
        (["--tls-ca", "/ca", "--tls-key", "/key"], "--tls-ca: wanted certificate and key, or neither, got "),
    ],
)
def test_faults_name_the_option(options: list[str], told: str) -> None:
    result = CliRunner().invoke(cli.main, ["render", "bootstrap", *options])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(told)


def test_a_description_and_options_are_not_mixed() -> None:
    file = str(SHIPPED / "demo.render.yaml")
    assert CliRunner().invoke(cli.main, ["render", "bootstrap", "--description", file]).exit_code == 0
    result = CliRunner().invoke(cli.main, ["render", "bootstrap", "--description", file, "--node", "a:1"])
    assert (result.exit_code, "no other option" in result.stderr) == (2, True)
    result = CliRunner().invoke(cli.main, ["render", "bootstrap", "--description", "/nowhere.yaml"])
    assert (result.exit_code, result.stderr) == (
        1,
        "/nowhere.yaml: wanted a readable file, got No such file or directory\n",
    )
