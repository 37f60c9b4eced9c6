"""The KV cache of one engine: a pool of blocks, some of which hold prefixes that later requests can share.

A block is *in use* while a sequence refers to it and *free* otherwise. A free block keeps its content until it is taken
for something else, so a prefix survives its sequence; the block that has been free the longest is taken first (LRU). A
sequence frees its last block first, so chains lose their leaves before their roots and stay usable from the start.
"""

from collections import OrderedDict
from collections.abc import Sequence

BLOCK_SIZE_TOKENS = 16
"""vLLM's default block size on GPUs."""


def blocks_for(tokens: int) -> int:
    """Blocks that so many tokens take; the last one may be partly filled."""
    return -(-tokens // BLOCK_SIZE_TOKENS)


class KvPool:
    """Blocks by number, their users, and which prefix each full block ends.

    A key stands for a full block *and all before it* (a hash chain): equal keys mean equal prefixes. Where two blocks
    come to hold one prefix the first keeps the key; the second stays private. As in vLLM one block of the total is the
    null block and never used.
    """

    def __init__(self, blocks_total: int) -> None:
        assert blocks_total >= 2
        self.blocks_total = blocks_total
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks_total))
        self._users = [0] * blocks_total
        self._key_of: list[int | None] = [None] * blocks_total
        self._block_of: dict[int, int] = {}

    @property
    def blocks_free(self) -> int:
        """Blocks that nothing refers to; cached ones included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share 0..1 of the usable blocks in use, as vLLM reports it."""
        return 1.0 - len(self._free) / (self.blocks_total - 1)

    def cached_prefix(self, keys: Sequence[int], blocks_max: int) -> list[int]:
        """The blocks of the longest cached prefix, at most `blocks_max` of them. Takes nothing."""
        blocks = []
        for key in keys[:blocks_max]:
            block = self._block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def free_after_sharing(self, blocks: Sequence[int]) -> int:
        """Free blocks left once these cached blocks are shared."""
        return len(self._free) - sum(not self._users[block] for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """One more sequence refers to these cached blocks."""
        for block in blocks:
            if not self._users[block]:
                del self._free[block]
            self._users[block] += 1

    def take(self, count: int) -> list[int]:
        """Take this many free blocks, the longest free first; what they cached is lost. There must be enough."""
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            key = self._key_of[block]
            if key is not None:
                del self._block_of[key]
                self._key_of[block] = None
            self._users[block] = 1
            blocks.append(block)
        return blocks

    def publish(self, block: int, key: int) -> None:
        """This block is full: later requests with the same prefix may share it."""
        if key not in self._block_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """A sequence refers to these no more; the last is freed first."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
