"""What an agent says of a router that it does not reach."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
import yaml

from extproc.address import TcpAddress
from extproc.agent import credentials
from extproc.agent.credentials import PLAIN, Credentials
from extproc.agent.push import REASONS_TOLD_MAX, REPEAT_S, RouterLink
from extproc.agent.settings import AgentConfig, parse
from extproc.children import Child, ourselves
from extproc.core.settings import Fault
from extproc.pb.nodes_pb2_grpc import NodesServicer, add_NodesServicer_to_server
from tests.agent.test_push import Clock
from tests.certificates import Authority
from tests.serve.served import ANY_PORTS
from tests.waiting import until

OURS = Authority()
WANTS_CERTIFICATE = "; the router may want a client certificate (tls.certificate)"
WANTS_TLS = "; the router may want TLS (tls.ca)"


@dataclass
class Failing:
    """Credentials that cannot be read, and why; it counts how often they were asked for."""

    reason: str
    asked: int = 0

    def __call__(self) -> Credentials | list[Fault]:
        self.asked += 1
        return [Fault(self.reason, "a file", "none")]


@dataclass
class Linked:
    clock: Clock = field(default_factory=Clock)
    failing: Failing = field(default_factory=lambda: Failing("a"))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        link = RouterLink(TcpAddress("127.0.0.1", 1), 0.01, self.clock, structlog.get_logger(), self.failing)
        running = asyncio.create_task(link.run())
        try:
            yield
        finally:
            link.leave()
            await asyncio.wait_for(running, 10)

    async def fail(self, reason: str, now_s: float) -> None:
        """Two attempts at least that fail for this reason, at this time."""
        self.failing.reason, self.clock.now_s = reason, now_s
        before = self.failing.asked
        await until(lambda: self.failing.asked >= before + 3)


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def reasons(logged: list[Any]) -> list[str]:
    return [line["reason"].split(":")[0] for line in logged if line["event"] == "router not reached"]


async def test_each_reason_is_told_at_once_and_again_while_it_lasts(logged: list[Any]) -> None:
    linked = Linked()
    async with linked.running():
        await linked.fail("a 1", 0.0)
        assert reasons(logged) == ["a 1"]
        await linked.fail("a 2", REPEAT_S / 2)  # another number is no other reason
        assert reasons(logged) == ["a 1"]
        await linked.fail("b", REPEAT_S / 2)
        await linked.fail("a 3", REPEAT_S - 1)  # nor is one that was told lately
        assert reasons(logged) == ["a 1", "b"]
        await linked.fail("a 4", REPEAT_S)
        await linked.fail("b", REPEAT_S)
        assert reasons(logged) == ["a 1", "b", "a 4"]
        await linked.fail("b", 1.5 * REPEAT_S)
        assert reasons(logged) == ["a 1", "b", "a 4", "b"]


async def test_who_words_every_reason_anew_fills_no_log(logged: list[Any]) -> None:
    linked = Linked()
    async with linked.running():
        for letter in "abcdefghijklmnopq":
            await linked.fail(letter, 0.0)
        assert len(reasons(logged)) == REASONS_TOLD_MAX
        await linked.fail("z", REPEAT_S)
        assert reasons(logged)[REASONS_TOLD_MAX:] == ["z"]


def of(folder: Path, **tls: str) -> AgentConfig:
    engines = [{"node_id": "gpu-1", "engine": "http://127.0.0.1:1"}]
    config = parse({"engines": engines} | ({"tls": tls} if tls else {}), folder)
    assert isinstance(config, AgentConfig), config
    return config


@contextlib.asynccontextmanager
async def asking(*, certificate: bool) -> AsyncIterator[TcpAddress]:
    """A router with TLS, which asks for a client's certificate or does not, and lets nobody in."""
    own, server = OURS.issue("127.0.0.1"), grpc.aio.server()
    add_NodesServicer_to_server(NodesServicer(), server)  # type: ignore[no-untyped-call]
    chain = [(own.key, own.certificate)]
    trust = grpc.ssl_server_credentials(chain, OURS.certificate if certificate else None, certificate)
    port = server.add_secure_port("127.0.0.1:0", trust)
    await server.start()
    try:
        yield TcpAddress("127.0.0.1", port)
    finally:
        await server.stop(0)


