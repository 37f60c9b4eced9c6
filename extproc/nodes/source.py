"""Where agents' messages come from: their streams, and the bus, where anyone may use any number of names."""

from collections.abc import Callable

from extproc.nodes import wire

NEWCOMERS_MAX = 4096
"""Nodes that become members over the bus in `NEWCOMERS_S`: a fleet at once, but no endless row of made-up ones."""
NEWCOMERS_S = 10.0


class Source:
    """What came on one stream, or over a bus, about the nodes that were not taken leave of."""

    __slots__ = ("known", "kv_sequences", "missed", "peer")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.kv_sequences: dict[str, int] = {}
        """Of nodes whose cache was told: the number of the next message about it."""
        self.known: dict[str, wire.Known] = {}
        self.missed: dict[str, tuple[str, int]] = {}
        """Nodes that were asked for, and after which report."""

    def forget(self, node_id: str) -> None:
        """It was taken leave of."""
        self.known.pop(node_id, None)
        self.kv_sequences.pop(node_id, None)
        self.missed.pop(node_id, None)


class Newcomers:
    """Counts nodes that come over the bus and were not known."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._count = 0
        self._since_s = float("-inf")

    def too_many(self) -> bool:
        """Count one more; whether it is one too many for now."""
        if (now_s := self._clock()) - self._since_s >= NEWCOMERS_S:
            self._count, self._since_s = 0, now_s
        self._count += 1
        return self._count > NEWCOMERS_MAX
