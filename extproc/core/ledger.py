"""Requests that we sent and that have not finished, brought together with what each node's latest sample shows.

A sample shows a node as it was at time t. What we know later than that is put on top of it:

    dispatched ──δ──► arrived ···· first token ···· finished ──δ──► closed
                                  t: the sample was taken

    in flight = running(t) + waiting(t)
              + own dispatched after t - δ that are open
              - own dispatched before that and closed after t + δ; none where nothing ran or waited at t
    pending   = own dispatched after t - δ without a first token
              + at most pending(t) of the newest own dispatched before that had no first token at t, less those that
                have it now
              + pending(t) less those matched: the work of others

    work      = pending, less what the node computes at its learned rate in the time since

Where first tokens are told as they come (by the first chunk of the response) pending is right at any moment, and the
work is all of it. Else a prompt of 50 ms would count until the next sample: then the work is taken to shrink meanwhile.

δ is the one-way delay between the router and the node. Engines start requests first come, first served, so of our
earlier requests the newest are the ones that a sample still calls pending. With one router that sees every end this
equals counting for oneself; where ends are lost, or others send too, each sample heals it.
"""

from collections.abc import Collection

from msgspec.structs import replace

from extproc.core.nodeledger import NEVER, Entry, NodeLedger, Reservation, Sample, opened_s
from extproc.core.nodeshare import Pending, pending_of, share_of
from extproc.core.peershares import NodeShare
from extproc.core.snapshot import ALWAYS, NO_LOAD, OwnLoad

_NONE: frozenset[str] = frozenset()


