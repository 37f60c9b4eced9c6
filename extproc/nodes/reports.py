"""What agents tell, whichever way it comes: each message becomes an event of the balancer, and has a verdict.

An agent may tell the same on its stream and over a bus. Reports that repeat what is known change nothing, so the two
ways need not know of each other; but they are one agent, where two streams are two.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias, assert_never

import structlog

from extproc.core.balancer import Balancer
from extproc.core.snapshot import (
    ROUND_TRIP_S_MAX,
    SNAPSHOTS_TOGETHER_MAX,
    Applied,
    Freshness,
    Ignored,
    KvBlocksTold,
    NodeEvent,
    NodeReported,
    NotAllowed,
    Snapshot,
)
from extproc.nodehosts import Network
from extproc.nodes import wire
from extproc.nodes.complaints import Complaints
from extproc.nodes.source import NEWCOMERS_MAX, NEWCOMERS_S, Newcomers, Source
from extproc.ops.metrics import Metrics
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, Goodbye, KvBlocks, NodeSnapshot

NODES_PER_STREAM_MAX = 1024
"""Nodes that one agent may report; further ones are refused."""
NODES_GONE_MAX = 64
"""Nodes reported over the bus that are no members any more, and whose last report is still kept."""
MISSED_AHEAD_S = 1.5
"""A node that came over the bus is asked for on its agent's stream so long before it would be stale. With the usual
`fresh_s`, 5 s, that is later than the next report of any idle node."""

APPLIED = Acknowledgement.VERDICT_APPLIED
IGNORED = Acknowledgement.VERDICT_IGNORED
REFUSED = Acknowledgement.VERDICT_REFUSED
MISSED = Acknowledgement.VERDICT_MISSED
_VERDICT_LABELS = {APPLIED: "applied", IGNORED: "ignored", REFUSED: "refused"}

Verdict: TypeAlias = Acknowledgement.Verdict.ValueType


class Reports:
    """Every agent's messages. `router` is who acknowledges them; empty: it has no name."""

    def __init__(
        self,
        balancer: Balancer,
        hosts_allowed: Sequence[Network],
        metrics: Metrics,
        clock: Callable[[], float],
        log: structlog.typing.FilteringBoundLogger,
        router: str,
    ) -> None:
        self._balancer = balancer
        self._hosts_allowed = hosts_allowed
        self._metrics = metrics
        self._clock = clock
        self._router = router
        self._complain = Complaints(clock, log).complain
        self._reporters: dict[str, Source] = {}
        """By node, the stream that speaks for it."""
        self._bus = Source("the bus")
        self._newcomers = Newcomers(clock)

    def take(self, message: AgentMessage, stream: Source) -> list[Acknowledgement]:
        """Take a message of a stream; what its agent shall hear of it."""
        quiet = message.quiet
        match message.WhichOneof("message"):
            case "snapshot":
                told = [self._report(message.snapshot, stream, quiet=quiet)]
            case "snapshots":
                listed = message.snapshots.snapshots
                if 1 <= len(listed) <= SNAPSHOTS_TOGETHER_MAX:
                    last = len(listed) - 1
                    told = [self._report(one, stream, quiet=quiet or place < last) for place, one in enumerate(listed)]
                else:
                    wanted = f"snapshots: wanted 1..{SNAPSHOTS_TOGETHER_MAX} snapshots, got {len(listed)}"
                    told = [self._told("", 0, REFUSED, wanted, stream, quiet=quiet)]
            case "goodbye":
                told = [self._goodbye(message.goodbye, stream, quiet=quiet)]
            case "kv_blocks":
                told = [self._kv_blocks(message.kv_blocks, stream, quiet=quiet)]
            case _:
                reason = "message: wanted a snapshot or a goodbye, got neither"
                told = [self._told("", 0, REFUSED, reason, stream, quiet=quiet)]
        return [one for one in told if one is not None]

    def take_published(self, message: AgentMessage, node_id: str, round_trip_s: float) -> None:
        """Take a message of the bus, which may be about this node only. `round_trip_s` is ours to the bus."""
        match message.WhichOneof("message"):
            case "snapshot" if message.snapshot.node_id == node_id:
                self._report(message.snapshot, self._bus, quiet=True, round_trip_s=round_trip_s)
            case "goodbye" if message.goodbye.node_id == node_id:
                self._goodbye(message.goodbye, self._bus, quiet=True)
            case "snapshot" | "goodbye":
                told = message.snapshot.node_id or message.goodbye.node_id
                self.refuse_published(f"node_id: wanted that of the subject, got {wire.shown(told)}", node_id)
            case _:
                self.refuse_published("message: wanted a snapshot or a goodbye, got neither", node_id)

    def refuse_published(self, reason: str, node_id: str) -> None:
        """A message of the bus is nothing that could be taken."""
        self._told(node_id, 0, REFUSED, reason, self._bus, quiet=True)

    def missed(self) -> dict[Source, list[Acknowledgement]]:
        """What streams shall hear of nodes that came over the bus, and of which nothing new comes: agents spare their
        streams what they publish, and nobody tells them that it does not arrive. Once after each report."""
        told: dict[Source, list[Acknowledgement]] = {}
        at_s = self._clock() + MISSED_AHEAD_S
        for node_id in self._bus.known:
            view, stream = self._balancer.view_of(node_id), self._reporters.get(node_id)
            if view is None or stream is None or self._balancer.freshness(view, at_s) is Freshness.FRESH:
                continue
            latest = (view.snapshot.boot_id, view.snapshot.sequence)
            if stream.missed.get(node_id) != latest:
                stream.missed[node_id] = latest
                missed = self._acknowledgement(node_id, 0, MISSED, "nothing new came for long")
                told.setdefault(stream, []).append(missed)
        return told

    def ended(self, stream: Source) -> None:
        """Nothing more will come on this stream."""
        for node_id in stream.known:
            if self._reporters.get(node_id) is stream:
                del self._reporters[node_id]

    def _report(
        self, message: NodeSnapshot, source: Source, *, quiet: bool, round_trip_s: float = 0.0
    ) -> Acknowledgement | None:
        node_id = message.node_id
        known = source.known.get(node_id)
        report = wire.report_of(message, self._hosts_allowed, known)
        if isinstance(report, str):
            verdict, reason = REFUSED, report
        elif self._speaks_for_another(source, node_id, message.boot_id):
            verdict, reason = REFUSED, "boot_id: wanted one that no other agent reports, got one that another does"
            self._two_streams(node_id, source, self._reporters[node_id])
        elif known is None and source is not self._bus and len(source.known) >= NODES_PER_STREAM_MAX:
            verdict, reason = REFUSED, f"node_id: wanted at most {NODES_PER_STREAM_MAX} nodes on a stream, got another"
        elif (view := self._balancer.view_of(node_id)) is None and source is self._bus and self._newcomers.too_many():
            verdict, reason = REFUSED, f"node_id: wanted at most {NEWCOMERS_MAX} new nodes in {NEWCOMERS_S:g} s"
        else:
            before = None if view is None else view.snapshot
            if source.kv_sequences and view is None:
                source.kv_sequences.pop(node_id, None)  # it was forgotten after a long silence, with its blocks
            snapshot = report.snapshot if round_trip_s == 0 else _later(report.snapshot, round_trip_s)
            verdict, reason = self._observe(NodeReported(snapshot))
            if verdict is not REFUSED:
                source.known[node_id] = report
                self._heard(node_id, message.boot_id, source, verdict)
            if verdict is APPLIED and before is not None and before.boot_id == message.boot_id:
                self._falls(node_id, source, before.sequence, message.sequence)
        return self._told(node_id, message.sequence, verdict, reason, source, quiet=quiet)

    def _heard(self, node_id: str, boot_id: str, source: Source, verdict: Verdict) -> None:
        """Note who speaks for a node, and complain where that are two."""
        published = self._bus.known.get(node_id)
        if verdict is IGNORED and published is not None:
            view = self._balancer.view_of(node_id)
            if view is not None and view.snapshot.boot_id != boot_id:
                self._two_streams(node_id, source, self._reporters.get(node_id, self._bus))
        reporter = self._reporters.get(node_id)
        if source is self._bus:
            if verdict is APPLIED and reporter is not None and reporter.known[node_id].snapshot.boot_id != boot_id:
                del self._reporters[node_id]  # it spoke for an earlier boot, and says so itself if that is wrong
            self._bound_published()
            return
        if verdict is APPLIED:  # who only repeats what is known gets no say
            self._reporters[node_id] = source
        elif reporter is None and published is not None and published.snapshot.boot_id == boot_id:
            self._reporters[node_id] = source  # unless the bus was faster
        if reporter is not None and reporter is not source:
            self._two_streams(node_id, source, reporter)

    def _bound_published(self) -> None:
        """The table bounds its members; forget what was published of others."""
        known = self._bus.known
        if len(known) > len(self._balancer.views()) + NODES_GONE_MAX:
            self._bus.known = {one: told for one, told in known.items() if self._balancer.view_of(one) is not None}

    def _speaks_for_another(self, source: Source, node_id: str, boot_id: str) -> bool:
        """Whether another stream reports this boot, and did so lately. A boot is one run of one agent, which has one
        stream to us: its next one may come before we lose the one before, but then that says nothing any more."""
        if source is self._bus or self._reporters.get(node_id, source) is source:
            return False
        view = self._balancer.view_of(node_id)
        if view is None or view.snapshot.boot_id != boot_id:
            return False
        return self._balancer.freshness(view, self._clock()) is Freshness.FRESH

    def _two_streams(self, node_id: str, source: Source, other: Source) -> None:
        self._complain("node reported by two streams", node_id, peer=source.peer, other=other.peer)

    def _falls(self, node_id: str, source: Source, before: int, sequence: int) -> None:
        """Complain if it does: somebody else made a report up, or repeats one."""
        if sequence < before:
            fell = f"{sequence} after {before}"
            self._complain("node's sequence fell: not only its agent tells of it", node_id, peer=source.peer, fell=fell)

    def _goodbye(self, message: Goodbye, source: Source, *, quiet: bool) -> Acknowledgement | None:
        left = wire.goodbye_of(message)
        if isinstance(left, str):
            verdict, reason = REFUSED, left
        elif source is not self._bus and self._reporters.get(left.node_id, source) is not source:
            verdict, reason = REFUSED, "goodbye: wanted that of a node of this stream, got that of another's"
        else:
            verdict, reason = self._observe(left)
        if verdict is APPLIED:
            for one in (source, self._bus, self._reporters.pop(message.node_id, source)):
                one.forget(message.node_id)
        return self._told(message.node_id, 0, verdict, reason, source, quiet=quiet)

    def _kv_blocks(self, message: KvBlocks, stream: Source, *, quiet: bool) -> Acknowledgement | None:
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
        return self._told(node_id, message.sequence, verdict, reason, stream, quiet=quiet)

    def _told(
        self, node_id: str, sequence: int, verdict: Verdict, reason: str, source: Source, *, quiet: bool
    ) -> Acknowledgement | None:
        """Count a verdict, log a refusal; the acknowledgement, if there shall be one."""
        self._metrics.snapshot(_VERDICT_LABELS[verdict])
        if quiet and verdict is APPLIED:
            return None
        node_id = node_id[: wire.ID_LENGTH_MAX]
        if verdict is REFUSED:
            made_up = source is self._bus and self._balancer.view_of(node_id) is None
            self._complain("message of an agent refused", node_id, shares_turn=made_up, peer=source.peer, reason=reason)
        return self._acknowledgement(node_id, sequence, verdict, reason)

    def _acknowledgement(self, node_id: str, sequence: int, verdict: Verdict, reason: str) -> Acknowledgement:
        return Acknowledgement(
            node_id=node_id,
            sequence=sequence,
            verdict=verdict,
            reason=reason,
            takes_several=True,
            router=self._router,
        )

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


def _later(snapshot: Snapshot, round_trip_s: float) -> Snapshot:
    """A snapshot whose way had a second part."""
    return replace(snapshot, round_trip_s=min(snapshot.round_trip_s + round_trip_s, ROUND_TRIP_S_MAX))
