"""The gRPC service that agents push to: each message becomes an event of the balancer and is acknowledged.

A stream's end says nothing about its nodes: a router must not lose a fleet over a network hiccup, and freshness
finds out by itself. Backpressure is the acknowledgement: an agent that does not read them is not read from.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import assert_never

import grpc
import structlog

from extproc.core.balancer import Balancer
from extproc.core.snapshot import Applied, Ignored, NodeEvent, NodeLeft, NodeReported, NotAllowed, Snapshot
from extproc.nodehosts import Network
from extproc.nodes import wire
from extproc.ops.metrics import Metrics
from extproc.pb import nodes_pb2_grpc
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, RouterMessage
from extproc.streams import Waits

NODES_PER_STREAM_MAX = 1024
"""Nodes that one agent may report; further ones are refused."""
COMPLAINTS_KEPT_MAX = 1000
"""Kinds of complaints, a node's each, whose last turn is remembered."""
LOG_INTERVAL_S = 10.0
"""The same kind of complaint is logged at most once in this time, with the number of those left out."""
PING_INTERVAL_MIN_S = 5
"""Agents may ping an idle connection this often, to find out that a router is gone."""

APPLIED = Acknowledgement.VERDICT_APPLIED
IGNORED = Acknowledgement.VERDICT_IGNORED
REFUSED = Acknowledgement.VERDICT_REFUSED
_VERDICT_LABELS = {APPLIED: "applied", IGNORED: "ignored", REFUSED: "refused"}

Context = grpc.aio.ServicerContext[AgentMessage, RouterMessage]


def grpc_options(message_bytes_max: int) -> list[tuple[str, int]]:
    """Options of the server that agents push to."""
    return [
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_INTERVAL_MIN_S * 1000),
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
    ) -> None:
        self._balancer = balancer
        self._hosts_allowed = hosts_allowed
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._streams_max = streams_max
        self._streams_open = 0
        self._waits = Waits()
        self._reporters: dict[str, _Stream] = {}
        self._complaints: dict[tuple[str, str], _Complaint] = {}

    @property
    def streams_open(self) -> int:
        """Agents connected."""
        return self._streams_open

    def drain(self) -> None:
        """End every stream after the message in hand, and every new one at once: agents go elsewhere."""
        self._waits.end()

    async def Report(self, _: AsyncIterator[AgentMessage], context: Context) -> None:  # noqa: N802 - gRPC's name
        """One agent's stream, for as long as it likes."""
        if self._streams_open >= self._streams_max:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"agent_streams_max is {self._streams_max}")
        stream, peer = _Stream(), context.peer()  # the context is not touched once its RPC has ended
        self._streams_open += 1
        try:
            while isinstance(message := await self._waits.read(context), AgentMessage):
                await context.write(RouterMessage(acknowledgement=self._take(message, stream, peer)))
        finally:
            self._streams_open -= 1
            if stream.node_ids:
                self._log.info("agent's stream ended", peer=peer, nodes=sorted(stream.node_ids)[:10])
            for node_id in stream.node_ids:
                if self._reporters.get(node_id) is stream:
                    del self._reporters[node_id]

    def _take(self, message: AgentMessage, stream: "_Stream", peer: str) -> Acknowledgement:
        match message.WhichOneof("message"):
            case "snapshot":
                told: Snapshot | NodeLeft | str = wire.snapshot_of(message.snapshot, self._hosts_allowed)
                acknowledgement = _about(message.snapshot.node_id, message.snapshot.sequence)
            case "goodbye":
                told = wire.goodbye_of(message.goodbye)
                acknowledgement = _about(message.goodbye.node_id, 0)
            case None:
                told, acknowledgement = "message: wanted a snapshot or a goodbye, got neither", _about("", 0)
        if isinstance(told, str):
            verdict, reason = REFUSED, told
        elif told.node_id not in stream.node_ids and len(stream.node_ids) >= NODES_PER_STREAM_MAX:
            verdict, reason = REFUSED, f"node_id: wanted at most {NODES_PER_STREAM_MAX} nodes on a stream, got another"
        else:
            verdict, reason = self._observe(told if isinstance(told, NodeLeft) else NodeReported(told))
            if verdict is not REFUSED:
                self._note_reporter(told.node_id, stream, peer)
        if verdict is REFUSED:
            self._complain("message of an agent refused", acknowledgement.node_id, peer=peer, reason=reason)
        self._metrics.snapshot(_VERDICT_LABELS[verdict])
        acknowledgement.verdict = verdict
        acknowledgement.reason = reason
        return acknowledgement

    def _observe(self, event: NodeEvent) -> tuple[Acknowledgement.Verdict.ValueType, str]:
        match self._balancer.observe(event, self._clock()):
            case Applied():
                return APPLIED, ""
            case Ignored(reason):
                return IGNORED, reason
            case NotAllowed(reason):
                return REFUSED, reason
            case other:
                assert_never(other)

    def _note_reporter(self, node_id: str, stream: "_Stream", peer: str) -> None:
        stream.node_ids.add(node_id)
        if self._reporters.setdefault(node_id, stream) is not stream:
            self._reporters[node_id] = stream
            self._complain("node reported by two streams", node_id, peer=peer)

    def _complain(self, event: str, node_id: str, **values: str) -> None:
        """Log it, at most once in `LOG_INTERVAL_S` for each event and node; nodes beyond a bound share one turn."""
        now_s = self._clock()
        if len(self._complaints) >= COMPLAINTS_KEPT_MAX:
            recent = {key: one for key, one in self._complaints.items() if now_s - one.logged_s < LOG_INTERVAL_S}
            self._complaints = recent
        key = (event, node_id if len(self._complaints) < COMPLAINTS_KEPT_MAX else "")
        complaint = self._complaints.setdefault(key, _Complaint(now_s - LOG_INTERVAL_S))
        if now_s - complaint.logged_s < LOG_INTERVAL_S:
            complaint.left_out += 1
            return
        shown = node_id if node_id.isprintable() else wire.shown(node_id)
        self._log.warning(event, node_id=shown, left_out=complaint.left_out, **values)
        self._complaints[key] = _Complaint(now_s)


def _about(node_id: str, sequence: int) -> Acknowledgement:
    return Acknowledgement(node_id=node_id[: wire.ID_LENGTH_MAX], sequence=sequence)


class _Stream:
    """What one agent reported."""

    __slots__ = ("node_ids",)

    def __init__(self) -> None:
        self.node_ids: set[str] = set()


class _Complaint:
    """When a kind of complaint was last logged."""

    __slots__ = ("left_out", "logged_s")

    def __init__(self, logged_s: float) -> None:
        self.logged_s = logged_s
        self.left_out = 0


def register(server: grpc.aio.Server, ingest: NodeIngest) -> None:
    """Serve the agents on this server."""
    nodes_pb2_grpc.add_NodesServicer_to_server(ingest, server)  # type: ignore[no-untyped-call]
