"""Workers of `serve` in what is rendered."""

from typing import Any

import pytest
from click.testing import CliRunner

from extproc import cli
from extproc.render.clusters import processor_cluster
from extproc.render.description import Description, parse
from extproc.render.envoygateway import EnvoyGateway, resources
from tests.rendered import mapping_of


@pytest.mark.parametrize(
    ("processor", "endpoints"),
    [
        (["127.0.0.1:9002"], ["127.0.0.1:9002", "127.0.0.1:9012", "127.0.0.1:9022"]),
        (["unix:/run/e"], ["unix:/run/e", "unix:/run/e.1", "unix:/run/e.2"]),
        (["a:9002", "b:9002"], ["a:9002", "a:9012", "a:9022", "b:9002", "b:9012", "b:9022"]),
    ],
)
def test_each_worker_of_each_extproc_is_an_endpoint(processor: list[str], endpoints: list[str]) -> None:
    found = parse({"processor": processor, "workers": 3, "nodes": ["10.0.0.1:8000"]})
    assert isinstance(found, Description), found
    assert [str(one) for one in found.endpoints] == endpoints
    cluster = processor_cluster(found)
    (locality,) = cluster["load_assignment"]["endpoints"]
    assert len(locality["lb_endpoints"]) == len(endpoints)
    assert cluster["lb_policy"] == "ROUND_ROBIN"
    assert cluster["outlier_detection"]["max_ejection_percent"] == 50
    assert "outlier_detection" not in processor_cluster(Description())


@pytest.mark.parametrize(
    ("mapping", "wanted"),
    [
        ({"processor": ["127.0.0.1:65530"]}, "ports up to 65535 for all workers (127.0.0.1:65540)"),
        ({"processor": ["127.0.0.1:9002", "127.0.0.1:9012"]}, "addresses of `processor` that are no worker's"),
        ({"workers": 17}, "less than or equal to 16"),
    ],
)
def test_workers_without_an_address_of_their_own_are_a_fault(mapping: dict[str, Any], wanted: str) -> None:
    found = parse({"workers": 2} | mapping)
    assert isinstance(found, list)
    assert wanted in found[0].wanted


def test_envoy_gateway_has_a_port_of_the_service_for_each_worker() -> None:
    mapping = {"destination": "override-host", "processor": ["extproc:9002"], "nodes": ["10.0.0.7:8000"], "workers": 2}
    found = parse(mapping)
    assert isinstance(found, Description)
    made = resources(found, EnvoyGateway())
    refs = [{"name": "extproc", "port": 9002}, {"name": "extproc", "port": 9012}]
    (policy,) = (one["spec"] for one in made if one["kind"] == "EnvoyExtensionPolicy")
    assert policy["extProc"][0]["backendRefs"] == refs


def test_the_option_says_it_too() -> None:
    done = CliRunner().invoke(cli.main, ["render", "bootstrap", "--node", "10.0.0.1:8000", "--workers", "2"])
    assert done.exit_code == 0, done.output
    assert "port_value: 9012" in done.stdout
    assert "take turns" in done.stdout


def test_several_envoys_of_one_machine_have_pages_of_their_own() -> None:
    described = ["render", "bootstrap", "--node", "10.0.0.1:8000"]
    for options, port in ([], 9901), (["--admin", "127.0.0.1:9911"], 9911):
        done = CliRunner().invoke(cli.main, [*described, *options])
        assert done.exit_code == 0, done.output
        admin = mapping_of(done.stdout)["admin"]["address"]["socket_address"]
        assert admin == {"address": "127.0.0.1", "port_value": port}
    done = CliRunner().invoke(cli.main, [*described, "--admin", "9911"])
    assert (done.exit_code, done.stderr.startswith("--admin: wanted ")) == (1, True)
