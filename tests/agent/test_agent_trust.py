"""How an agent shows who it is, and to whom: its settings, its files, and a router that asks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
import yaml
from click.testing import CliRunner

from extproc import cli
from extproc.address import TcpAddress
from extproc.agent import credentials
from extproc.agent.credentials import Credentials
from extproc.agent.push import RouterLink
from extproc.agent.settings import AgentConfig, parse, read
from extproc.pb.nodes_pb2_grpc import NodesServicer, add_NodesServicer_to_server
from tests.certificates import Authority, Pair
from tests.waiting import until

ENGINES = {"engines": [{"node_id": "gpu-1", "engine": "http://127.0.0.1:8000"}]}
TOKEN = "first-0123456789abcdef"
OURS = Authority()


def good(folder: Path = Path(), **settings: Any) -> AgentConfig:
    config = parse(ENGINES | settings, folder)
    assert isinstance(config, AgentConfig), config
    return config


def faults(**settings: Any) -> list[str]:
    found = parse(ENGINES | settings)
    assert isinstance(found, list)
    return [str(fault) for fault in found]


def files(folder: Path, token: str = TOKEN) -> dict[str, Any]:
    (folder / "token").write_text(f"# mine\n{token}\n")
    shown = OURS.issue("gpu.example").written(folder, "agent")
    return {"tls": {"ca": OURS.written(folder)} | shown, "token_file": str(folder / "token")}


@pytest.mark.parametrize("router", ["10.0.0.1:9004", "router.example:9004", "[2001:db8::1]:9004"])
def test_a_token_does_not_go_to_other_machines_in_plain_text_unless_told(router: str) -> None:
    assert faults(routers=["127.0.0.1:1", router], token_file="t") == [
        (
            f"token_file: wanted tls beside a token for {router}, which others could read on its way; "
            "or insecure: true, got 't'"
        )
    ]
    good(routers=[router], token_file="t", insecure=True)
    good(routers=[router], token_file="t", tls={"ca": "c"})
    good(routers=[router])


@pytest.mark.parametrize("router", ["127.0.0.1:9004", "localhost:9004", "[::1]:9004", "unix:/run/agents"])
def test_a_token_may_go_to_this_machine_in_plain_text(router: str) -> None:
    good(routers=[router], token_file="t")


@pytest.mark.parametrize(
    ("tls", "told"),
    [
        ({}, "tls.ca: wanted a value, got nothing"),
        ({"ca": "c", "certificate": "d"}, "tls: wanted certificate and key, or neither"),
        ({"ca": "c", "key": "d"}, "tls: wanted certificate and key, or neither"),
        ({"ca": "c", "name": "d"}, "tls.name: wanted a known key"),
        (
            {"ca": "c", "server_name": "a b"},
            "tls.server_name: wanted the name in the servers' certificates, as llm.example, got",
        ),
    ],
)
def test_a_fault_in_tls_names_its_path(tls: dict[str, Any], told: str) -> None:
    (fault,) = faults(tls=tls)
    assert fault.startswith(told)


def test_a_unix_socket_needs_a_name_for_its_certificate() -> None:
    (fault,) = faults(routers=["unix:/run/agents"], tls={"ca": "c"})
    assert fault.startswith("tls: wanted server_name: a unix socket has none")
    good(routers=["unix:/run/agents"], tls={"ca": "c", "server_name": "serve.example"})


def test_paths_start_at_the_files_folder_and_on_the_command_line_where_it_runs(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(ENGINES | {"tls": {"ca": "c"}, "token_file": "t"}))
    config = read(tmp_path / "agent.yaml")
    assert isinstance(config, AgentConfig)
    assert config.tls is not None
    assert (config.tls.ca, config.token_file) == (tmp_path / "c", tmp_path / "t")
    assert good(token_file="t").token_file == Path("t")


def test_every_fault_of_the_files_is_told_and_no_token(tmp_path: Path) -> None:
    config = good(**files(tmp_path, token="short-secret"))
    (tmp_path / "agent.key").write_bytes(OURS.issue("b").key)
    (tmp_path / "ca.crt").unlink()
    told = credentials.read(config)
    assert isinstance(told, list)
    assert [fault.path for fault in told] == ["token_file", "tls.key", "tls.ca"]
    assert "short-secret" not in str(told)


OPTIONS = ["--tls-ca", "c", "--tls-certificate", "d", "--tls-key", "k", "--tls-server-name", "s", "--token-file", "t"]


def test_the_options_are_the_settings_and_their_faults_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = ["agent", "--node-id", "gpu-1", "--engine", "http://127.0.0.1:8000", "--router", "10.0.0.1:9004"]
    result = CliRunner().invoke(cli.main, [*agent, *OPTIONS])
    assert result.exit_code == 1
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [
        "--token-file",
        "--tls-certificate",
        "--tls-key",
        "--tls-ca",
    ]
    result = CliRunner().invoke(cli.main, [*agent, "--token-file", "t"])
    assert result.stderr.startswith("--token-file: wanted tls beside a token for 10.0.0.1:9004")
    result = CliRunner().invoke(cli.main, [*agent, "--token-file", "t", "--insecure"])
    assert result.stderr.startswith("--token-file: wanted a file with a token of 16 to 512")
    result = CliRunner().invoke(cli.main, [*agent, "--tls-key", "k"])
    assert result.stderr == "--tls-ca: wanted a value, got nothing\n"


class Router(NodesServicer):
    """Notes who called."""

    def __init__(self) -> None:
        self.callers: list[tuple[set[str], str]] = []

    async def Report(self, _: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        shown = {name.decode() for name in context.auth_context().get("peer_dns", ())}
        self.callers.append((shown, dict(context.invocation_metadata())["authorization"]))


@contextlib.asynccontextmanager
async def router(own: Pair) -> AsyncIterator[tuple[Router, TcpAddress]]:
    asking, server = Router(), grpc.aio.server()
    add_NodesServicer_to_server(asking, server)  # type: ignore[no-untyped-call]
    trust = grpc.ssl_server_credentials([(own.key, own.certificate)], OURS.certificate, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", trust)
    await server.start()
    try:
        yield asking, TcpAddress("127.0.0.1", port)
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def linked(at: TcpAddress, config: AgentConfig) -> AsyncIterator[None]:
    link = RouterLink(
        at, 0.1, asyncio.get_running_loop().time, structlog.get_logger(), partial(credentials.read, config)
    )
    running = asyncio.create_task(link.run())
    try:
        yield
    finally:
        link.leave()
        await asyncio.wait_for(running, 10)


async def test_files_are_read_anew_for_each_connection(tmp_path: Path) -> None:
    settings = files(tmp_path)
    config = good(**settings | {"tls": settings["tls"] | {"server_name": "serve.example"}})
    async with router(OURS.issue("serve.example")) as (asking, at), linked(at, config):
        await until(lambda: asking.callers)
        assert asking.callers[0] == ({"gpu.example"}, f"Bearer {TOKEN}")
        OURS.issue("new.example").written(tmp_path, "agent")
        (tmp_path / "token").write_text("second-0123456789abcdef\n")
        await until(lambda: asking.callers[-1] == ({"new.example"}, "Bearer second-0123456789abcdef"))


async def test_files_that_broke_are_the_reason_why_a_router_is_not_reached(tmp_path: Path) -> None:
    config = good(**files(tmp_path))
    (tmp_path / "token").write_text("short-secret\n")
    async with router(OURS.issue("127.0.0.1")) as (asking, at):
        with structlog.testing.capture_logs() as logged:
            async with linked(at, config):
                await until(lambda: logged)
                assert asking.callers == []
                (tmp_path / "token").write_text(TOKEN)
                await until(lambda: asking.callers)
        assert logged[0]["event"] == "router not reached"
        assert logged[0]["reason"].startswith("token_file: wanted a file with a token of 16")
        assert "short-secret" not in str(logged)


@pytest.mark.parametrize("wrong", ["name", "authority"])
async def test_a_router_that_is_not_the_one_meant_gets_no_token(tmp_path: Path, wrong: str) -> None:
    config = good(**files(tmp_path))
    own = OURS.issue("other.example") if wrong == "name" else Authority().issue("127.0.0.1")
    found = credentials.read(config)
    assert isinstance(found, Credentials)
    async with router(own) as (asking, at), found.open(at, []) as channel:
        call: Any = channel.stream_stream("/extproc.pb.Nodes/Report")(metadata=found.metadata)
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await call.read()
        assert asking.callers == []
