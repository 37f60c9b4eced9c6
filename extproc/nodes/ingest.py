"""The gRPC service that agents push to: each report becomes an event of the balancer.

A stream's end says nothing about its nodes: a router must not lose a fleet over a network hiccup, and freshness
finds out by itself. Agents say which messages they want acknowledged; what is not applied always is. An agent that
does not read acknowledgements is not read from, and one that sends faster than it is read from has to wait.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TypeAlias, assert_never

import grpc
import structlog

from extproc.core.balancer import Balancer
from extproc.core.snapshot import (
    SNAPSHOTS_TOGETHER_MAX,
    Applied,
    Freshness,
    Ignored,
    KvBlocksTold,
    NodeEvent,
    NodeReported,
    NotAllowed,
)
from extproc.nodehosts import Network
from extproc.nodes import wire
from extproc.ops.metrics import Metrics
from extproc.pb import nodes_pb2_grpc
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, Goodbye, KvBlocks, NodeSnapshot, RouterMessage
from extproc.streams import Waits

NODES_PER_STREAM_MAX = 1024
"""Nodes that one agent may report; further ones are refused."""
COMPLAINTS_KEPT_MAX = 1000
"""Kinds of complaints, a node's each, whose last turn is remembered."""
LOG_INTERVAL_S = 10.0
"""The same kind of complaint is logged at most once in this time, with the number of those left out."""
SILENCE_S_MAX = 180.0
"""A stream is ended after so long without a message. Agents look at least each minute, and a look takes at most one."""
PING_INTERVAL_MIN_S = 5
"""Agents may ping an idle connection this often, to find out that a router is gone."""

APPLIED = Acknowledgement.VERDICT_APPLIED
IGNORED = Acknowledgement.VERDICT_IGNORED
REFUSED = Acknowledgement.VERDICT_REFUSED
_VERDICT_LABELS = {APPLIED: "applied", IGNORED: "ignored", REFUSED: "refused"}

