"""Where KV events may be said to be."""

from typing import Any

import pytest

from extproc.agent.kv.settings import RANKS_MAX, KvEventsConfig, at_rank
from extproc.agent.settings import AgentConfig, parse

HERE = "tcp://127.0.0.1:5557"


def faults(**kv_events: Any) -> dict[str, str]:
    engine = {"node_id": "n", "engine": "http://127.0.0.1:8000", "kv_events": kv_events}
    found = parse({"engines": [engine]})
    if isinstance(found, AgentConfig):
        assert found.engines[0].kv_events is not None
        return {}
    return {one.path.removeprefix("engines.0.kv_events."): one.wanted for one in found}


def test_they_are_not_heard_unless_somebody_says_where() -> None:
    config = parse({"engines": [{"node_id": "n", "engine": "http://127.0.0.1:8000"}]})
    assert isinstance(config, AgentConfig)
    assert config.engines[0].kv_events is None
    told = KvEventsConfig(endpoint=HERE)
    assert (told.bind, told.replay, told.topic, told.ranks) == (False, None, "", 1)
    assert (told.blocks_max, told.message_bytes_max) == (1_000_000, 8 * 1024 * 1024)


@pytest.mark.parametrize(
    "kv_events",
    [
        {"endpoint": HERE},
        {"endpoint": "tcp://gpu-1.example:65535", "replay": "tcp://[::1]:1", "insecure": True},
        {"endpoint": "tcp://[::1]:5557", "replay": "tcp://localhost:1"},
        {"endpoint": "tcp://127.1.2.3:5557", "bind": True},
        {"endpoint": "ipc:///run/vllm/kv", "topic": "kv-events"},
        {"endpoint": "tcp://*:5557", "bind": True, "insecure": True},
        {"endpoint": f"tcp://127.0.0.1:{65536 - RANKS_MAX}", "ranks": RANKS_MAX},
    ],
)
def test_what_can_be_heard(kv_events: dict[str, Any]) -> None:
    assert faults(**kv_events) == {}


@pytest.mark.parametrize(
    ("kv_events", "path", "wanted"),
    [
        ({}, "endpoint", "a value"),
        *(
            ({"endpoint": one}, "endpoint", "tcp://host:port or ipc://path")
            for one in ("", "5557", "tcp://h", "tcp://h:0", "tcp://h:65536", "udp://h:1", "tcp://a b:1", "inproc://x")
        ),
        ({"endpoint": HERE, "replay": "x"}, "replay", "tcp://host:port or ipc://path"),
        ({"endpoint": HERE, "ranks": 0}, "ranks", "greater than or equal to 1"),
        ({"endpoint": HERE, "ranks": RANKS_MAX + 1}, "ranks", f"less than or equal to {RANKS_MAX}"),
        ({"endpoint": HERE, "blocks_max": 0}, "blocks_max", "greater than or equal to 1"),
        ({"endpoint": HERE, "message_bytes_max": 1023}, "message_bytes_max", "greater than or equal to 1024"),
        ({"endpoint": HERE, "topic": "x" * 257}, "topic", "String should have at most 256 characters"),
        ({"endpoint": HERE, "port": 1}, "port", "a known key"),
        ({"endpoint": "tcp://127.0.0.1:65535", "ranks": 2}, "", "tcp endpoints with a port for each rank"),
        ({"endpoint": "ipc://x", "ranks": 2}, "", "tcp endpoints with a port for each rank"),
        ({"endpoint": "tcp://*:1"}, "", "a host that can be connected to, or bind: true, instead of *"),
        (
            {"endpoint": HERE, "bind": True, "replay": "tcp://*:1"},
            "",
            "a host that can be connected to, or bind: true, instead of *",
        ),
    ],
)
def test_what_is_wrong_is_told(kv_events: dict[str, Any], path: str, wanted: str) -> None:
    found = faults(**kv_events)
    assert [(one.removeprefix("engines.0.kv_events"), text) for one, text in found.items()] == [(path, wanted)]


@pytest.mark.parametrize(
    ("kv_events", "far"),
    [
        *(({"endpoint": one}, one) for one in ("tcp://gpu-1:1", "tcp://10.0.0.1:1", "tcp://[fd00::1]:1")),
        *(({"endpoint": one, "bind": True}, one) for one in ("tcp://*:1", "tcp://0.0.0.0:1", "tcp://[::]:1")),
        ({"endpoint": HERE, "replay": "tcp://gpu-1:1"}, "tcp://gpu-1:1"),
    ],
)
def test_publishers_on_other_machines_must_be_said_to_be_trusted(kv_events: dict[str, Any], far: str) -> None:
    ((_, wanted),) = faults(**kv_events).items()
    assert wanted.startswith(f"a loopback address or ipc://path instead of {far}, ")
    assert wanted.endswith("; or insecure: true")
    assert faults(**kv_events, insecure=True) == {}


def test_each_rank_publishes_at_the_port_after_the_one_before() -> None:
    assert [at_rank(HERE, rank) for rank in range(3)] == [HERE, "tcp://127.0.0.1:5558", "tcp://127.0.0.1:5559"]
    assert at_rank("ipc://x", 0) == "ipc://x"
