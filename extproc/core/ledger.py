"""Requests that we sent and that have not finished: what no snapshot shows yet."""

from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from extproc.core.snapshot import NO_LOAD, OwnLoad


class Reservation(Struct, frozen=True):
    """One request at one node, from the moment of choosing to the end of its stream."""

    request_id: str
    node_id: str
    sequences: int
    """Answers asked for (`n`): engines count each as a request."""
    kv_blocks: int
    """KV blocks for the uncached prompt; 0 where the node's block size is unknown."""
    opened_s: float


@dataclass(slots=True)
class _NodeLedger:
    open: int = 0
    unseen: dict[str, Reservation] = field(default_factory=dict)
    """By request id, oldest first."""
    unseen_sequences: int = 0
    unseen_blocks: int = 0

    def see(self, reservation: Reservation) -> None:
        self.unseen_sequences -= reservation.sequences
        self.unseen_blocks -= reservation.kv_blocks


class Ledger:
    """Opens a reservation when a node is chosen and closes it when the request's stream ends.

    A reservation is unseen until a sample of its node was taken after it was opened: from then on the
    snapshot counts the request and the ledger does not. Closing is idempotent. A reservation outlives its
    node's membership, because only the stream's end tells that the request is over; memory is bounded by the
    streams that are open.
    """

    def __init__(self) -> None:
        self._open: dict[str, Reservation] = {}
        self._nodes: dict[str, _NodeLedger] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, reservation: Reservation) -> None:
        """Count a request at its node. Its id must be new."""
        assert reservation.request_id not in self._open, "request ids are ours and unique"
        self._open[reservation.request_id] = reservation
        node = self._nodes.setdefault(reservation.node_id, _NodeLedger())
        node.open += reservation.sequences
        node.unseen[reservation.request_id] = reservation
        node.unseen_sequences += reservation.sequences
        node.unseen_blocks += reservation.kv_blocks

    def close(self, request_id: str) -> Reservation | None:
        """The request is over; `None` if it was not open (any more)."""
        reservation = self._open.pop(request_id, None)
        if reservation is None:
            return None
        node = self._nodes[reservation.node_id]
        node.open -= reservation.sequences
        if node.unseen.pop(request_id, None) is not None:
            node.see(reservation)
        if not node.open:
            del self._nodes[reservation.node_id]
        return reservation

    def get(self, request_id: str) -> Reservation | None:
        """An open request's reservation."""
        return self._open.get(request_id)

    def resize(self, request_id: str, kv_blocks: int) -> None:
        """An open request turned out to take so many KV blocks."""
        reservation = self._open[request_id]
        resized = replace(reservation, kv_blocks=kv_blocks)
        self._open[request_id] = resized
        node = self._nodes[reservation.node_id]
        if request_id in node.unseen:
            node.unseen[request_id] = resized
            node.unseen_blocks += kv_blocks - reservation.kv_blocks

    def sampled(self, node_id: str, sampled_at_s: float) -> None:
        """A snapshot shows what the node had at this time: what was sent before is no longer unseen."""
        node = self._nodes.get(node_id)
        if node is None:
            return
        while node.unseen:
            oldest = next(iter(node.unseen.values()))
            if oldest.opened_s > sampled_at_s:
                break
            del node.unseen[oldest.request_id]
            node.see(oldest)

    def load(self, node_id: str) -> OwnLoad:
        """What we have at the node."""
        node = self._nodes.get(node_id)
        if node is None:
            return NO_LOAD
        return OwnLoad(node.open, node.unseen_sequences, node.unseen_blocks, len(node.unseen))
