from pathlib import Path

import pytest
import yaml

from extproc.address import TcpAddress, UnixAddress
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.enginesettings import EngineConfig
from extproc.agent.settings import AgentConfig, parse, read
from extproc.pb.nodes_pb2 import NodeSnapshot

ENGINE = {"node_id": "gpu-1", "engine": "http://127.0.0.1:8000"}


def good(mapping: object) -> AgentConfig:
    config = parse(mapping)
    assert isinstance(config, AgentConfig), config
    return config


def faults(mapping: object) -> dict[str, str]:
    found = parse(mapping)
    assert isinstance(found, list)
    return {fault.path: fault.wanted for fault in found}


def test_one_engine_is_enough() -> None:
    config = good({"engines": [ENGINE]})
    assert config.routers == (TcpAddress("127.0.0.1", 9004),)
    assert config.interval_s == 1.0
    engine = config.engines[0]
    assert (engine.host, engine.engine_kind, engine.weight, engine.gpu, engine.adapters_loadable) == (
        TcpAddress("127.0.0.1", 8000),
        EngineKind.AUTO,
        1.0,
        (),
        (),
    )


def test_everything_can_be_told() -> None:
    config = good(
        {
            "routers": ["router.example:9004", "unix:/run/extproc/agents", "[::1]:9004"],
            "interval_s": "500ms",
            "models_interval_s": "2m",
            "engines": [
                ENGINE
                | {"engine": "https://engine.example/base/", "host": "gpu1.example:80", "engine_kind": "llamacpp"}
                | {"weight": 2.5, "gpu": 3, "adapters_loadable": ["sql", "x" * 256]}
            ],
        }
    )
    assert config.routers[1:] == (UnixAddress("/run/extproc/agents"), TcpAddress("::1", 9004))
    assert (config.interval_s, config.models_interval_s) == (0.5, 120.0)
    assert config.engines[0].engine == "https://engine.example/base"
    assert config.engines[0].host == TcpAddress("gpu1.example", 80)
    assert config.engines[0].engine_kind is EngineKind.LLAMACPP
    assert config.engines[0].adapters_loadable == ("sql", "x" * 256)


@pytest.mark.parametrize(
    ("url", "host"),
    [("http://a", "a:80"), ("https://a", "a:443"), ("http://[::1]:8000", "[::1]:8000"), ("http://a:81/v", "a:81")],
)
def test_the_host_is_the_engines_unless_told(url: str, host: str) -> None:
    assert str(good({"engines": [ENGINE | {"engine": url}]}).engines[0].host) == host


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8000", "ftp://a", "http://", "http://a:0", "http://a:99999", "http://u:p@a", "http://a?b=c"]
)
def test_an_engine_is_a_plain_http_url(url: str) -> None:
    assert faults({"engines": [ENGINE | {"engine": url}]}) == {
        "engines.0.engine": "http://host:port or https://host:port"
    }


@pytest.mark.parametrize("node_id", ["", "a b", "-a", "a\n", "é", "x" * 129])
def test_a_node_id_is_what_routers_take(node_id: str) -> None:
    assert "engines.0.node_id" in faults({"engines": [ENGINE | {"node_id": node_id}]})


@pytest.mark.parametrize(
    ("names", "path", "wanted"),
    [
        ("sql", "", "a list"),
        ([5], ".0", "string"),
        (["a", ""], ".1", "1..256 printable characters"),
        (["x" * 257], ".0", "1..256 printable characters"),
        (["a\nb"], ".0", "1..256 printable characters"),
        (["a", "b", "a"], "", "each name once"),
        ([f"a-{number}" for number in range(256)], "", "255"),
    ],
)
def test_adapters_have_the_names_of_models(names: object, path: str, wanted: str) -> None:
    found = faults({"engines": [ENGINE | {"adapters_loadable": names}]})
    assert found.keys() == {f"engines.0.adapters_loadable{path}"}
    assert wanted in found[f"engines.0.adapters_loadable{path}"]


