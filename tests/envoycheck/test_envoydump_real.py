"""A dump of what the real Envoy runs gives the findings that its bootstrap gives, however Envoy was told."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from extproc.address import TcpAddress
from extproc.children import Child, envoy_binary
from extproc.config import Config
from extproc.core.settings import Fault
from extproc.envoycheck.checks import faults_in_file
from tests.bootstraps import (
    FILTER,
    HOST,
    JWT,
    LISTEN,
    TYPE,
    bootstrap,
    complete,
    complete_clusters,
    configured,
    listener,
    manager,
    put,
)
from tests.waiting import until

Json = Any

DEMO = Path(__file__).parent.parent.parent / "envoy" / "demo.yaml"
STRICT = configured(
    policies={
        "default": {"tenant_header": "x-tenant"},
        "other": {"tenant_metadata": f"{JWT}:a"},
    },
    classes=[{"name": "slow", "queue_ms_max": 3_600_000}],
    default_class="slow",
    limits={"body_bytes_max": 2**30, "body_bytes_total_max": 2**30},
)
"""Wants more than anybody gives."""
LOST = put(put(manager(), f"{FILTER}mutation_rules", {"disallow_all": True}), f"{FILTER}message_timeout", "1s")


async def dumped(folder: Path, document: Json) -> Path:
    """What the admin page tells of an Envoy with this bootstrap."""
    socket = f"{folder}/admin"
    document["admin"] = {"address": {"pipe": {"path": socket}}}
    (folder / "envoy.json").write_text(json.dumps(document))
    command: list[str | Path] = [envoy_binary(), "--config-path", folder / "envoy.json"]
    envoy = await Child.start("envoy", [*command, "--concurrency", "1", "--disable-hot-restart"], folder)

    async def page(path: str) -> bytes | None:
        envoy.check()
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(socket)) as session,
                session.get(f"http://envoy{path}") as answer,
            ):
                return await answer.read() if answer.status == 200 else None
        except aiohttp.ClientError:
            return None

    try:
        await until(lambda: page("/ready"), within_s=30)
        content = await page("/config_dump?include_eds")
    finally:
        await envoy.stop()
    assert content is not None
    (folder / "dump.json").write_bytes(content)
    return folder / "dump.json"


def told(path: Path, settings: Config) -> list[Fault]:
    return [Fault(one.path.removeprefix(f"{path}: "), one.wanted, one.got) for one in faults_in_file(path, settings)]


async def test_a_dump_of_the_shipped_bootstrap_gives_its_findings(tmp_path: Path) -> None:
    document = yaml.safe_load(DEMO.read_text())
    for number, one in enumerate(document["static_resources"]["listeners"]):
        one["address"] = {"pipe": {"path": f"{tmp_path}/{number}"}}
    path = await dumped(tmp_path, document)
    assert told(path, Config()) == told(tmp_path / "envoy.json", Config()) == []
    found = told(path, STRICT)
    assert [one.path for one in found] == [one.path for one in told(tmp_path / "envoy.json", STRICT)]
    assert len(found) > 3


async def test_what_envoy_is_told_by_xds_gives_the_same_findings(tmp_path: Path) -> None:
    """Listeners, clusters, endpoints and routes from files, as from a control plane."""

    def served(name: str, kind: str, *resources: Json) -> Json:
        typed = [{"@type": f"{TYPE}config.{kind}"} | one for one in resources]
        (tmp_path / name).write_text(json.dumps({"resources": typed}))
        return {"path_config_source": {"path": f"{tmp_path}/{name}"}, "resource_api_version": "V3"}

    managers = [complete(), put(LOST, f"{HOST}routes.0.route.cluster", "engines")]
    clusters = complete_clusters(TcpAddress("127.0.0.1", 9002), TcpAddress("127.0.0.1", 9003))
    plain = bootstrap(*managers, clusters=clusters)
    (tmp_path / "plain.json").write_text(json.dumps(plain))
    wanted = {(one.wanted, one.got) for one in told(tmp_path / "plain.json", STRICT)}

    listeners = []
    for number, one in enumerate(managers):
        table = {"name": f"table-{number}"} | one.pop("route_config")
        source = served(f"rds-{number}", "route.v3.RouteConfiguration", table)
        one["rds"] = {"route_config_name": f"table-{number}", "config_source": source}
        address = {"pipe": {"path": f"{tmp_path}/{number}"}}
        listeners.append({"name": f"listener-{number}"} | listener(one, address))
    eds = served("eds", "endpoint.v3.ClusterLoadAssignment", clusters[0].pop("load_assignment"))
    clusters[0] |= {"type": "EDS", "eds_cluster_config": {"eds_config": eds}}
    dynamic = {
        "lds_config": served("lds", "listener.v3.Listener", *listeners),
        "cds_config": served("cds", "cluster.v3.Cluster", *clusters),
    }
    path = await dumped(tmp_path, {"node": {"id": "a", "cluster": "b"}, "dynamic_resources": dynamic})
    found = told(path, STRICT)
    assert {(one.wanted, one.got) for one in found} == wanted
    assert all(one.path.startswith("dynamic_resources.") for one in found), found
    assert any(one.path.startswith("dynamic_resources.listeners.listener-1.filter_chains.0.") for one in found)
    assert LISTEN.port == 9002, "ours are found by the endpoints, which stand apart"
