"""Which node has which beginnings of prompts in its cache, by what was sent there and how it fared."""

from collections import deque
from collections.abc import Sequence

from extproc.core.prefix import PrefixIndex
from extproc.core.request import PROMPT_BLOCK_TOKENS
from extproc.core.settings import PrefixSettings
from extproc.core.snapshot import Snapshot

ON_THE_WAY_SHARE = 4
"""What has not been computed yet gets one part in so many of the memory, and of a node's cache."""


class PromptCaches:
    """Two indexes: of prompts that a node has computed, and of those on their way to it.

    A prompt counts from the moment of its sending, so that others which begin alike can follow it before its end. But
    what a node has in its cache is pushed out only by what it has computed: anybody can send long prompts which engines
    refuse at once.

    Taking prompts in is put off until somebody asks, or `settle`.
    """

    def __init__(self, settings: PrefixSettings) -> None:
        self._node_tokens = settings.node_tokens
        self._on_the_way = PrefixIndex(settings.index_bytes_max // ON_THE_WAY_SHARE)
        self._computed = PrefixIndex(settings.index_bytes_max - settings.index_bytes_max // ON_THE_WAY_SHARE)
        self._waiting: deque[tuple[PrefixIndex, str, tuple[int, ...], int]] = deque()

    def sent(self, snapshot: Snapshot, blocks: tuple[int, ...]) -> None:
        """A prompt is on its way to this node."""
        self._put(self._on_the_way, snapshot, blocks, self._capacity_blocks(snapshot) // ON_THE_WAY_SHARE)

    def computed(self, snapshot: Snapshot, blocks: tuple[int, ...]) -> None:
        """This node has computed a prompt."""
        self._put(self._computed, snapshot, blocks, self._capacity_blocks(snapshot))

    def match(self, blocks: Sequence[int]) -> dict[str, int]:
        """How many of a prompt's first blocks each node has or will have; nodes that have none are left out."""
        self.settle()
        found = self._computed.match(blocks)
        for node_id, count in self._on_the_way.match(blocks).items():
            if count > found.get(node_id, 0):
                found[node_id] = count
        return found

    def settle(self) -> None:
        """Do what was put off."""
        while self._waiting:
            index, node_id, blocks, capacity_blocks = self._waiting.popleft()
            index.insert(node_id, blocks, capacity_blocks)

    def forget(self, node_id: str) -> None:
        """The node's cache is empty, or the node is gone."""
        self.settle()
        self._computed.forget(node_id)
        self._on_the_way.forget(node_id)

    def _put(self, index: PrefixIndex, snapshot: Snapshot, blocks: tuple[int, ...], capacity_blocks: int) -> None:
        if blocks:
            self._waiting.append((index, snapshot.node_id, blocks, capacity_blocks))

    def _capacity_blocks(self, snapshot: Snapshot) -> int:
        tokens = self._node_tokens
        if snapshot.kv_blocks_total is not None and snapshot.kv_block_size_tokens is not None:
            tokens = snapshot.kv_blocks_total * snapshot.kv_block_size_tokens
        return tokens // PROMPT_BLOCK_TOKENS
