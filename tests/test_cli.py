import asyncio
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from extproc import app, cli
from extproc.address import TcpAddress
from extproc.agent import agent
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.gpu.usage import GpuName
from extproc.agent.settings import AgentConfig
from extproc.cli import reporting
from extproc.config import Config
from extproc.sim import emulator
from extproc.sim.emulatorsettings import EmulatorSettings
from tests.tokens.bpe import train


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("EXTPROC_"):
            monkeypatch.delenv(name)


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(cli.main, arguments, env=environment)


class Ran:
    """Stands for what a command runs; keeps what it was given."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    async def __call__(self, *arguments: Any, **_: Any) -> int:
        self.given.extend(arguments)
        return 0

    def now(self, *arguments: Any) -> None:
        self.given.extend(arguments)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Ran:
    ran = Ran()
    monkeypatch.setattr(app, "run", ran.now)
    monkeypatch.setattr(agent, "run", ran)
    monkeypatch.setattr(emulator, "run", ran)
    return ran


AGENT = ("agent", "--node-id", "gpu-1", "--engine", "http://127.0.0.1:8000")


def test_serve_without_a_file_runs_on_the_defaults(ran: Ran) -> None:
    assert run("serve").exit_code == 0
    assert ran.given == [Config()]


def test_serve_runs_on_its_file(ran: Ran, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("drain_s: 3\n")
    assert run("serve", "--config", str(tmp_path / "a.yaml")).exit_code == 0
    assert ran.given == [Config(drain_s=3)]


@pytest.mark.parametrize("command", [("check",), ("serve", "--config")])
def test_faults_of_a_configuration_are_one_line_each_and_status_1(
    ran: Ran, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "a.yaml").write_text("nodes: {fresh_s: -1}\nlisten: {admin: 9090}\n")
    result = run(*command, str(tmp_path / "a.yaml"))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "nodes.fresh_s: wanted greater than 0, got -1",
        "listen.admin: wanted host:port, [ipv6]:port or unix:/path, got 9090",
    ]
    assert ran.given == []


def test_check_says_ok(tmp_path: Path) -> None:
    train(tmp_path / "t.json")
    (tmp_path / "a.yaml").write_text("tokens: {models: {a: {tokenizer: t.json}}}\n")
    result = run("check", str(tmp_path / "a.yaml"))
    remark = "tokens.models.a: no chat template: chats are counted by their texts, never exactly\n"
    assert (result.exit_code, result.stdout, result.stderr) == (0, remark + "OK\n", "")


def test_check_says_which_tokenizers_are_absent_though_not_required(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("tokens: {models: {a: {tokenizer: t.json, required: false}}}\n")
    result = run("check", str(tmp_path / "a.yaml"))
    absent = "tokens.models.a: no tokenizer, prompts are estimated: wanted a folder or a tokenizer.json, got"
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(absent)
    assert result.stdout.endswith("OK\n")


def test_check_reports_a_missing_tokenizer_and_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("tokens: {models: {a: {tokenizer: t.json}}}\n")
    result = run("check", str(tmp_path / "a.yaml"))
    assert result.exit_code == 1
    wanted = "tokens.models.a.tokenizer: wanted a folder or a tokenizer.json"
    assert result.stderr.startswith(f"{wanted}, got {tmp_path}/t.json: No ")
    result = run("check", str(tmp_path / "none.yaml"))
    assert result.exit_code == 1
    assert result.stderr == f"{tmp_path}/none.yaml: wanted a readable file, got No such file or directory\n"


def agent_config(ran: Ran, *arguments: str, **environment: str) -> AgentConfig:
    result = run(*arguments, **environment)
    assert result.exit_code == 0, result.output
    (config,) = ran.given
    assert isinstance(config, AgentConfig)
    return config


def test_agents_options_become_its_settings(ran: Ran) -> None:
    options = "--router 10.0.0.1:9004 --router unix:/run/r --host gpu:80 --engine-kind vllm --interval 500ms --weight 2"
    config = agent_config(ran, *AGENT, *options.split(), "--gpu", "1")
    assert [str(router) for router in config.routers] == ["10.0.0.1:9004", "unix:/run/r"]
    assert config.interval_s == 0.5
    (engine,) = config.engines
    assert (engine.node_id, engine.engine, engine.host) == ("gpu-1", "http://127.0.0.1:8000", TcpAddress("gpu", 80))
    assert (engine.engine_kind, engine.weight, engine.gpu) == (EngineKind.VLLM, 2.0, (GpuName(1),))


def test_agent_has_defaults_for_all_but_the_engine(ran: Ran) -> None:
    config = agent_config(ran, *AGENT)
    assert config.routers == (TcpAddress("127.0.0.1", 9004),)
    assert config.interval_s == 1.0
    assert config.engines[0].host == TcpAddress("127.0.0.1", 8000)
    assert config.engines[0].engine_kind is EngineKind.AUTO


def test_agent_can_be_told_by_the_environment(ran: Ran) -> None:
    config = agent_config(
        ran,
        "agent",
        EXTPROC_ROUTER="10.0.0.1:9004 10.0.0.2:9004",
        EXTPROC_NODE_ID="gpu-7",
        EXTPROC_ENGINE="http://engine:8000",
        EXTPROC_HOST="10.0.0.7:8000",
        EXTPROC_ENGINE_KIND="llamacpp",
        EXTPROC_ADMIN="127.0.0.1:9005",
    )
    assert str(config.admin) == "127.0.0.1:9005"
    assert [str(router) for router in config.routers] == ["10.0.0.1:9004", "10.0.0.2:9004"]
    assert config.engines[0].node_id == "gpu-7"
    assert str(config.engines[0].host) == "10.0.0.7:8000"
    assert config.engines[0].engine_kind is EngineKind.LLAMACPP


@pytest.mark.parametrize(
    "told", ["dns:routers:9004,10.0.0.2:9004", " dns:routers:9004 ,10.0.0.2:9004, ", "dns:routers:9004\n10.0.0.2:9004"]
)
def test_the_environment_may_name_several_routers(ran: Ran, told: str) -> None:
    config = agent_config(ran, *AGENT, EXTPROC_ROUTER=told)
    assert [str(router) for router in config.routers] == ["dns:routers:9004", "10.0.0.2:9004"]
    ran.given.clear()
    config = agent_config(ran, *AGENT, "--router", "unix:/run/a,b c", EXTPROC_ROUTER=told)
    assert [str(router) for router in config.routers] == ["unix:/run/a,b c"]


def test_agent_has_no_routers_of_its_own_beside_nats(ran: Ran) -> None:
    config = agent_config(ran, *AGENT, "--nats", "nats://10.0.0.3:4222", "--nats", "tls://h:1")
    assert config.nats is not None
    assert (config.nats.servers, config.nats.fleet, config.routers) == (
        ("nats://10.0.0.3:4222", "tls://h:1"),
        "default",
        (),
    )
    ran.given.clear()
    config = agent_config(ran, *AGENT, "--nats", "nats://a:1,nats://b:2")
    assert config.nats is not None
    assert config.nats.servers == ("nats://a:1", "nats://b:2")
    ran.given.clear()
    told = "nats://a:1,nats://b:2"
    config = agent_config(ran, *AGENT, EXTPROC_ROUTER="10.0.0.1:9004", EXTPROC_NATS=told)
    assert config.nats is not None
    assert config.nats.servers == ("nats://a:1", "nats://b:2")
    assert [str(router) for router in config.routers] == ["10.0.0.1:9004"]


def test_what_is_no_nats_server_is_told_as_the_option(ran: Ran) -> None:
    result = run(*AGENT, "--nats", "nats://user:secret@h:1")
    assert result.exit_code == 1
    assert result.stderr.startswith("--nats: wanted nats://host:port or tls://host:port, with nothing else in it")


def test_agent_reads_several_engines_from_a_file(ran: Ran, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "engines:\n- {node_id: a, engine: 'http://h:1'}\n- {node_id: b, engine: 'http://h:2'}\n"
    )
    config = agent_config(ran, "agent", "--config", str(tmp_path / "a.yaml"), EXTPROC_NODE_ID="not asked")
    assert [engine.node_id for engine in config.engines] == ["a", "b"]


def test_agent_takes_a_file_or_options(ran: Ran, tmp_path: Path) -> None:
    result = run(*AGENT, "--config", str(tmp_path / "a.yaml"))
    assert result.exit_code == 2
    assert (
        "--config names the engines: leave out --node-id, --engine, "
        "and give the file its engine's node_id, its engine's engine" in result.stderr
    )
    result = run("agent", "--config", str(tmp_path / "a.yaml"), "--nats", "nats://a:1")
    assert "leave out --nats, and give the file nats: {servers: […]}" in result.stderr
    for option in reporting.agent.params:
        assert option.name is not None
        if option.name not in ("file", "once", "log_format", "log_level"):
            assert reporting._key(option.name)
    result = run("agent", "--node-id", "a")
    assert result.exit_code == 2
    assert "which engine? Give --node-id and --engine, or --config" in result.stderr
    assert ran.given == []


def test_faults_of_agents_options_name_the_option(ran: Ran) -> None:
    result = run(*AGENT, "--router", "x", "--interval", "1h", "--weight", "0", "--drain", "x", "--idle-interval", "9s")
    assert result.exit_code == 1
    assert sorted(line.split(":")[0] for line in result.stderr.splitlines()) == [
        "--drain",
        "--idle-interval",
        "--interval",
        "--router",
        "--weight",
    ]
    assert ran.given == []


def test_agent_prints_what_it_would_report(tmp_path: Path) -> None:
    # A process of its own: the engine answers from this one's event loop.
    async def engine() -> tuple[int, str]:
        async def page(request: web.Request) -> web.Response:
            if request.path == "/v1/models":
                return web.json_response({"data": [{"id": "m", "max_model_len": 4096}]})
            return web.Response(text="vllm:num_requests_waiting 3\n" if request.path == "/metrics" else "")

        application = web.Application()
        application.router.add_get("/{page:.*}", page)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        command = [sys.executable, "-m", "extproc", "agent", "--node-id", "gpu-1", "--engine", url, "--print"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        printed, _ = await process.communicate()
        await runner.cleanup()
        assert process.returncode is not None
        return process.returncode, printed.decode()

    status, printed = asyncio.run(engine())
    assert status == 0
    snapshot = json.loads(printed)
    assert snapshot["node_id"] == "gpu-1"
    assert snapshot["state"] == "ready"
    assert snapshot["requests_waiting"] == 3
    assert snapshot["models"][0]["name"] == "m"


def test_emulates_options_become_its_settings(ran: Ran) -> None:
    assert run("emulate", "--name=gpu-1", "--model=demo", "--speed=0.5", "--kv-blocks=5000").exit_code == 0
    assert ran.given == [EmulatorSettings(name="gpu-1", model="demo", speed=0.5, kv_blocks=5000)]


def test_emulates_defaults_are_those_of_its_settings(ran: Ran) -> None:
    assert run("emulate").exit_code == 0
    assert ran.given == [EmulatorSettings()]
    options = {parameter.name for parameter in cli.main.commands["emulate"].params}
    assert options - {"log_format", "log_level"} <= {field.name for field in dataclasses.fields(EmulatorSettings)}


def test_emulate_refuses_what_could_not_run(ran: Ran) -> None:
    result = run("emulate", "--speed", "0")
    assert result.exit_code == 2
    assert "speed must be over 0" in result.stderr


def test_demo_ends_with_its_own_status(monkeypatch: pytest.MonkeyPatch) -> None:
    from extproc import demo

    async def failed(_: object, *, once: bool) -> int:
        return 7 if once else 8

    monkeypatch.setattr(demo, "run", failed)
    assert run("demo", "--once").exit_code == 7
    assert run("demo").exit_code == 8