@pytest.mark.parametrize(("key", "value"), [
    ("interval_s", 0.01), ("interval_s", 61), ("interval_s", "1h"), ("interval_s", "fast"), ("interval_s", True),
    ("interval_s", "inf"), ("scrape_timeout_s", 0), ("page_bytes_max", 10), ("reconnect_backoff_s_max", 0),
    ("idle_interval_s", 3.1), ("idle_interval_s", 0.01), ("hung_s", 0.9), ("hung_s", 3601), ("drain_s", -1),
    ("drain_s", 3601), ("probe_timeout_s", 0.05), ("admin", "nowhere"), ("admin_remote", "perhaps"),
    ("goodbye_s", -1), ("routers", []), ("routers", ["nowhere"]), ("routers", ["a:0"]), ("engines", []), ("other", 1),
])  # fmt: skip
def test_what_is_out_of_range_or_unknown_is_a_fault_with_its_path(key: str, value: object) -> None:
    assert [path.split(".")[0] for path in faults({"engines": [ENGINE]} | {key: value})] == [key]


def test_with_nats_there_are_only_the_routers_that_are_named() -> None:
    nats = {"servers": "nats://10.0.0.3:4222"}
    assert good({"engines": [ENGINE], "nats": nats}).routers == ()
    assert good({"engines": [ENGINE], "nats": nats, "routers": []}).routers == ()
    both = good({"engines": [ENGINE], "routers": ["[::1]:9004"], "nats": nats})
    assert both.routers == (TcpAddress("::1", 9004),)
    assert "routers" in faults({"engines": [ENGINE], "routers": [], "nats": None})
    assert faults({"engines": [ENGINE], "routers": [], "nats": {"servers": []}}).keys() == {"nats"}


def test_two_engines_cannot_be_one_node() -> None:
    assert "node_id" in faults({"engines": [ENGINE, ENGINE]})[""]


def test_two_nodes_cannot_have_one_address() -> None:
    found = faults({"engines": [ENGINE, ENGINE | {"node_id": "gpu-2"}]})
    assert found == {"": "engines with a host of their own each (gpu-1 and gpu-2 have 127.0.0.1:8000)"}
    good({"engines": [ENGINE, ENGINE | {"node_id": "gpu-2", "host": "127.0.0.1:8001"}]})


@pytest.mark.parametrize("mapping", [None, [], "text", 5, {}, {"engines": 5}, {"engines": [5]}])
def test_what_is_no_mapping_is_a_fault(mapping: object) -> None:
    assert faults(mapping)


def test_a_file_is_read_and_its_faults_are_told(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("interval_s: 250ms\nengines:\n- {node_id: a, engine: 'http://127.0.0.1:1'}\n")
    config = read(path)
    assert isinstance(config, AgentConfig)
    assert config.interval_s == 0.25
    path.write_text("engines: []\nengines: []\n")
    assert isinstance(read(path), list)
    assert isinstance(read(tmp_path / "missing.yaml"), list)


def test_the_documented_example_is_the_defaults_and_names_every_key() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "agent.md").read_text()
    example = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    least = {"engines": [{"node_id": "gpu-1", "engine": "http://127.0.0.1:8000"}]}
    assert parse(example) == parse(least)
    assert example.keys() == AgentConfig.model_fields.keys()
    assert example["engines"][0].keys() == EngineConfig.model_fields.keys()


def test_the_page_names_every_signal_of_a_report() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "agent.md").read_text()
    table = page.partition("## What is read from which engine")[2]
    shown_as = {
        "kv_cache_usage": "kv_usage",
        "kv_block_size": "kv_block_size_tokens",
        "available_kv_blocks": "kv_blocks_available",
        "running_count": "requests_running",
        "waiting_queue_size": "requests_waiting",
        "pending_prefill_count": "pending_prefills",
        "active_decode_count": "active_decodes",
        "avg_prefill_latency_ms": "prefill_latency_ms",
        "avg_decode_ms_per_token": "decode_ms_per_token",
    }
    naming = {"node_id", "host", "boot_id", "sequence", "sample_age_ms", "state", "weight", "not_ready_reason"}
    signals = {field.name for field in NodeSnapshot.DESCRIPTOR.fields} - naming
    assert {name for name in signals if f"`{shown_as.get(name, name)}`" not in table} - {"models"} == set()
