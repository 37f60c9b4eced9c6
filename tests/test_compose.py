"""The system in containers: what its parts are told of each other."""

import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from extproc.address import TcpAddress
from extproc.agent.settings import AgentConfig
from extproc.children import nats_binary
from extproc.cli.reporting import agent
from extproc.config import Config, read

ROOT = Path(__file__).parent.parent
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
NAMES = {
    *SERVICES,
    *(alias for one in SERVICES.values() for net in one.get("networks", {}).values() for alias in net["aliases"]),
}
"""What can be reached from a container."""
AGENTS = {name: one["command"][1:] for name, one in SERVICES.items() if one["command"][:1] == ["agent"]}


def options(name: str) -> dict[str, list[str]]:
    """What an agent is told, by our own command line."""
    context = agent.make_context("agent", list(AGENTS[name]))
    return {key: list(value) for key, value in context.params.items() if isinstance(value, tuple)}


def config() -> Config:
    found = read(ROOT / "envoy" / "compose-extproc.yaml")
    assert isinstance(found, Config), found
    return found


def test_there_are_two_routers_of_one_name_with_one_configuration() -> None:
    first, second = SERVICES["extproc"], SERVICES["extproc-2"]
    assert first["command"] == second["command"] == ["serve", "--config", "/app/envoy/compose-extproc.yaml"]
    assert second["networks"]["default"]["aliases"] == ["extproc"]
    assert second["ports"] == [], "two cannot have one port of this machine"
    assert second["stop_grace_period"] == first["stop_grace_period"]


def test_routers_and_agents_meet_at_the_nats_server_that_runs(tmp_path: Path) -> None:
    nats = config().nats
    assert nats is not None
    urls = {*nats.servers, *(url for name in AGENTS for url in options(name)["nats"])}
    assert urls == {"nats://nats:4222"}
    assert {urlsplit(url).hostname for url in urls} <= NAMES
    command = SERVICES["nats"]["entrypoint"]
    assert command[0] == nats_binary().name
    assert command[command.index("--port") + 1] == "4222"
    some = tmp_path / "nats.conf"
    some.write_text("server_name: some")
    # Looks at all that it is told, and ends.
    subprocess.run([nats_binary(), *command[1:], "-c", some, "-t"], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_reports_to_all_routers_where_they_listen(name: str) -> None:
    told = options(name)
    parsed = AgentConfig.model_validate(
        {
            "routers": told["routers"],
            "nats": {"servers": told["nats"]},
            "engines": [{"node_id": name, "engine": "http://engine-1:8000", "host": "engine-1:8000"}],
        }
    )
    assert told["routers"] == ["dns:extproc:9004"]
    assert len(parsed.routers) == 1
    listen = config().listen.agents
    assert isinstance(listen, TcpAddress)
    host, _, port = told["routers"][0].removeprefix("dns:").rpartition(":")
    assert host in NAMES
    assert int(port) == listen.port


def test_the_image_has_all_that_the_bus_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras["nats"]) <= set(extras["demo"])
    assert "'.[demo]'" in (ROOT / "Dockerfile").read_text()
