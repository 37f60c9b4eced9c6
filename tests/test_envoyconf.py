import asyncio
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.address import TcpAddress, UnixAddress
from extproc.children import envoy_binary
from extproc.config import Config, read
from extproc.core.policy import RoutingPolicy, policy_from_mapping
from extproc.envoyconf import bootstrap_json, place, read_bootstrap
from tests.rendered import first_tokens_shown, rendered

SHIPPED = Path(__file__).parent.parent / "envoy"
DEMO = SHIPPED / "demo.yaml"
BOOTSTRAP = SHIPPED / "bootstrap.yaml"
OS_PORT = TcpAddress("127.0.0.1", 0)


async def validate(config: Path) -> None:
    envoy = await asyncio.create_subprocess_exec(
        envoy_binary(),
        *("--mode", "validate", "--config-path", str(config)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await envoy.communicate()
    assert envoy.returncode == 0, output.decode()


def hcm(bootstrap: str) -> Any:
    return yaml.safe_load(bootstrap)["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]


@pytest.mark.parametrize("path", [DEMO, BOOTSTRAP], ids=lambda path: path.name)
async def test_envoy_accepts_the_shipped_bootstraps(path: Path) -> None:
    await validate(path)


@pytest.mark.parametrize("path", [DEMO, BOOTSTRAP], ids=lambda path: path.name)
async def test_envoy_accepts_a_bootstrap_that_was_read_and_written(path: Path, tmp_path: Path) -> None:
    written = tmp_path / "envoy.json"
    written.write_text(bootstrap_json(read_bootstrap(path)))
    await validate(written)


async def test_envoy_accepts_the_bootstrap_with_its_option_for_first_tokens(tmp_path: Path) -> None:
    shown = tmp_path / "envoy.yaml"
    shown.write_text(first_tokens_shown("bootstrap"))
    await validate(shown)


def test_a_route_that_wants_first_tokens_changes_what_is_shown_of_answers_and_nothing_else() -> None:
    (host,) = hcm(first_tokens_shown("bootstrap"))["typed_config"]["route_config"]["virtual_hosts"]
    *_, ext_proc, _ = hcm(BOOTSTRAP.read_text())["typed_config"]["http_filters"]
    usual = ext_proc["typed_config"]["processing_mode"]
    (route,) = (one for one in host["routes"] if one["name"] == "known")
    overrides = route["typed_per_filter_config"]["envoy.filters.http.ext_proc"]["overrides"]
    shown = {"response_header_mode": "SEND", "response_body_mode": "STREAMED"}
    assert overrides["processing_mode"] == usual | shown
    assert usual | shown != usual
    (metadata,) = overrides["grpc_initial_metadata"]
    policy = policy_from_mapping(json.loads(metadata["value"]))
    assert policy == RoutingPolicy(name="first-tokens", leave_after_first_token=True)


def test_reading_and_writing_loses_nothing(tmp_path: Path) -> None:
    once = bootstrap_json(read_bootstrap(DEMO))
    written = tmp_path / "envoy.json"
    written.write_text(once)
    assert bootstrap_json(read_bootstrap(written)) == once
    for key in ("failureModeAllow", "earlyHeaderMutationExtensions", "previous_hosts", "x-extproc-policy", "batch"):
        assert key in once


async def test_placed_addresses_replace_those_of_the_file(tmp_path: Path) -> None:
    bootstrap = read_bootstrap(DEMO)
    nodes = [TcpAddress("127.0.0.1", 7001), TcpAddress("::1", 7002)]
    place(
        bootstrap,
        admin=OS_PORT,
        listeners={"llm": OS_PORT},
        clusters={"extproc": [UnixAddress("/tmp/extproc.sock")], "known-nodes": nodes},
    )
    resources = bootstrap.to_dict()["staticResources"]
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}

    def addresses(cluster: str) -> list[Any]:
        endpoints = clusters[cluster]["loadAssignment"]["endpoints"]
        return [one["endpoint"]["address"] for group in endpoints for one in group["lbEndpoints"]]

    assert resources["listeners"][0]["address"] == {"socketAddress": {"address": "127.0.0.1", "portValue": 0}}
    assert addresses("extproc") == [{"pipe": {"path": "/tmp/extproc.sock"}}]
    assert addresses("known-nodes") == [
        {"socketAddress": {"address": "127.0.0.1", "portValue": 7001}},
        {"socketAddress": {"address": "::1", "portValue": 7002}},
    ]
    written = tmp_path / "envoy.json"
    written.write_text(bootstrap_json(bootstrap))
    await validate(written)


def test_a_name_that_the_bootstrap_does_not_have_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no engines, web"):
        place(read_bootstrap(DEMO), admin=OS_PORT, listeners={"web": OS_PORT}, clusters={"engines": [OS_PORT]})


def test_a_cluster_without_endpoints_takes_no_addresses() -> None:
    with pytest.raises(ValueError, match="chosen-node"):
        place(read_bootstrap(DEMO), admin=OS_PORT, listeners={}, clusters={"chosen-node": [OS_PORT]})


def test_a_misspelt_field_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "envoy.yaml"
    path.write_text("static_resource: {}")
    with pytest.raises(KeyError, match="static_resource"):
        read_bootstrap(path)


def test_an_extension_that_envoy_does_not_have_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "envoy.yaml"
    path.write_text(
        '{"stats_sinks": [{"name": "x", "typed_config": {"@type": "type.googleapis.com/envoy.nothing.v3.X"}}]}'
    )
    with pytest.raises(ModuleNotFoundError):
        read_bootstrap(path)


@pytest.mark.parametrize("made", [rendered, first_tokens_shown])
def test_the_two_bootstraps_differ_in_nothing_but_the_demos_headers_and_the_addresses(
    made: Callable[[str], str],
) -> None:
    demo, bootstrap = hcm(made("demo")), hcm(made("bootstrap"))
    (demo_host,) = demo["typed_config"]["route_config"]["virtual_hosts"]
    headers = demo_host.pop("response_headers_to_add")
    assert {one["header"]["key"].rpartition("-")[0] for one in headers} == {"x-extproc"}
    assert demo == bootstrap

    clusters = [yaml.safe_load(path.read_text())["static_resources"]["clusters"] for path in (DEMO, BOOTSTRAP)]
    for cluster in (one for file in clusters for one in file):
        cluster.pop("type")
        cluster.pop("load_assignment", None)
    assert clusters[0] == clusters[1]
    overload = [yaml.safe_load(path.read_text())["overload_manager"] for path in (DEMO, BOOTSTRAP)]
    assert overload[0] == overload[1]


@pytest.mark.parametrize("path", [DEMO, BOOTSTRAP], ids=lambda path: path.name)
def test_no_cluster_stops_at_envoys_default_of_1024_requests(path: Path) -> None:
    clusters = yaml.safe_load(path.read_text())["static_resources"]["clusters"]
    assert {one["name"] for one in clusters} == {"chosen-node", "known-nodes", "extproc"}
    for cluster in clusters:
        (threshold,) = cluster["circuit_breakers"]["thresholds"]
        assert min(threshold[key] for key in ("max_connections", "max_pending_requests", "max_requests")) >= 100_000


@pytest.mark.parametrize("made", [rendered, first_tokens_shown])
def test_both_routes_of_a_prefix_say_the_same_but_for_cluster_and_retries(made: Callable[[str], str]) -> None:
    (host,) = hcm(made("bootstrap"))["typed_config"]["route_config"]["virtual_hosts"]
    routes = [route for route in host["routes"] if "route" in route]
    assert len(routes) == 4
    for chosen, known in zip(routes[::2], routes[1::2], strict=True):
        assert chosen["match"].pop("headers") == [{"name": "x-envoy-original-dst-host", "present_match": True}]
        assert (chosen["route"].pop("cluster"), known["route"].pop("cluster")) == ("chosen-node", "known-nodes")
        for route in (chosen, known):
            route.pop("name")
            retries = route["route"].pop("retry_policy")
            assert (retries["retry_on"], retries["num_retries"]) == ("reset", 1)
        assert chosen == known


def test_memory_is_given_back_before_requests_are_refused() -> None:
    overload = yaml.safe_load(BOOTSTRAP.read_text())["overload_manager"]
    thresholds = {}
    for action in overload["actions"]:
        (trigger,) = action["triggers"]
        assert trigger["name"] == "envoy.resource_monitors.fixed_heap"
        thresholds[action["name"].removeprefix("envoy.overload_actions.")] = trigger["threshold"]["value"]
    assert 0.5 < thresholds["shrink_heap"] < thresholds["stop_accepting_requests"] < 1


def test_compose_publishes_every_port_on_loopback_only() -> None:
    services = yaml.safe_load((SHIPPED.parent / "docker-compose.yml").read_text())["services"]
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert "127.0.0.1:8080:8080" in published
    assert all(port.startswith("127.0.0.1:") for port in published), published


def test_agents_in_containers_can_name_private_addresses_and_not_loopback() -> None:
    config = read(SHIPPED / "compose-extproc.yaml")
    assert isinstance(config, Config), config
    allowed = [str(network) for network in config.hosts_allowed]
    assert "172.16.0.0/12" in allowed
    assert not any(network.startswith(("127.", "::1")) for network in allowed)


def test_the_folder_of_envoy_files_never_shadows_envoys_packages() -> None:
    spec = importlib.util.find_spec("envoy")
    assert spec is not None
    assert not any(Path(place).is_relative_to(SHIPPED) for place in spec.submodule_search_locations or ())
