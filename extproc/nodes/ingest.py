"""The gRPC service that agents push to, and what they publish on a bus: each report becomes an event of the balancer.

A stream's end says nothing about its nodes: a router must not lose a fleet over a network hiccup, and freshness
finds out by itself. Agents say which messages they want acknowledged; what is not applied always is. An agent that
does not read acknowledgements is not read from, and one that sends faster than it is read from has to wait.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import grpc
import structlog

from extproc.bus.bus import Bus
from extproc.core.balancer import Balancer
from extproc.nodehosts import Network
from extproc.nodes.published import hear
from extproc.nodes.reports import Reports, Source
from extproc.ops.metrics import Metrics
from extproc.pb import nodes_pb2_grpc
from extproc.pb.nodes_pb2 import AgentMessage, RouterMessage
from extproc.streams import Waits

SILENCE_S_MAX = 180.0
"""A stream is ended after so long without a message. Agents look at least each minute, and a look takes at most one."""
PING_INTERVAL_MIN_S = 5
"""Agents may ping an idle connection this often, to find out that a router is gone."""

Context = grpc.aio.ServicerContext[AgentMessage, RouterMessage]


def grpc_options(message_bytes_max: int) -> list[tuple[str, int]]:
    """Options of the server that agents push to."""
    return [
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_INTERVAL_MIN_S * 1000),
        # gRPC would ask each agent for a ping with each report, to find out how much may be under way: a third of what
        # reading one costs. Reports fit into the window that every stream begins with.
        ("grpc.http2.bdp_probe", 0),
    ]


class NodeIngest(nodes_pb2_grpc.NodesServicer):
    """Serves `extproc.pb.Nodes`. `clock` is `time.monotonic` or the like: seconds."""

    def __init__(
        self,
        balancer: Balancer,
        hosts_allowed: Sequence[Network],
        metrics: Metrics,
        clock: Callable[[], float],
        log: structlog.typing.FilteringBoundLogger,
        *,
        streams_max: int,
        router: str = "",
    ) -> None:
        """`router` is this process as a bus knows it, for agents to hear; empty: there is no bus."""
        self._reports = Reports(balancer, hosts_allowed, metrics, clock, log, router)
        self._log = log
        self._streams_max = streams_max
        self._streams_open = 0
        self._waits = Waits()

    @property
    def streams_open(self) -> int:
        """Agents connected."""
        return self._streams_open

    def hear(self, bus: Bus) -> None:
        """Take what agents publish there, too."""
        hear(bus, self._reports)

    def drain(self) -> None:
        """End every stream after the message in hand, and every new one at once: agents go elsewhere."""
        self._waits.end()

    async def Report(self, _: AsyncIterator[AgentMessage], context: Context) -> None:  # noqa: N802 - gRPC's name
        """One agent's stream, for as long as it likes."""
        if self._streams_open >= self._streams_max:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"agent_streams_max is {self._streams_max}")
        stream = Source(context.peer())  # the context is not touched once its RPC has ended
        self._streams_open += 1
        try:
            if not await self._waits.each(context, partial(self._take, stream, context), SILENCE_S_MAX):
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"not a word for {SILENCE_S_MAX:g} s")
        finally:
            self._streams_open -= 1
            if stream.known:
                self._log.info("agent's stream ended", peer=stream.peer, nodes=sorted(stream.known)[:10])
            self._reports.ended(stream)

    async def _take(self, stream: Source, context: Context, message: AgentMessage) -> None:
        for acknowledgement in self._reports.take(message, stream):
            await context.write(RouterMessage(acknowledgement=acknowledgement))


def register(server: grpc.aio.Server, ingest: NodeIngest) -> None:
    """Serve the agents on this server."""
    nodes_pb2_grpc.add_NodesServicer_to_server(ingest, server)  # type: ignore[no-untyped-call]
