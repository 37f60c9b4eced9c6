"""The KV cache of one engine: a pool of blocks, some of which hold prefixes that later requests can share.

A block is *in use* while a sequence refers to it and *free* otherwise. A free block keeps its content until it is taken
for something else, so a prefix survives its sequence; the block that has been free the longest is taken first (LRU). A
sequence frees its last block first, so chains lose their leaves before their roots and stay usable from the start.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

BLOCK_SIZE_TOKENS = 16
"""vLLM's default block size on GPUs."""


def blocks_for(tokens: int, block_size_tokens: int = BLOCK_SIZE_TOKENS) -> int:
    """Blocks that so many tokens take; the last one may be partly filled."""
    return -(-tokens // block_size_tokens)


@dataclass(frozen=True, slots=True)
class KvChanges:
    """What was put into a cache and is there, and what was lost from it and is not there; each key once."""

    stored: tuple[int, ...]
    removed: tuple[int, ...]


class KvPool:
    """Blocks by number, their users, and which prefix each full block ends.

    A key stands for a full block *and all before it* (a hash chain): equal keys mean equal prefixes. Where two blocks
    come to hold one prefix the first keeps the key; the second stays private. As in vLLM one block of the total is the
    null block and never used.
    """

    def __init__(self, blocks_total: int, block_size_tokens: int = BLOCK_SIZE_TOKENS) -> None:
        assert blocks_total >= 2
        self.blocks_total = blocks_total
        self.block_size_tokens = block_size_tokens
        self.news = 0
        """Grows with all that may let a sequence in that did not fit before: blocks released, prefixes published.

        Taking and sharing blocks never does: a sequence fits if all its blocks but those that it would share with a
        running one are free, and either leaves fewer free without giving it more to share.
        """
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks_total))
        self._key_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}
        self._sharers: dict[int, int] = {}
        """Users of a block beyond the first, where there are any."""
        self._changed: dict[int, bool] | None = None
        """Keys that came or went since the last look, and whether they are there; `None`: nobody looks."""

    @property
    def blocks_free(self) -> int:
        """Blocks that nothing refers to; cached ones included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share 0..1 of the usable blocks in use, as vLLM reports it."""
        return 1.0 - len(self._free) / (self.blocks_total - 1)

    @property
    def logs(self) -> bool:
        """Whether somebody has looked at its changes."""
        return self._changed is not None

    def changes(self) -> KvChanges:
        """What prefixes came and went since the last call; at the first all that are there. From then on it logs."""
        changed = dict.fromkeys(self._block_of, True) if self._changed is None else self._changed
        self._changed = {}
        return KvChanges(
            tuple(key for key, there in changed.items() if there),
            tuple(key for key, there in changed.items() if not there),
        )

    def cached_prefix(self, keys: Sequence[int], blocks_max: int) -> list[int]:
        """The blocks of the longest cached prefix, at most `blocks_max` of them. Takes nothing."""
        blocks = []
        for key in islice(keys, blocks_max):
            block = self._block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def free_after_sharing(self, blocks: Sequence[int]) -> int:
        """Free blocks left once these cached blocks are shared."""
        return len(self._free) - sum(map(self._free.__contains__, blocks))

    def share(self, blocks: Sequence[int]) -> None:
        """One more sequence refers to these cached blocks."""
        free, sharers = self._free, self._sharers
        for block in blocks:
            if block in free:
                del free[block]
            else:
                sharers[block] = sharers.get(block, 0) + 1

    def take(self, count: int) -> list[int]:
        """Take this many free blocks, the longest free first; what they cached is lost. There must be enough."""
        free, key_of, block_of, changed = self._free, self._key_of, self._block_of, self._changed
        blocks = list(islice(free, count))
        for block in blocks:
            del free[block]
            key = key_of.pop(block, None)
            if key is not None:
                del block_of[key]
                if changed is not None:
                    changed[key] = False
        return blocks

    def publish(self, blocks: Iterable[int], keys: Iterable[int]) -> None:
        """These blocks of a sequence are full: later requests with the same prefixes may share them."""
        key_of, block_of, changed = self._key_of, self._block_of, self._changed
        for block, key in zip(blocks, keys, strict=True):
            if block_of.setdefault(key, block) == block:
                key_of[block] = key
                if changed is not None:
                    changed[key] = True
        self.news += 1

    def release(self, blocks: Sequence[int]) -> None:
        """A sequence refers to these no more; the last is freed first."""
        free, sharers = self._free, self._sharers
        for block in reversed(blocks):
            others = sharers.get(block)
            if others is None:
                free[block] = None
            elif others == 1:
                del sharers[block]
            else:
                sharers[block] = others - 1
        self.news += 1