Context = grpc.aio.ServicerContext[AgentMessage, RouterMessage]
Verdict: TypeAlias = Acknowledgement.Verdict.ValueType


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
        stream, peer = _Stream(context.peer()), context.peer()  # the context is not touched once its RPC has ended
        self._streams_open += 1
        try:
            if not await self._waits.each(context, partial(self._take, stream, peer, context), SILENCE_S_MAX):
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"not a word for {SILENCE_S_MAX:g} s")
        finally:
            self._streams_open -= 1
            if stream.known:
                self._log.info("agent's stream ended", peer=peer, nodes=sorted(stream.known)[:10])
            for node_id in stream.known:
                if self._reporters.get(node_id) is stream:
                    del self._reporters[node_id]

    async def _take(self, stream: "_Stream", peer: str, context: Context, message: AgentMessage) -> None:
        for acknowledgement in self._acknowledgements(message, stream, peer):
            await context.write(RouterMessage(acknowledgement=acknowledgement))

    def _acknowledgements(self, message: AgentMessage, stream: "_Stream", peer: str) -> list[Acknowledgement]:
        """Take a message; what the agent shall hear of it."""
        quiet = message.quiet
        match message.WhichOneof("message"):
            case "snapshot":
                told = [self._report(message.snapshot, stream, peer, quiet=quiet)]
            case "snapshots":
                listed = message.snapshots.snapshots
                if 1 <= len(listed) <= SNAPSHOTS_TOGETHER_MAX:
                    last = len(listed) - 1
                    told = [
                        self._report(one, stream, peer, quiet=quiet or place < last) for place, one in enumerate(listed)
                    ]
                else:
                    wanted = f"snapshots: wanted 1..{SNAPSHOTS_TOGETHER_MAX} snapshots, got {len(listed)}"
                    told = [self._told("", 0, REFUSED, wanted, peer, quiet=quiet)]
            case "goodbye":
                told = [self._goodbye(message.goodbye, stream, peer, quiet=quiet)]
            case "kv_blocks":
                told = [self._kv_blocks(message.kv_blocks, stream, peer, quiet=quiet)]
            case _:
                reason = "message: wanted a snapshot or a goodbye, got neither"
                told = [self._told("", 0, REFUSED, reason, peer, quiet=quiet)]
        return [one for one in told if one is not None]

    def _report(self, message: NodeSnapshot, stream: "_Stream", peer: str, *, quiet: bool) -> Acknowledgement | None:
        node_id = message.node_id
        known = stream.known.get(node_id)
        report = wire.report_of(message, self._hosts_allowed, known)
        if isinstance(report, str):
            verdict, reason = REFUSED, report
        elif self._speaks_for_another(stream, node_id, message.boot_id):
            verdict, reason = REFUSED, "boot_id: wanted one that no other agent reports, got one that another does"
            self._complain("node reported by two streams", node_id, peer=peer, other=self._reporters[node_id].peer)
        elif known is None and len(stream.known) >= NODES_PER_STREAM_MAX:
            verdict, reason = REFUSED, f"node_id: wanted at most {NODES_PER_STREAM_MAX} nodes on a stream, got another"
        else:
            if stream.kv_sequences and self._balancer.view_of(node_id) is None:
                stream.kv_sequences.pop(node_id, None)  # it was forgotten after a long silence, with its blocks
            verdict, reason = self._observe(NodeReported(report.snapshot))
            if verdict is not REFUSED:
                stream.known[node_id] = report
                other = self._reporters.get(node_id, stream)
                if verdict is APPLIED:  # who only repeats what is known gets no say
                    self._reporters[node_id] = stream
                if other is not stream:
                    self._complain("node reported by two streams", node_id, peer=peer, other=other.peer)
        return self._told(node_id, message.sequence, verdict, reason, peer, quiet=quiet)

    def _speaks_for_another(self, stream: "_Stream", node_id: str, boot_id: str) -> bool:
        """Whether another stream reports this boot, and did so lately. A boot is one run of one agent, which has one
        stream to us: its next one may come before we lose the one before, but then that says nothing any more."""
        if self._reporters.get(node_id, stream) is stream:
            return False
        view = self._balancer.view_of(node_id)
        if view is None or view.snapshot.boot_id != boot_id:
            return False
        return self._balancer.freshness(view, self._clock()) is Freshness.FRESH

    def _goodbye(self, message: Goodbye, stream: "_Stream", peer: str, *, quiet: bool) -> Acknowledgement | None:
        left = wire.goodbye_of(message)
        if isinstance(left, str):
            verdict, reason = REFUSED, left
        elif self._reporters.get(left.node_id, stream) is not stream:
            verdict, reason = REFUSED, "goodbye: wanted that of a node of this stream, got that of another's"
        else:
            verdict, reason = self._observe(left)
        if verdict is APPLIED:
            stream.known.pop(message.node_id, None)
            stream.kv_sequences.pop(message.node_id, None)
            self._reporters.pop(message.node_id, None)
        return self._told(message.node_id, 0, verdict, reason, peer, quiet=quiet)

    def _kv_blocks(self, message: KvBlocks, stream: "_Stream", peer: str, *, quiet: bool) -> Acknowledgement | None:
        """What a node tells of its cache rests on what it told before: once one is refused, all is to be told anew."""
        told, node_id = wire.kv_blocks_of(message), message.node_id
        wanted = stream.kv_sequences.pop(node_id, None)
        if isinstance(told, str):
            verdict, reason = REFUSED, f"kv_blocks.{told}"
        elif node_id not in stream.known:
            verdict, reason = REFUSED, "kv_blocks.node_id: wanted a node that was reported on this stream"
        elif not told.everything and message.sequence != wanted:
            shown = "one with `all`" if wanted is None else wanted
            verdict, reason = REFUSED, f"kv_blocks.sequence: wanted {shown}, got {message.sequence}"
        else:
            verdict, reason = self._observe(told)
        if verdict is APPLIED:
            stream.kv_sequences[node_id] = message.sequence + 1
        elif wanted is not None:
            self._observe(KvBlocksTold(node_id, stream.known[node_id].snapshot.boot_id, everything=True))
        return self._told(node_id, message.sequence, verdict, reason, peer, quiet=quiet)

    def _told(
        self, node_id: str, sequence: int, verdict: Verdict, reason: str, peer: str, *, quiet: bool
    ) -> Acknowledgement | None:
        """Count a verdict, log a refusal; the acknowledgement, if there shall be one."""
        self._metrics.snapshot(_VERDICT_LABELS[verdict])
        if quiet and verdict is APPLIED:
            return None
        node_id = node_id[: wire.ID_LENGTH_MAX]
        if verdict is REFUSED:
            self._complain("message of an agent refused", node_id, peer=peer, reason=reason)
        return Acknowledgement(node_id=node_id, sequence=sequence, verdict=verdict, reason=reason, takes_several=True)

    def _observe(self, event: NodeEvent) -> tuple[Verdict, str]:
        match self._balancer.observe(event, self._clock()):
            case Applied():
                return APPLIED, ""
            case Ignored(reason):
                return IGNORED, reason
            case NotAllowed(reason):
                return REFUSED, reason
            case other:
                assert_never(other)

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


class _Stream:
    """What one agent reported of the nodes that it did not take leave of."""

    __slots__ = ("known", "kv_sequences", "peer")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.kv_sequences: dict[str, int] = {}
        """Of nodes whose cache was told: the number of the next message about it."""
        self.known: dict[str, wire.Known] = {}


class _Complaint:
    """When a kind of complaint was last logged."""

    __slots__ = ("left_out", "logged_s")

    def __init__(self, logged_s: float) -> None:
        self.logged_s = logged_s
        self.left_out = 0


def register(server: grpc.aio.Server, ingest: NodeIngest) -> None:
    """Serve the agents on this server."""
    nodes_pb2_grpc.add_NodesServicer_to_server(ingest, server)  # type: ignore[no-untyped-call]
