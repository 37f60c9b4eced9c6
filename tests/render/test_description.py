from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extproc.address import TcpAddress, UnixAddress
from extproc.render.description import Description, Route, parse, read

AUTHORITY = {"ca": "/ca.pem"}


def faults(**mapping: Any) -> list[str]:
    found = parse(mapping)
    return [str(one) for one in found] if isinstance(found, list) else []


def test_the_default_is_envoy_beside_one_extproc_on_this_machine() -> None:
    assert parse({}) == Description()
    assert [str(one) for one in Description().processor] == ["127.0.0.1:9002"]


@pytest.mark.parametrize(
    ("mapping", "path", "wanted"),
    [
        ({"colour": 1}, "colour", "a known key"),
        ({"destination": "somewhere"}, "destination", "'original-dst', 'original-dst-metadata' or 'override-host'"),
        ({"body_mode": "BUFFERED"}, "body_mode", "'buffered', "),
        ({"processor": []}, "processor", "at least one"),
        ({"processor": ["here"]}, "processor.0", "host:port"),
        ({"processor": ["extproc:9002", "unix:/run/extproc"]}, "processor", "unix sockets or names, not both"),
        ({"nodes": ["10.0.0.1:0"]}, "nodes", "ports from 1 on"),
        ({"routes": []}, "routes", "at least one"),
        ({"routes": [{"prefix": "v1"}]}, "routes.0.prefix", "match pattern"),
        ({"routes": [{"prefix": "/v1/\n"}]}, "routes.0.prefix", "match pattern"),
        ({"routes": [{"prefix": "/v1/", "policy": {"strategie": 1}}]}, "routes.0.policy", "strategie: a known key"),
        ({"policy": "two words"}, "policy", "a policy's name, or a policy as a mapping"),
        ({"processor_tls": {"ca": "/ca", "key": "/key"}}, "processor_tls", "certificate and key, or neither"),
        ({"node_tls": {"name": "engines"}}, "node_tls.ca", "a value"),
        ({"headers_shown": ["X-Tenant"]}, "headers_shown.0", "match pattern"),
        ({"message_timeout_s": 80}, "(top)", "message_timeout_s (80) <= queue_timeout_s (75)"),
        ({"message_timeout_s": 0}, "message_timeout_s", "greater than 0"),
        ({"body_bytes_max": "lots"}, "body_bytes_max", "bytes as a number"),
        ({"destinations_max": 17}, "destinations_max", "less than or equal to 16"),
        ({"failover": True, "destination": "override-host"}, "(top)", "no failover with override-host"),
        ({"failover": True, "fail_open": False}, "(top)", "fail_open with failover"),
        ({"failover": True, "health_path": None}, "(top)", "health_path with failover"),
        ({"about": "a\x1b[2J"}, "about", "match pattern"),
    ],
)
def test_faults_say_where_what_was_wanted_and_what_stood_there(mapping: Any, path: str, wanted: str) -> None:
    found = [one for one in faults(**mapping) if one.startswith(f"{path}: wanted ")]
    assert found, faults(**mapping)
    assert any(wanted in one for one in found), found


def test_one_wrong_item_is_one_fault() -> None:
    assert len(faults(processor=["here"])) == 1
    assert len(faults(routes=[{"prefix": "v1"}])) == 1


def test_a_policy_is_a_name_or_a_policy_in_place() -> None:
    assert not faults(policy="batch", routes=[{"prefix": "/", "policy": {"strategy": "round-robin"}}])


def test_addresses_are_of_hosts_and_of_sockets() -> None:
    found = parse({"processor": ["[::1]:9002", "unix:/run/extproc"]})
    assert isinstance(found, Description)
    assert found.processor == (TcpAddress("::1", 9002), UnixAddress("/run/extproc"))


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("nodes: ['10.0.0.1:8000']\nnode_tls: {ca: /ca.pem, name: engines}\n")
    found = read(path)
    assert isinstance(found, Description)
    assert found.node_tls is not None
    assert found.node_tls.name == "engines"
    path.write_text("")
    assert read(path) == Description()
    path.write_text("nodes: [")
    assert isinstance(read(path), list)
    assert isinstance(read(tmp_path / "none.yaml"), list)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_no_value_makes_it_raise(value: Any) -> None:
    for key in Description.model_fields:
        parse({key: value})
    parse(value)


def test_the_documented_description_is_the_default_one_and_has_every_key(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "render.md").read_text()
    example, for_grpc = (after.partition("```")[0] for after in page.split("```yaml\n")[1:])
    path = tmp_path / "example.yaml"
    path.write_text(for_grpc)
    assert isinstance(read(path), Description)
    path.write_text(example)
    assert read(path) == Description()
    written = yaml.safe_load(example)
    assert set(written) == set(Description.model_fields)
    assert set(written["routes"][0]) == set(Route.model_fields)
