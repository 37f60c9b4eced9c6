"""What of our load the others are told, and when: all of it now and then, and large changes at once."""

from collections.abc import Callable, Iterable

from msgspec import Struct

from extproc.core.exchangesettings import ExchangeSettings
from extproc.core.peershares import NodeShare, Word
from extproc.core.snapshot import NEVER

LOOK_S = 0.05
"""So often `Sharing.word` is to be asked: what changed in the meantime is one word."""
NODES_TOLD_MAX = 2000
"""Of one word, which is 120 KB with so many: of more nodes, those where we have the most."""
LARGE_WORK_S = 0.2
"""A change of a node's prompt work is large that takes it so long to compute."""
LARGE_REQUESTS = 8
"""And one of so many requests, or a quarter of those that are there."""


class Sharing:
    """State: what was told last of each node, and which nodes have changed since anybody looked."""

    def __init__(self, settings: ExchangeSettings) -> None:
        self._interval_s = settings.interval_s
        self._told: dict[str, _Told] = {}
        self._changed: dict[str, None] = {}
        self._all_told_s = NEVER
        """`NEVER`: nobody asks."""

    def changed(self, node_id: str) -> None:
        """What we have there is other than before."""
        if self._all_told_s != NEVER:
            self._changed[node_id] = None

    def forget(self, node_id: str) -> None:
        """The node is gone; what is left there is told with everything."""
        self._changed.pop(node_id, None)

    def word(
        self,
        node_ids: Iterable[str],
        share: Callable[[str], NodeShare],
        tokens_per_s: Callable[[str], float],
        now_s: float,
        *,
        everything: bool = False,
    ) -> Word | None:
        """What the others shall hear now; `None`: nothing. `node_ids` are all where we may have something.

        `everything`: all of it, for somebody who knows nothing.
        """
        if everything or now_s - self._all_told_s >= self._interval_s:
            shares = [one for one in map(share, node_ids) if _says_something(one)]
            if len(shares) > NODES_TOLD_MAX:
                shares = sorted(shares, key=lambda one: -one.sequences_open)[:NODES_TOLD_MAX]
            self._told = {one.node_id: _Told(one.sequences_open, one.tokens_unstarted) for one in shares}
            self._changed.clear()
            self._all_told_s = now_s
            return Word(True, tuple(shares))
        large = [one for one in map(share, self._changed) if self._is_large(one, tokens_per_s(one.node_id))]
        large = large[:NODES_TOLD_MAX]
        self._changed.clear()
        for one in large:
            self._told[one.node_id] = _Told(one.sequences_open, one.tokens_unstarted)
        return Word(False, tuple(large)) if large else None

    def _is_large(self, share: NodeShare, tokens_per_s: float) -> bool:
        told = self._told.get(share.node_id, _NOTHING)
        requests = abs(share.sequences_open - told.sequences)
        return (
            requests >= max(LARGE_REQUESTS, told.sequences // 4)
            or abs(share.tokens_unstarted - told.tokens) >= LARGE_WORK_S * tokens_per_s
        )


class _Told(Struct, frozen=True):
    sequences: int = 0
    tokens: int = 0


_NOTHING = _Told()


def _says_something(one: NodeShare) -> bool:
    return bool(one.sequences_open or one.sequences_finished or one.kv_blocks_unseen)
