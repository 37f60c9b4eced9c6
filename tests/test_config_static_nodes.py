"""Nodes that stand in the configuration of `serve`."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from extproc.config import Config, parse
from extproc.core.settings import BalancerSettings
from extproc.core.staticsettings import STATIC_NODES_MAX, StaticModel, StaticNode
from extproc.journal.lines import LINE_BYTES_MAX
from tests.parsing import faults, whole

HOST = "10.0.0.1:8000"
WANTED_HOST = "ip:port or [ipv6]:port, in canonical spelling"


def one(**told: Any) -> StaticNode:
    (node,) = whole(parse({"static_nodes": [{"host": HOST} | told]})).static_nodes
    return node


def test_a_host_is_enough() -> None:
    node = one()
    assert (node.host, node.weight, node.models, node.node_id) == (HOST, 1.0, None, HOST)
    assert one(host="[fd00::1]:80").node_id == "[fd00::1]:80"


def test_models_have_names_and_perhaps_lengths() -> None:
    node = one(models=["llama", {"name": "tiny", "context_length_tokens": 4096}], node_id="gpu-1", weight=0.5)
    assert node.models == (StaticModel(name="llama"), StaticModel(name="tiny", context_length_tokens=4096))
    assert (node.node_id, node.weight) == ("gpu-1", 0.5)


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({"host": "gpu-1:8000"}, f"host: wanted {WANTED_HOST}, got 'gpu-1:8000'"),
        ({"host": "10.0.0.1"}, f"host: wanted {WANTED_HOST}, got '10.0.0.1'"),
        ({"host": "10.0.0.01:80"}, f"host: wanted {WANTED_HOST}, got '10.0.0.01:80'"),
        ({"host": "169.254.169.254:80"}, "host: wanted an address that a node can have, got '169.254.169.254:80'"),
        (
            {"host": "8.8.8.8:80"},
            (
                "host: wanted an address within hosts_allowed (127.0.0.0/8, ::1/128, 10.0.0.0/8, 172.16.0.0/12, "
                "192.168.0.0/16, fc00::/7), got '8.8.8.8:80'"
            ),
        ),
        ({"weight": 0}, "weight: wanted greater than 0, got 0"),
        ({"weight": 1001.0}, "weight: wanted less than or equal to 1000, got 1001.0"),
        (
            {"node_id": "a b"},
            "node_id: wanted 1..128 letters, digits and ._:/@-, beginning with a letter or digit, got 'a b'",
        ),
        ({"models": [{"name": "m", "length": 5}]}, "models.0.length: wanted a known key, got 5"),
        ({"models": ["a\nb"]}, "models.0.name: wanted printable characters, got 'a\\nb'"),
        (
            {"models": [{"name": "m", "context_length_tokens": 0}]},
            "models.0.context_length_tokens: wanted greater than or equal to 1, got 0",
        ),
        ({"models": []}, "models: wanted at least one, or null, got []"),
        ({"model": "m"}, "model: wanted a known key (models?), got 'm'"),
    ],
)
def test_a_fault_names_the_node_and_the_key(told: dict[str, Any], fault: str) -> None:
    assert faults(parse({"static_nodes": [{"host": HOST} | told]})) == [f"static_nodes.0.{fault}"]


def test_there_is_one_of_each_host_and_id_and_a_bounded_number() -> None:
    def listed(*nodes: dict[str, Any]) -> list[str]:
        return [fault.split(", got")[0] for fault in faults(parse({"static_nodes": list(nodes)}))]

    twice = "static_nodes: wanted nodes with a {} of their own each; {} stands there twice"
    assert listed({"host": HOST}, {"host": HOST, "node_id": "a"}) == [twice.format("host", HOST)]
    assert listed({"host": HOST}, {"host": "10.0.0.2:1", "node_id": HOST}) == [twice.format("node_id", HOST)]
    most = [{"host": f"10.0.{number // 250}.1:{number % 250 + 1}"} for number in range(STATIC_NODES_MAX + 1)]
    assert len(whole(parse({"static_nodes": most[:-1]})).static_nodes) == STATIC_NODES_MAX
    assert "at most 1024" in faults(parse({"static_nodes": most}))[0]


def test_where_agents_come_from_elsewhere_loopback_has_to_be_allowed() -> None:
    """As for agents: the gate is one."""
    told = {"static_nodes": [{"host": "127.0.0.1:8000"}], "listen": {"agents": "0.0.0.0:9004", "insecure": True}}
    assert faults(parse(told))[0].startswith("static_nodes.0.host: wanted an address within hosts_allowed (10.0.0.0/8")
    assert whole(parse(told | {"hosts_allowed": ["127.0.0.0/8"]})).static_nodes


def test_they_come_back_out_of_a_journals_first_line_which_holds_the_most_that_a_file_can_say() -> None:
    nodes = [{"host": f"10.0.{n // 250}.1:{n % 250 + 1}", "models": [f"{m:x}" for m in range(77)]} for n in range(1024)]
    assert len(yaml.safe_dump({"static_nodes": nodes}, default_flow_style=True, width=10**9)) > 256 * 1024
    config = whole(parse({"static_nodes": [*nodes[:1000], {"host": "[fd00::1]:80", "weight": 2.0}]}))
    written = config.model_dump(mode="json", include=set(BalancerSettings.model_fields))
    line = msgspec.json.encode(written)
    assert len(line) < LINE_BYTES_MAX
    assert BalancerSettings.model_validate(msgspec.json.decode(line)).static_nodes == config.static_nodes


def test_the_page_shows_them_as_they_are_written() -> None:
    page = (Path(__file__).parent.parent / "docs" / "config.md").read_text()
    (shown,) = (line for line in page.splitlines() if line.startswith('# - {host: "10.0.0.1:8000"'))
    config = parse({"static_nodes": yaml.safe_load(shown.removeprefix("# "))})
    assert isinstance(config, Config)
    assert config.static_nodes[0].node_id == "gpu-1"
