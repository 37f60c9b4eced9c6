"""What one sequence holds of the KV cache: its blocks in order, and how many of them others may share."""

from collections.abc import Sequence

from extproc.sim.kv import KvPool, blocks_for


class Holding:
    """Always just the blocks that the sequence's tokens in the cache need; none while it waits."""

    __slots__ = ("_blocks", "_keys", "_pool", "_published", "_refused_at")

    def __init__(self, pool: KvPool, keys: Sequence[int]) -> None:
        self._pool = pool
        self._keys = keys
        self._blocks: list[int] = []
        self._published = 0
        self._refused_at = -1

    @property
    def publishing(self) -> bool:
        """Blocks that others may share are still to be filled."""
        return self._published < len(self._keys)

    def begin(self, tokens: int) -> int | None:
        """Share what is cached of a sequence of so many tokens, if all the others fit the free blocks.

        Returns how many tokens that spares it, a multiple of the block size and less than all: the last token is always
        computed, as its output is the next token. `None`: it does not fit, and nothing changed.
        """
        pool = self._pool
        if self._refused_at == pool.news:
            return None
        size = pool.block_size_tokens
        cached = pool.cached_prefix(self._keys, (tokens - 1) // size)
        if blocks_for(tokens, size) - len(cached) > pool.free_after_sharing(cached):
            self._refused_at = pool.news
            return None
        pool.share(cached)
        self._blocks = cached
        self._published = len(cached)
        return len(cached) * size

    def fill(self, tokens: int) -> bool:
        """Have blocks for so many tokens in all, and offer those that they fill; false: too few are free."""
        pool = self._pool
        missing = blocks_for(tokens, pool.block_size_tokens) - len(self._blocks)
        if missing > 0:
            if missing > pool.blocks_free:
                return False
            self._blocks += pool.take(missing)
        published = self._published
        full = min(tokens // pool.block_size_tokens, len(self._keys))
        if full > published:
            # As in vLLM already when planned: requests of the same step share.
            pool.publish(self._blocks[published:full], self._keys[published:full])
            self._published = full
        return True

    def end(self) -> None:
        """Give all of them back; what they cached stays until they are taken."""
        self._pool.release(self._blocks)
        self._blocks = []
