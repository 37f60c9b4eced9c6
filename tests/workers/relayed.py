"""A relay on loopback, before routers as agents see them."""

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import grpc
import structlog
from structlog.testing import LogCapture

from extproc.address import TcpAddress
from extproc.listening import GRPC_OPTIONS
from extproc.nodes.ingest import grpc_options
from extproc.pb.nodes_pb2_grpc import NodesStub
from extproc.workers.relay import Relay, register
from tests.nodes.loopback import Agent, Router


@dataclass
class Relayed:
    relay: Relay
    port: int
    logged: LogCapture

    def events(self, name: str) -> list[int]:
        """The workers of which this was logged."""
        return [entry["worker"] for entry in self.logged.entries if entry["event"] == name]


def place(router: Router) -> TcpAddress:
    return TcpAddress("127.0.0.1", router.port)


@contextlib.asynccontextmanager
async def relayed(
    routers: Sequence[Router], *, streams_max: int = 16, relay_s_max: float = 2.0
) -> AsyncIterator[Relayed]:
    logged = LogCapture()
    log = structlog.wrap_logger(None, processors=[logged], wrapper_class=structlog.BoundLogger)
    relay = Relay(log, streams_max=streams_max, relay_s_max=relay_s_max)
    for number, router in enumerate(routers):
        relay.up(number, place(router))
    server = grpc.aio.server(options=[*grpc_options(256 * 1024), *GRPC_OPTIONS])
    register(server, relay)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Relayed(relay, port, logged)
    finally:
        await server.stop(0)
        await relay.close()


@contextlib.asynccontextmanager
async def agent(to: Relayed) -> AsyncIterator[Agent]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{to.port}") as channel:
        call = NodesStub(channel).Report()  # type: ignore[no-untyped-call]
        try:
            yield Agent(call)
        finally:
            call.cancel()


@contextlib.contextmanager
def deaf() -> Iterator[TcpAddress]:
    """An address where connections are taken by the system, and nobody reads: a worker that hangs."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield TcpAddress("127.0.0.1", listening.getsockname()[1])
