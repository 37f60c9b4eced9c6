"""The services that `serve` has for Envoy in the test's own process, so that it can see what an Envoy tells them."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc.address import TcpAddress
from extproc.config import ServeLimits
from extproc.core.balancer import Balancer
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import BalancerSettings, NodeLimits
from extproc.core.snapshot import NodeReported, ServedModel
from extproc.fleet import Envoy, Fleet, Serve
from extproc.gateway import accesslog, server
from extproc.gateway.accesslog import AccessLog, AnswerEnded
from extproc.gateway.routepolicy import RoutePolicies
from extproc.ops.metrics import Metrics
from extproc.traffic import Answer, Ask, ask, completion
from tests.core.fleet import snapshot
from tests.e2e.conftest import MODEL, PROBE
from tests.gateway.wire import Counter
from tests.rendered import rendered
from tests.waiting import until

SCRIPTED, SILENT, GONE = "scripted", "silent", "gone"
"""Models, each of a node that answers as a test says, that never answers, or that is not there."""


def asking(model: str) -> Ask:
    return Ask("completion", "/v1/completions", completion(model, "Once upon a time", output_tokens=5, stream=False))


@dataclass
class Scripted:
    """An engine that answers every request with these bytes, piece by piece; with none it lets the client wait."""

    pieces: list[bytes]
    requests: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]))
            self.requests += 1
            for piece in self.pieces:
                writer.write(piece)
                await writer.drain()
            if not self.pieces:
                await reader.read()
        finally:
            writer.close()


@dataclass
class Watched:
    """Both services on one server, as Envoy's cluster expects them, the Envoy, and what it told."""

    client: aiohttp.ClientSession
    serve: Serve
    envoy: Envoy
    known: list[TcpAddress]
    balancer: Balancer
    access_log: AccessLog
    scripted: Scripted
    silent: Scripted
    ended: list[AnswerEnded]
    gone: str

    async def ask(self, request: Ask) -> tuple[Answer, AnswerEnded]:
        """An answer, and how it ended; requests go one at a time."""
        before = len(self.ended)
        answer = await ask(self.client, self.envoy.url, request)
        await until(lambda: len(self.ended) > before)
        (one,) = self.ended[before:]
        return answer, one

    async def answered(self, *pieces: bytes, head: str = "content-type: application/json") -> AnswerEnded:
        """How a request ended that the scripted engine answered so."""
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        begin = f"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n{head}\r\n\r\n".encode()
        self.scripted.pieces = [begin + body[: len(body) // 2], body[len(body) // 2 :], b"0\r\n\r\n"]
        answer, one = await self.ask(asking(SCRIPTED))
        assert answer.status == 200, answer
        return one


def add_node(balancer: Balancer, model: str, host: str) -> None:
    """A node that alone serves this model."""
    reported = snapshot(model, host=host, models=(ServedModel(model, context_length_tokens=8192),))
    balancer.observe(NodeReported(reported), time.monotonic())


@asynccontextmanager
async def services(
    balancer: Balancer, ended: list[AnswerEnded], metrics: Metrics
) -> AsyncIterator[tuple[AccessLog, int]]:
    """What `serve` runs on its port for Envoy."""
    limits = ServeLimits()
    policies = RoutePolicies({}, RoutingPolicy(), policy_bytes_max=limits.policy_bytes_max)
    access_log = AccessLog(ended.append, metrics)
    processor = server.ExternalProcessor(
        balancer,
        policies,
        Counter(),
        limits,
        metrics,
        time.monotonic,
        boot="watched",
        ends_are_told=lambda: access_log.streams_open > 0,
    )
    healths = health.aio.HealthServicer()
    await healths.set("envoy.service.ext_proc.v3.ExternalProcessor", health_pb2.HealthCheckResponse.SERVING)
    running = grpc.aio.server(options=server.grpc_options(limits))
    server.register(running, processor)
    accesslog.register(running, access_log)
    health_pb2_grpc.add_HealthServicer_to_server(healths, running)
    port = running.add_insecure_port("127.0.0.1:0")
    await running.start()
    try:
        yield access_log, port
    finally:
        access_log.drain()
        processor.drain()
        await running.stop(10)


@asynccontextmanager
async def listening(scripted: Scripted) -> AsyncIterator[str]:
    running = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{running.sockets[0].getsockname()[1]}"
    finally:
        running.close()


@asynccontextmanager
async def watching(client: aiohttp.ClientSession, folder: Path) -> AsyncIterator[Watched]:
    """An Envoy whose bootstrap has usage turned on, and nodes of every kind. Fails where an entry was no good."""
    bootstrap = folder / "on.yaml"
    bootstrap.write_text(rendered(usage=True))
    ended: list[AnswerEnded] = []
    metrics = Metrics()
    limits = NodeLimits(fresh_s=3000, stale_s=3000, member_s=3000)
    balancer = Balancer(BalancerSettings(nodes=limits), time.monotonic() - 60)
    scripted, silent = Scripted([]), Scripted([])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        gone = f"127.0.0.1:{taken.getsockname()[1]}"
        async with (
            services(balancer, ended, metrics) as (access_log, port),
            listening(scripted) as scripted_host,
            listening(silent) as silent_host,
            Fleet(folder) as fleet,
        ):
            engine = await fleet.engine("gpu-1", MODEL)
            hosts = {MODEL: str(engine.address), SCRIPTED: scripted_host, SILENT: silent_host, GONE: gone}
            for model, host in hosts.items():
                add_node(balancer, model, host)
            at = TcpAddress("127.0.0.1", port)
            serve = Serve(engine.child, at, at, at)
            envoy = await fleet.envoy(serve, [engine.address], bootstrap=bootstrap)

            async def chosen() -> bool:
                return (await ask(client, envoy.url, PROBE)).chosen is not None

            await fleet.until("choices", chosen)
            scripted.pieces = [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"]
            await ask(client, envoy.url, asking(SCRIPTED))
            await until(lambda: any(one.model == SCRIPTED for one in ended))  # and so all before it
            yield Watched(client, serve, envoy, [engine.address], balancer, access_log, scripted, silent, ended, gone)
            page = metrics.page(()).decode()
            assert "extproc_errors_total{" not in page
            assert 'extproc_access_log_entries_total{verdict="ignored"} 0.0' in page
