"""Which node has which beginnings of prompts in its cache, by what we sent there."""

from collections import OrderedDict
from collections.abc import Sequence

ENTRY_BYTES = 400
"""What one block at one node takes in memory, at most: 150 to 360 before few nodes; see bench/prefix.py."""
NODES_PER_BYTE = 7
"""And a byte more for so many nodes: a set of nodes is a number of as many bits, which a block may have for itself."""
EVICTED_SHARE = 1024
"""A full index makes more room than it needs, this share of all, for finding the node with the most takes a while."""


class PrefixIndex:
    """Hash chains of the prompts that each node was sent, the latest used kept, as many as the node's cache holds.

    A prompt is a chain of numbers, each of which stands for all of the prompt up to the end of its block. At every node
    chains are closed under prefixes: a block is used together with all before it and counts as used a moment before
    them, so the block to go first never has another behind it. So the nodes that have block i are among those that have
    block i - 1, and a lookup can bisect.

    State: for each block the nodes that have it, as bits of a number; for each node its blocks, least used first.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries = 0
        self._masks: dict[int, int] = {}
        self._used: dict[str, OrderedDict[int, None]] = {}
        self._bits: dict[str, int] = {}
        self._node_of_bit: list[str | None] = []

    def __len__(self) -> int:
        return self._entries

    def insert(self, node_id: str, blocks: Sequence[int], capacity_blocks: int) -> None:
        """A prompt went to a node whose cache holds so many blocks. Takes up to 0.8 µs for each new block."""
        if not blocks:
            return
        used = self._used.get(node_id)
        if used is None:
            used = self._join(node_id)
        entries_max = self._bytes_max // (ENTRY_BYTES + len(self._node_of_bit) // NODES_PER_BYTE)
        bit = 1 << self._bits[node_id]
        masks = self._masks
        kept = blocks[: min(capacity_blocks, entries_max)]
        before = len(used)
        held, shared = 0, bit
        for block in reversed(kept):
            if block in used:
                used.move_to_end(block)
                continue
            used[block] = None
            mask = masks.get(block, 0)
            if mask != held:
                held, shared = mask, mask | bit  # a number of many bits: blocks that the same nodes have share it
            masks[block] = shared
        self._entries += len(used) - before
        self._shrink(node_id, capacity_blocks)
        while self._entries > entries_max:
            largest = max(self._used, key=lambda one: len(self._used[one]))
            too_many = self._entries - entries_max + entries_max // EVICTED_SHARE
            self._shrink(largest, len(self._used[largest]) - too_many)

    def match(self, blocks: Sequence[int]) -> dict[str, int]:
        """How many of a prompt's first blocks each node has; nodes that have none are left out."""
        masks = self._masks
        if not blocks or not (first := masks.get(blocks[0], 0)):
            return {}
        depths: dict[str, int] = {}
        # Between two blocks that the same nodes have no chain ends. Behind the last block every chain has ended.
        spans = [(0, first, len(blocks), 0)]
        while spans:
            low, low_mask, high, high_mask = spans.pop()
            if low_mask == high_mask:
                continue
            if high - low == 1:
                self._note(low_mask & ~high_mask, high, depths)
                continue
            middle = (low + high) // 2
            mask = masks.get(blocks[middle], 0) & low_mask
            spans.append((low, low_mask, middle, mask))
            spans.append((middle, mask, high, high_mask))
        return depths

    def forget(self, node_id: str) -> None:
        """The node's cache is empty, or the node is gone."""
        if node_id in self._used:
            self._shrink(node_id, 0)
            del self._used[node_id]
            self._node_of_bit[self._bits.pop(node_id)] = None

    def _note(self, mask: int, depth: int, depths: dict[str, int]) -> None:
        while mask:
            lowest = mask & -mask
            node_id = self._node_of_bit[lowest.bit_length() - 1]
            assert node_id is not None, "the blocks of a node that is gone are gone"
            depths[node_id] = depth
            mask ^= lowest

    def _join(self, node_id: str) -> "OrderedDict[int, None]":
        try:
            bit = self._node_of_bit.index(None)
            self._node_of_bit[bit] = node_id
        except ValueError:
            bit = len(self._node_of_bit)
            self._node_of_bit.append(node_id)
        self._bits[node_id] = bit
        used = self._used[node_id] = OrderedDict()
        return used

    def _shrink(self, node_id: str, blocks_max: int) -> None:
        used, masks, bit = self._used[node_id], self._masks, 1 << self._bits[node_id]
        held, left = bit, 0
        for _ in range(len(used) - max(0, blocks_max)):
            block, _ = used.popitem(last=False)
            self._entries -= 1
            mask = masks[block]
            if mask != held:
                held, left = mask, mask ^ bit  # shared as at `insert`
            if left:
                masks[block] = left
            else:
                del masks[block]
