"""The gRPC service that agents push to, and what they publish on a bus: each report becomes an event of the balancer.

A stream's end says nothing about its nodes: a router must not lose a fleet over a network hiccup, and freshness
finds out by itself. Agents say which messages they want acknowledged; what is not applied always is. An agent that
does not read acknowledgements is not read from, and one that sends faster than it is read from has to wait. Unasked,
streams hear of nodes that came over the bus and come no more.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import grpc
import structlog

from extproc.bus.bus import Bus
from extproc.core.balancer import Balancer
from extproc.nodehosts import Network
from extproc.nodes.published import hear
from extproc.nodes.reports import Reports
from extproc.nodes.source import Source
from extproc.ops.metrics import Metrics
from extproc.pb import nodes_pb2_grpc
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, RouterMessage
from extproc.streams import Waits

SILENCE_S_MAX = 180.0
"""A stream is ended after so long without a message. Agents look at least each minute, and a look takes at most one."""
MISSED_LOOK_S = 0.25
"""How often it is looked for nodes that come over the bus no more."""
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
        self._voices: dict[Source, _Voice] = {}
        self._hears_bus = False
        self._looking: asyncio.TimerHandle | None = None
        self._waits = Waits()

    @property
    def streams_open(self) -> int:
        """Agents connected."""
        return len(self._voices)

    def hear(self, bus: Bus) -> None:
        """Take what agents publish there, too."""
        self._hears_bus = True
        hear(bus, self._reports)

    def drain(self) -> None:
        """End every stream after the message in hand, and every new one at once: agents go elsewhere."""
        self._waits.end()

    async def Report(self, _: AsyncIterator[AgentMessage], context: Context) -> None:  # noqa: N802 - gRPC's name
        """One agent's stream, for as long as it likes."""
        if len(self._voices) >= self._streams_max:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"agent_streams_max is {self._streams_max}")
        stream = Source(context.peer())  # the context is not touched once its RPC has ended
        voice = self._voices[stream] = _Voice(context)
        self._look_later()
        try:
            if not await self._waits.each(context, partial(self._take, stream, voice), SILENCE_S_MAX):
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"not a word for {SILENCE_S_MAX:g} s")
        finally:
            self._voices.pop(stream).has_ended = True
            if stream.known:
                self._log.info("agent's stream ended", peer=stream.peer, nodes=sorted(stream.known)[:10])
            self._reports.ended(stream)

    async def _take(self, stream: Source, voice: "_Voice", message: AgentMessage) -> None:
        await voice.say(self._reports.take(message, stream))

    def _look_later(self) -> None:
        """One timer for all streams, while there are any."""
        if self._looking is None and self._hears_bus and self._voices:
            self._looking = asyncio.get_running_loop().call_later(MISSED_LOOK_S, self._look)

    def _look(self) -> None:
        self._looking = None
        self._look_later()
        for stream, missed in self._reports.missed().items():
            self._voices[stream].say_unasked(missed)


class _Voice:
    """Our side of one stream: gRPC takes one message at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._turn = asyncio.Lock()
        self._unasked: asyncio.Task[None] | None = None
        self.has_ended = False
        """Its context is not touched any more."""

    async def say(self, told: Sequence[Acknowledgement]) -> None:
        """Waits until the agent reads."""
        if told:
            async with self._turn:
                for acknowledgement in told:
                    if not self.has_ended:
                        await self._context.write(RouterMessage(acknowledgement=acknowledgement))

    def say_unasked(self, told: Sequence[Acknowledgement]) -> None:
        """Does not wait; one that did not read the last such words does not hear these."""
        if self._unasked is None or self._unasked.done():
            self._unasked = asyncio.ensure_future(self.say(told))
            self._unasked.add_done_callback(_forgiven)


def _forgiven(said: asyncio.Task[None]) -> None:
    if not said.cancelled():
        said.exception()  # the stream has ended meanwhile


def register(server: grpc.aio.Server, ingest: NodeIngest) -> None:
    """Serve the agents on this server."""
    nodes_pb2_grpc.add_NodesServicer_to_server(ingest, server)  # type: ignore[no-untyped-call]