async def why(at: TcpAddress, config: AgentConfig) -> str:
    with structlog.testing.capture_logs() as logged:
        clock = asyncio.get_running_loop().time
        link = RouterLink(at, 0.1, clock, structlog.get_logger(), partial(credentials.read, config))
        running = asyncio.create_task(link.run())
        await until(lambda: logged)
        link.leave()
        await asyncio.wait_for(running, 10)
    assert logged[0]["event"] == "router not reached"
    return str(logged[0]["reason"])


async def test_where_a_router_hangs_up_it_is_told_what_it_may_want(tmp_path: Path) -> None:
    ca = OURS.written(tmp_path)
    async with asking(certificate=True) as at:
        assert (await why(at, of(tmp_path, ca=ca))).endswith(WANTS_CERTIFICATE)
        assert (await why(at, of(tmp_path))).endswith(WANTS_TLS)
        stranger = Authority().issue("gpu.example").written(tmp_path, "agent")
        assert "may want" not in await why(at, of(tmp_path, ca=ca, **stranger))
        others = Authority().written(tmp_path, "others")
        reason = await why(at, of(tmp_path, ca=others))
        assert "CERTIFICATE_VERIFY_FAILED" in reason
        assert "may want" not in reason
    async with asking(certificate=False) as at:
        assert (await why(at, of(tmp_path, ca=ca))).startswith("UNIMPLEMENTED")
    reason = await why(at, of(tmp_path, ca=ca))  # nobody listens there now
    assert "Connection refused" in reason
    assert "may want" not in reason


async def test_who_leaves_while_a_connection_fails_ends_well() -> None:
    async with asking(certificate=False) as at:
        pass  # nobody listens there now
    entered = asyncio.Event()
    loop = asyncio.get_running_loop()

    def plain() -> Credentials:
        loop.call_soon_threadsafe(entered.set)
        return PLAIN

    link = RouterLink(at, 0.1, loop.time, structlog.get_logger(), plain)
    running = asyncio.create_task(link.run())
    await entered.wait()
    link.leave()
    await asyncio.wait_for(running, 10)


@pytest.mark.parametrize("verbosity", [None, "INFO"])
async def test_grpc_writes_lines_of_its_own_only_where_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verbosity: str | None
) -> None:
    monkeypatch.setenv("TESTS_BEGIN_ANEW", "1")  # forks have gRPC from a process that told it already
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    if verbosity is not None:
        monkeypatch.setenv("GRPC_VERBOSITY", verbosity)
    tls = OURS.issue("127.0.0.1").written(tmp_path, "server") | {"client_ca": OURS.written(tmp_path)}
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump({"listen": ANY_PORTS | {"tls": {"agents": tls}}}))
    serve = await Child.start("serve", ourselves("serve", "--config", str(tmp_path / "serve.yaml")), tmp_path)
    children = [serve]
    try:
        agents = (await serve.logged(r'"agents": ?"([^"]+)"', within_s=30))[1]
        for name, ca in (("bare", OURS), ("lost", Authority())):
            trusted = ca.written(tmp_path, name)
            command = ["--node-id", "gpu-1", "--engine", "http://127.0.0.1:1", "--router", agents, "--tls-ca", trusted]
            children.append(await Child.start(name, ourselves("agent", *command), tmp_path))
        bare, lost = children[1:]
        await bare.logged("may want a client certificate.*router not reached", within_s=30)
        await lost.logged("CERTIFICATE_VERIFY_FAILED.*router not reached", within_s=30)
    finally:
        for child in children:
            await child.stop()
    for child, handshakes in ((serve, True), (bare, False), (lost, True)):
        raw = "ssl_transport_security" in child.log.read_text()
        assert raw == (handshakes and verbosity is not None), child.name
