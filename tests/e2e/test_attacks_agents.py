"""Agents that mean ill, over the real port of a real serve: what they say aims nothing and stands on no page."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub

from extproc.address import TcpAddress
from extproc.fleet import Fleet, Serve
from extproc.pb import nodes_pb2 as pb
from extproc.pb.nodes_pb2_grpc import NodesStub
from tests.e2e.scripted import CONFIG
from tests.gateway.wire import ask, body, destination, head

REFUSED = pb.Acknowledgement.VERDICT_REFUSED
TOKEN = "known-0123456789abcdef"
NETWORKS = ["10.0.0.0/8", "fd00::/8", "127.0.0.0/8"]
CONTEXT_TOKENS = 10_000
Say = Callable[..., Awaitable[pb.Acknowledgement]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Fleet, Serve]]:
    """Its agents show a token."""
    folder = tmp_path_factory.mktemp("agents")
    (folder / "tokens").write_text(TOKEN)
    config = {**CONFIG, "hosts_allowed": NETWORKS, "listen": {"agent_tokens": str(folder / "tokens")}}
    async with Fleet(folder) as fleet:
        serve = await fleet.serve(config)
        yield fleet, serve
        text = serve.child.log.read_bytes().decode()
        assert all(one.isprintable() for line in text.split("\n") for one in line)
        assert "error of ours" not in text
        assert TOKEN not in text
        assert max(map(len, text.split("\n"))) < 2_000


@asynccontextmanager
async def agent(serve: Serve, token: str | None = TOKEN) -> AsyncIterator[Say]:
    """Says one snapshot after another; the acknowledgement of each."""
    async with grpc.aio.insecure_channel(str(serve.agents)) as channel:
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        call = NodesStub(channel).Report(metadata=metadata)  # type: ignore[no-untyped-call]
        boot_id, sequence = uuid.uuid4().hex, 0

        async def say(**fields: Any) -> pb.Acknowledgement:
            nonlocal sequence
            sequence += 1
            models = pb.ModelList(models=[pb.ServedModel(name="demo", context_length_tokens=CONTEXT_TOKENS)])
            well: dict[str, Any] = {"node_id": "gpu", "host": "10.0.0.1:80", "boot_id": boot_id, "sequence": sequence}
            well |= {"state": pb.NODE_STATE_READY, "models": models}
            await call.write(pb.AgentMessage(snapshot=pb.NodeSnapshot(**(well | fields))))
            answer = await call.read()
            assert answer is not grpc.aio.EOF, await call.code()
            told: pb.Acknowledgement = answer.acknowledgement
            return told

        yield say
        call.cancel()


async def pages(fleet: Fleet, serve: Serve) -> str:
    return str([await fleet.json(f"http://{serve.admin}/{one}") for one in ("nodes", "decisions")])


HOSTS = [
    "169.254.169.254:80", "0.0.0.0:80", "[::]:80", "8.8.8.8:80", "192.168.0.1:80", "localhost:80", "node.internal:80",
    "10.0.0.1:80,10.0.0.2:80", "10.0.0.1:80 ", "[::ffff:169.254.169.254]:80", "[::ffff:10.0.0.1]:80",
    "[fe80::1%eth0]:80", "[fd00::1%1]:80", "[64:ff9b::a9fe:a9fe]:80", "10.0.0.1:0", "10.0.0.1:65536",
    "10.0.0.1:\uff18\uff10", "\uff11\uff10.0.0.1:80", "10.0.0.1:80\r\n", "10.0.0.1:80\0", "10.0.0.1:80\u2028",
    "010.0.0.1:80", "0xa000001:80", "10.1:80", "10.0.0.1", "10.0.0.1:80/x", "x@10.0.0.1:80", "http://10.0.0.1:80",
    "unix:/run/x", "", "[fd00:ec2::254]:80", "224.0.0.1:80", "10.0.0.1:80" * 1000,
]  # fmt: skip


async def test_no_agent_aims_envoy_elsewhere(served: tuple[Fleet, Serve]) -> None:
    async with agent(served[1]) as say:
        for host in HOSTS:
            told = await say(host=host)
            assert told.verdict == REFUSED, host
            assert told.reason.startswith("host: wanted "), told.reason
            assert told.reason.isprintable(), told.reason
            assert len(told.reason) < 300
    assert (await served[0].json(f"http://{served[1].admin}/nodes"))["nodes"] == []


async def test_a_port_open_to_the_network_takes_no_loopback(tmp_path: Path) -> None:
    """Envoy's own admin page listens there."""
    config = {**CONFIG, "listen": {"agents": "0.0.0.0:0", "insecure": True}}
    async with Fleet(tmp_path) as fleet:
        serve = await fleet.serve(config)
        local = Serve(serve.child, serve.extproc, TcpAddress("127.0.0.1", serve.agents.port), serve.admin)
        async with agent(local, token=None) as say:
            for host in ("127.0.0.1:9901", "127.1.2.3:80", "[::1]:80"):
                assert (await say(host=host)).verdict == REFUSED, host
            assert (await say(host="10.0.0.1:80")).verdict == pb.Acknowledgement.VERDICT_APPLIED


