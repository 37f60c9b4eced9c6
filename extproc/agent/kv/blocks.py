"""From an engine's blocks to ours: which of our numbers (`extproc.kvchain`) stand in its prefix cache.

An engine has blocks of its own size and hashes them in its own way. Each is told once with its tokens and the block
before it, so its place in our chain is known then, and by its hash alone afterwards. A block of ours belongs to the
engine's block in which it ends; where sizes do not fit it begins in one before (or several), and then stands in the
cache only while all of them do.

    engine, 24 tokens   |        A         |        B         |
    ours,   16 tokens   |     1      |     2      |     3      |
                                       2 begins in A and ends in B

Engines may have the same block several times, and several data-parallel engines, or kinds of layers, have caches of
their own: so copies are counted, and a number stands there while any has it.
"""

from collections import OrderedDict
from collections.abc import Collection
from typing import Final

from extproc.agent.kv.block import EngineBlock, Key
from extproc.agent.kv.events import Batch, Cleared, RemovedBlocks, StoredBlocks
from extproc.kvchain import BLOCK_BYTES, ID_BYTES, id_bytes, numbers_of, root_of

POOLS_MAX: Final = 256
"""Caches of one engine: one for each rank and kind of layers. What further ones have is left out."""


class EngineBlocks:
    """What an engine has in its cache, by what it said since it was empty. Changes are collected until `cut`.

    At most `blocks_max` blocks are kept, the engine's or ours, whichever are more; over it the least recently stored
    go first.
    """

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._weight = 0
        self._blocks: OrderedDict[Key, EngineBlock] = OrderedDict()
        self._ambiguous: dict[Key, int] = {}
        """Hashes that stood for different beginnings, and their copies: engines that hash a block without those before
        it do so. What they say of such a one means nothing."""
        self._pools: dict[tuple[int, int, int], int] = {}
        self._roots: dict[str, int] = {}
        self._held: dict[int, int] = {}
        """Our numbers that are there, and how often."""
        self._changed: dict[int, bool] = {}
        """Those that came or went since the latest cut, and whether they were there then."""
        self.orphans = 0
        """Blocks left out since they stand behind one that is not known, or depend on more than tokens."""
        self.malformed = 0
        """Blocks whose token ids are none, or whose hash is not that of their beginning."""
        self.dropped = 0
        """Blocks that were too many."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def held(self) -> Collection[int]:
        """All of our numbers that are there; do not keep it."""
        return self._held.keys()

    def take(self, source: int, batch: Batch) -> None:
        """What this publisher said next. Takes 3 to 5 µs for a block that comes and goes."""
        for event in batch.events:
            match event:
                case StoredBlocks():
                    self._store(self._pool(source, batch.rank, event.group), event)
                case RemovedBlocks():
                    pool = self._pool(source, batch.rank, event.group)
                    for one in event.hashes:
                        self._remove(one if not pool else (pool, one))
                case Cleared():
                    self.clear(source, batch.rank)

    def clear(self, source: int, rank: int | None = None) -> None:
        """What this publisher has, of one rank or of all, is gone."""
        pools = {
            pool
            for (of_source, of_rank, _), pool in self._pools.items()
            if of_source == source and rank in (None, of_rank)
        }
        for key in [key for key in self._blocks if _pool_of(key) in pools]:
            if (block := self._blocks.get(key)) is not None:
                self._drop(block)
        self._ambiguous = {key: copies for key, copies in self._ambiguous.items() if _pool_of(key) not in pools}

    def cut(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Numbers that have come since the latest cut, and those that have gone; neither is what did both."""
        changed = self._changed
        stored = tuple([one for one, was in changed.items() if not was])
        removed = tuple([one for one, was in changed.items() if was])
        self._changed = {}
        return stored, removed

    def _pool(self, source: int, rank: int, group: int) -> int:
        """Which cache it is; those over `POOLS_MAX` share one."""
        pool = self._pools.get((source, rank, group))
        if pool is None:
            pool = min(len(self._pools), POOLS_MAX)
            if pool < POOLS_MAX:
                self._pools[source, rank, group] = pool
        return pool

    def _store(self, pool: int, event: StoredBlocks) -> None:
        count, width = len(event.hashes), event.block_tokens * ID_BYTES
        comparable = event.comparable if pool < POOLS_MAX else 0
        before: EngineBlock | None = None
        if event.parent is not None:
            before = self._blocks.get(event.parent if not pool else (pool, event.parent))
            if before is None:
                comparable = 0
        self.orphans += count - comparable
        try:
            tokens = id_bytes(event.token_ids[: comparable * event.block_tokens])
        except OverflowError:
            self.malformed += comparable
            return
        number, carry = (root_of(event.adapter), b"") if before is None else (before.number, before.carry)
        for place in range(comparable):
            own = tokens[place * width : (place + 1) * width]
            data = carry + own if carry else own
            numbers = numbers_of(data, number)
            number = numbers[-1] if numbers else number
            carry = data[len(numbers) * BLOCK_BYTES :] if len(data) % BLOCK_BYTES else b""
            one = event.hashes[place]
            before = self._add(one if not pool else (pool, one), before, numbers, number, carry, width)
            if before is None:
                self.orphans += comparable - place - 1
                return

    def _add(
        self, key: Key, before: EngineBlock | None, numbers: tuple[int, ...], number: int, carry: bytes, width: int
    ) -> EngineBlock | None:
        """One more copy of it; `None` where its hash says nothing."""
        if key in self._ambiguous:
            self._ambiguous[key] += 1
            self.malformed += 1
            return None
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = EngineBlock(key, numbers, number, carry, width)
            if before is not None and before.carry:
                block.stand_behind(before)
            self._weight += block.weight
        elif (block.number, block.carry) != (number, carry):
            self._ambiguous[key] = block.copies + 1
            self.malformed += 1
            self._drop(block)
            if len(self._ambiguous) > self._blocks_max:
                del self._ambiguous[next(iter(self._ambiguous))]
            return None
        else:
            self._blocks.move_to_end(key)
        block.copies += 1
        if block.copies == 1:
            self._came(block)
        while self._weight > self._blocks_max:
            self.dropped += 1
            self._drop(self._blocks[next(iter(self._blocks))])
        return block if block.copies else None

    def _remove(self, key: Key) -> None:
        block = self._blocks.get(key)
        if block is None:
            copies = self._ambiguous.get(key)
            if copies == 1:
                del self._ambiguous[key]
            elif copies is not None:
                self._ambiguous[key] = copies - 1
        elif block.copies:
            block.copies -= 1
            if not block.copies:
                self._went(block)
                self._let_go(block)

    def _came(self, block: EngineBlock) -> None:
        for one in block.whole:
            self._hold(one)
        for other in block.spanning():
            other.missing -= 1
            if other.copies and not other.missing:
                self._hold(other.numbers[0])

    def _went(self, block: EngineBlock) -> None:
        for one in block.whole:
            self._release(one)
        for other in block.spanning():
            other.missing += 1
            if other.copies and other.missing == 1:
                self._release(other.numbers[0])

    def _drop(self, block: EngineBlock) -> None:
        """Forget it, however many copies there are, and those behind it whose numbers begin in it."""
        waiting, dropped = [block], []
        while waiting:
            one = waiting.pop()
            if one.copies:
                one.copies = 0
                self._went(one)
            dropped.append(one)
            waiting += one.children or ()
        for one in reversed(dropped):
            self._let_go(one)

    def _let_go(self, block: EngineBlock) -> None:
        """It is of no more use, if there are none behind it; nor then are those that were kept for its sake."""
        one: EngineBlock | None = block
        while one is not None and not one.copies and not one.children and one.key in self._blocks:
            parent = one.parent
            one.stand_alone()
            del self._blocks[one.key]
            self._weight -= one.weight
            one = parent

    def _hold(self, number: int) -> None:
        count = self._held.get(number, 0)
        self._held[number] = count + 1
        if not count and self._changed.pop(number, None) is None:
            self._changed[number] = False

    def _release(self, number: int) -> None:
        count = self._held[number] - 1
        if count:
            self._held[number] = count
        else:
            del self._held[number]
            if self._changed.pop(number, None) is None:
                self._changed[number] = True


def _pool_of(key: Key) -> int:
    return key[0] if isinstance(key, tuple) else 0