class Ledger:
    """Opens a reservation when a node is chosen and closes it when the request is over.

    Closing is idempotent, and so is a first token. A reservation outlives its node's membership, because only the
    stream's end tells that the request is over; memory is bounded by the streams that are open, and by `left_max_s` for
    those that were left before their end.
    """

    def __init__(self) -> None:
        self._open: dict[str, Entry] = {}
        self._nodes: dict[str, NodeLedger] = {}
        self._lost: list[str] = []
        """Requests that are taken to be over though nobody told, since `take_lost`."""

    def __len__(self) -> int:
        return len(self._open)

    def open(self, reservation: Reservation) -> None:
        """Count a request at its node. Its id must be new, and its time not before that of others."""
        assert reservation.request_id not in self._open, "request ids are ours and unique"
        entry = self._open[reservation.request_id] = Entry(reservation)
        self._node(reservation.node_id).add(entry)

    def first_token(self, request_id: str, now_s: float) -> Reservation | None:
        """The answer has begun; `None` if that was known, or the request is not open (any more)."""
        entry = self._open.get(request_id)
        if entry is None or entry.first_token_s is not None:
            return None
        if entry.counted:
            node = self._nodes[entry.reservation.node_id]
            if node.is_pending(entry):
                node.tokens -= entry.reservation.uncached_tokens
            node.sent.unstarted -= entry.reservation.uncached_tokens
            node.matched.discard(request_id)
            node.tells = True
        entry.first_token_s = now_s
        return entry.reservation

    def leave(self, request_id: str, now_s: float) -> Reservation | None:
        """Its stream is gone before its end, which may never be told; `None` if that changes nothing."""
        entry = self._open.get(request_id)
        if entry is None or entry.left_s is not None:
            return None
        entry.left_s = now_s
        if not entry.counted:
            del self._open[request_id]
            self._lost.append(request_id)
            return None
        self._nodes[entry.reservation.node_id].held -= 1
        return entry.reservation

    def close(self, request_id: str, now_s: float) -> Entry | None:
        """The request is over; `None` if it was not open (any more)."""
        entry = self._open.pop(request_id, None)
        if entry is None:
            return None
        entry.closed_s = now_s
        if entry.counted:
            node_id = entry.reservation.node_id
            self._nodes[node_id].take_out(entry)
            self._let_go(node_id)
        return entry

    def move(self, reservation: Reservation) -> None:
        """An open request is at another node than it was opened for, since then: nothing of it is left at that one."""
        entry = self._open[reservation.request_id]
        before = entry.reservation.node_id
        if entry.counted:
            self._nodes[before].undo(entry)
            self._let_go(before)
        entry.reservation, entry.counted = reservation, True
        self._node(reservation.node_id).insert(entry)

    def get(self, request_id: str) -> Reservation | None:
        """An open request's reservation."""
        entry = self._open.get(request_id)
        return None if entry is None else entry.reservation

    def unsampled(self, node_id: str, until_s: float) -> None:
        """No sample of the node may ever come, and none that was taken before that time: forget what closed earlier."""
        node = self._nodes.get(node_id)
        if node is not None:
            node.let_closed_before_go(until_s)

    def rename(self, before: str, node_id: str) -> list[Reservation]:
        """A node has another id from now on; what is open there, oldest first. It keeps its tokens."""
        gone = self._nodes.pop(before, None)
        if gone is None:
            return []
        for entry in gone.open.values():
            entry.reservation = replace(entry.reservation, node_id=node_id, cached_tokens=0, told_tokens=0)
        self._node(node_id).take_over(gone)
        return [entry.reservation for entry in gone.open.values()]

    def resize(self, request_id: str, kv_blocks: int, uncached_tokens: int, told_tokens: int = 0) -> None:
        """An open request turned out to take so many KV blocks, and to have so many tokens to compute.

        `told_tokens`: so many are in the node's cache by its blocks.
        """
        entry = self._open[request_id]
        before = entry.reservation
        if entry.counted:
            node = self._nodes[before.node_id]
            if node.is_unseen(entry):
                node.kv_blocks += kv_blocks - before.kv_blocks
            if node.is_pending(entry):
                node.tokens += uncached_tokens - before.uncached_tokens
                node.work += uncached_tokens - before.uncached_tokens
            if entry.first_token_s is None:
                node.sent.resize(uncached_tokens - before.uncached_tokens)
        entry.reservation = replace(
            before, kv_blocks=kv_blocks, uncached_tokens=uncached_tokens, told_tokens=told_tokens
        )

    def sampled(self, node_id: str, sample: Sample) -> None:
        """A snapshot shows what the node had: from now on only what came later is put on top of it.

        One that is unchanged shows what the one before did, and proves nothing of what was sent in between: an idle
        engine tells of a long prompt only at the end of its first step. Where a sample is idle, and the one before was,
        what was dispatched before that one and has no stream is over.
        """
        node = self._node(node_id)
        node.member = True
        seen_until_s = sample.taken_at_s - sample.delay_s
        purged = False
        if sample.idle:
            for entry in [one for one in node.open.values() if one.left_s is not None]:
                if opened_s(entry) < node.idle_until_s:
                    self._drop(entry)
                    purged = True
        node.idle_until_s = seen_until_s if sample.idle else NEVER
        node.let_adapters_go(sample.taken_at_s)
        if sample.unchanged:
            node.let_closed_go(sample)
        else:
            node.sample, node.seen_until_s = sample, seen_until_s
        if purged or not sample.unchanged:
            node.match()

    def restarted(self, node_id: str) -> None:
        """The engine began anew: what it had is gone. Open streams end by themselves."""
        node = self._nodes.pop(node_id, None)
        for entry in () if node is None else node.open.values():
            entry.counted = False
            if entry.left_s is not None:
                del self._open[entry.reservation.request_id]
                self._lost.append(entry.reservation.request_id)

    def forget(self, node_id: str) -> None:
        """The node is a member no more; what it has open stays until it ends."""
        node = self._nodes.get(node_id)
        if node is not None:
            node.member = False
            self._let_go(node_id)

    def purge(self, left_until_s: float) -> set[str]:
        """End those whose stream was left until then; the ids of their nodes."""
        over = [entry for entry in self._open.values() if entry.left_s is not None and entry.left_s <= left_until_s]
        nodes = {entry.reservation.node_id for entry in over}
        for entry in over:
            self._drop(entry)
        for node_id in nodes:
            self._nodes[node_id].match()
            self._let_go(node_id)
        return nodes

    def load(self, node_id: str) -> OwnLoad:
        """What we have at the node."""
        node = self._nodes.get(node_id)
        if node is None:
            return NO_LOAD
        return OwnLoad(
            sequences_open=node.sequences,
            sequences_unseen=node.unseen,
            requests_unseen=node.requests_unseen,
            requests_held=node.held,
            sequences_finished=node.finished,
            kv_blocks_unseen=node.kv_blocks,
            prefill_tokens=node.tokens,
            prefills_of_others=node.others,
            work_tokens=node.work,
            work_since_s=ALWAYS if node.tells else node.work_since_s,
            tokens_unstarted=node.sent.unstarted,
            sent_tokens=node.sent.tokens,
            sent_since_s=ALWAYS if node.tells else node.sent.since_s,
            adapters_sent=frozenset(node.adapters) if node.adapters else _NONE,
            adapters_unseen=sum(at_s >= node.seen_until_s for at_s in node.adapters.values()) if node.adapters else 0,
        )

    def share(self, node_id: str, now_s: float) -> NodeShare:
        """The same for other routers to hear."""
        node = self._nodes.get(node_id)
        return NodeShare(node_id) if node is None else share_of(node_id, node, now_s)

    def seen_until_s(self, node_id: str) -> float:
        """What was dispatched to the node until then its sample shows; `NEVER`: there is none."""
        node = self._nodes.get(node_id)
        return NEVER if node is None else node.seen_until_s

    def pending(self, node_id: str) -> Pending:
        """Which of the pending prefills of the node's sample are ours."""
        node = self._nodes.get(node_id)
        return Pending() if node is None else pending_of(node)

    @property
    def node_ids(self) -> Collection[str]:
        """Where something was sent that its sample may not show yet, or where samples came from."""
        return self._nodes

    def _node(self, node_id: str) -> NodeLedger:
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = NodeLedger()
        return node

    def take_lost(self) -> list[str]:
        """Requests whose stream was left, and that are taken to be over though nobody told; each once."""
        lost, self._lost = self._lost, []
        return lost

    def _drop(self, entry: Entry) -> None:
        del self._open[entry.reservation.request_id]
        self._lost.append(entry.reservation.request_id)
        self._nodes[entry.reservation.node_id].drop(entry)

    def _let_go(self, node_id: str) -> None:
        node = self._nodes[node_id]
        if not node.member and not node.open:
            del self._nodes[node_id]