TEXTS = ["a\r\nset-cookie: x", "a\n", "a\0b", "a\u2028b", "a\u0085", "\x1b[2Ja", "\u202ea", "x" * 10_000, "a\ufeff"]


def of_models(name: str = "demo", version: str = "") -> pb.ModelList:
    return pb.ModelList(models=[pb.ServedModel(name=name, version=version)])


@pytest.mark.parametrize("field", ["node_id", "boot_id", "not_ready_reason", "name", "version"])
async def test_no_agent_writes_into_pages_logs_or_headers(served: tuple[Fleet, Serve], field: str) -> None:
    fleet, serve = served
    async with agent(serve) as say:
        for text in TEXTS:
            told = await say(
                **({"models": of_models(**{field: text})} if field in ("name", "version") else {field: text})
            )
            assert told.verdict == REFUSED, text
            assert told.reason.isprintable(), told.reason
            assert len(told.reason) < 300
    assert (await fleet.json(f"http://{serve.admin}/nodes"))["nodes"] == []
    assert "set-cookie" not in await pages(fleet, serve)


async def test_what_passes_is_told_as_it_is(served: tuple[Fleet, Serve]) -> None:
    """The other tests would pass as well if nothing were taken."""
    fleet, serve = served
    async with agent(serve) as say:
        told = await say(node_id="gpu-7", models=of_models(name='é "quoted" <b>'), not_ready_reason="<script>")
        assert told.verdict == pb.Acknowledgement.VERDICT_APPLIED, told.reason
        assert "<script>" in await pages(fleet, serve)
        async with grpc.aio.insecure_channel(str(serve.extproc)) as channel:
            call = ExternalProcessorStub(channel).Process()
            reply = await ask(
                call, head("/v1/completions"), body('{"model": "é \\"quoted\\" <b>", "prompt": "x"}'.encode())
            )
            assert destination(reply) == "10.0.0.1:80"
            call.cancel()


async def test_ports_are_not_taken_for_each_other(served: tuple[Fleet, Serve]) -> None:
    fleet, serve = served
    metadata = (("authorization", f"Bearer {TOKEN}"),)
    for at, stub in ((serve.extproc, NodesStub), (serve.agents, ExternalProcessorStub)):
        async with grpc.aio.insecure_channel(str(at)) as channel:
            made: Any = stub(channel)
            call = made.Report(metadata=metadata) if stub is NodesStub else made.Process(metadata=metadata)
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
    async with grpc.aio.insecure_channel(str(serve.extproc)) as channel:
        # A token says nothing to the port that wants none, and is kept nowhere.
        call = ExternalProcessorStub(channel).Process(metadata=metadata)
        assert (await ask(call, head())).HasField("request_headers")
        call.cancel()
    assert TOKEN not in await pages(fleet, serve)


@pytest.mark.parametrize("token", [None, "", "other-0123456789abcdef", TOKEN + " ", TOKEN[:-1], "x" * 4000])
async def test_without_a_known_token_nothing_is_heard(served: tuple[Fleet, Serve], token: str | None) -> None:
    _, serve = served
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    async with grpc.aio.insecure_channel(str(serve.agents)) as channel:
        call = NodesStub(channel).Report(metadata=metadata)  # type: ignore[no-untyped-call]
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED, "before anything is read"
