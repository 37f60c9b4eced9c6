"""A router on loopback, as far as agents see one: the real ingest before the real balancer, over real gRPC."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import structlog
from structlog.testing import LogCapture

from extproc.config import Config
from extproc.core.balancer import Balancer
from extproc.core.settings import BalancerSettings, NodeLimits
from extproc.core.snapshot import NodeState, Snapshot
from extproc.listening import GRPC_OPTIONS
from extproc.nodes.ingest import NodeIngest, grpc_options, register
from extproc.ops.metrics import Metrics
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, NodeSnapshot, RouterMessage
from extproc.pb.nodes_pb2_grpc import NodesStub

Call = grpc.aio.StreamStreamCall[AgentMessage, RouterMessage]


@dataclass
class Router:
    """One running router."""

    port: int
    server: grpc.aio.Server
    ingest: NodeIngest
    balancer: Balancer
    metrics: Metrics
    logged: LogCapture

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def snapshot(self, node_id: str = "gpu-1") -> Snapshot | None:
        return next((view.snapshot for view in self.balancer.views() if view.snapshot.node_id == node_id), None)

    def state(self, node_id: str = "gpu-1") -> NodeState | None:
        snapshot = self.snapshot(node_id)
        return None if snapshot is None else snapshot.state

    def events(self, name: str) -> list[Any]:
        return [entry for entry in self.logged.entries if entry["event"] == name]


@contextlib.asynccontextmanager
async def router(
    port: int = 0,
    *,
    streams_max: int = 16,
    message_bytes_max: int = 64 * 1024,
    limits: NodeLimits | None = None,
    impatience: int = 1,
    name: str = "",
) -> AsyncIterator[Router]:
    """A router on a free port, or on the one of a router before it. `impatience`: how much sooner than `serve` it loses
    a silent connection. `name`: as a bus knows it."""
    loop = asyncio.get_running_loop()
    balancer = Balancer(BalancerSettings(nodes=limits or NodeLimits()), loop.time())
    metrics, logged = Metrics(), LogCapture()
    log = structlog.wrap_logger(None, processors=[logged], wrapper_class=structlog.BoundLogger)
    allowed = Config().hosts_allowed
    ingest = NodeIngest(balancer, allowed, metrics, loop.time, log, streams_max=streams_max, router=name)
    patience = [
        (name, value // impatience if name.startswith(("grpc.keepalive", "grpc.http2.ping_timeout")) else value)
        for name, value in GRPC_OPTIONS
    ]
    server = grpc.aio.server(options=[*grpc_options(message_bytes_max), *patience])
    register(server, ingest)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield Router(bound, server, ingest, balancer, metrics, logged)
    finally:
        await server.stop(0)


@dataclass
class Agent:
    """An agent's end of one stream, in the hands of a test."""

    call: Call
    acknowledged: list[Acknowledgement] = field(default_factory=list)

    async def say(self, message: AgentMessage | NodeSnapshot) -> Acknowledgement:
        await self.call.write(AgentMessage(snapshot=message) if isinstance(message, NodeSnapshot) else message)
        return await self.heard()

    async def heard(self) -> Acknowledgement:
        """The next acknowledgement."""
        answer = await self.call.read()
        assert isinstance(answer, RouterMessage), answer
        return answer.acknowledgement


@contextlib.asynccontextmanager
async def agent(to: Router) -> AsyncIterator[Agent]:
    async with grpc.aio.insecure_channel(to.address) as channel:
        call: Call = NodesStub(channel).Report()  # type: ignore[no-untyped-call]
        try:
            yield Agent(call)
        finally:
            call.cancel()
