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
from collections.abc import Collection, Iterator
from typing import Final

from extproc.agent.kv.block import EngineBlock
from extproc.agent.kv.events import Batch, Cleared, RemovedBlocks, StoredBlocks
from extproc.agent.kv.formats import BlockHash
from extproc.agent.kv.held import HeldNumbers
from extproc.agent.kv.pieces import pieces, work_of
from extproc.agent.kv.pool import CachePool
from extproc.kvchain import BLOCK_BYTES, ID_BYTES, id_bytes, numbers_of, root_of

POOLS_MAX: Final = 256
"""Caches of one engine: one for each rank and kind of layers. What further ones have is left out."""
TAKEN_AT_ONCE: Final = 256
"""Blocks that are taken between two moments at which others may go on; about 3 ms."""
CLEARED_AT_ONCE: Final = 20_000
"""Blocks that go with a clearing, likewise: about 30 ms. Others go with the next messages and reports."""
VISITS_PER_BLOCK: Final = 16
"""A block that comes or goes is looked up in those behind it whose numbers begin in it. That is paid by all blocks that
are taken: so many each. Where it is more, as only made-up events can want, those behind are forgotten."""
VISITS_SAVED_MAX: Final = 200_000
"""Of those that were not needed: about 40 ms."""


class EngineBlocks:
    """What an engine has in its cache, by what it said since it was empty. Changes are collected until `cut`.

    At most `blocks_max` blocks are kept, the engine's or ours, whichever are more; over it the least recently stored
    of its largest pool go first. Whatever it says, the time that is taken is bounded by its blocks, all together.
    """

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._weight = 0
        self._pools: dict[tuple[int, int], dict[int, CachePool]] = {}
        """By source and rank, and then by group."""
        self._all_pools: list[CachePool] = []
        self._ambiguous = 0
        """In all pools."""
        self._visits_left = VISITS_SAVED_MAX
        self._leaving: list[OrderedDict[BlockHash, EngineBlock]] = []
        """What was cleared, and is not taken out of what is held yet."""
        self._numbers = HeldNumbers()
        self.orphans = 0
        """Blocks left out since they stand behind one that is not known, or depend on more than tokens."""
        self.malformed = 0
        """Blocks whose token ids are none, or whose hash is not that of their beginning."""
        self.dropped = 0
        """Blocks that were too many."""

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def settled(self) -> bool:
        """Whether nothing is held that was cleared."""
        return not self._leaving

    @property
    def held(self) -> Collection[int]:
        """All of our numbers that are there; do not keep it."""
        return self._numbers.all

    def take(self, source: int, batch: Batch) -> None:
        """What this publisher said next. Takes 3 to 5 µs for a block that comes and goes."""
        for _ in self.take_in_slices(source, batch):
            pass

    def take_in_slices(self, source: int, batch: Batch) -> Iterator[None]:
        """The same, which lets others go on, and change this, after each `TAKEN_AT_ONCE`."""
        work = 0
        for event in batch.events:
            if isinstance(event, Cleared):
                self.clear(source, batch.rank)
            while self._leaving:
                yield
                self._let_leave(TAKEN_AT_ONCE)
            if isinstance(event, Cleared):
                continue
            work += work_of(event)
            for piece in (event,) if work <= TAKEN_AT_ONCE else pieces(event, TAKEN_AT_ONCE):
                self._take_piece(source, batch.rank, piece)
                if work > TAKEN_AT_ONCE:
                    yield
            work = work if work <= TAKEN_AT_ONCE else 0

    def _take_piece(self, source: int, rank: int, piece: StoredBlocks | RemovedBlocks) -> None:
        pool = self._pool(source, rank, piece.group)
        if pool is None:
            self.orphans += len(piece.hashes) if isinstance(piece, StoredBlocks) else 0
            return
        self._visits_left = min(VISITS_SAVED_MAX, self._visits_left + VISITS_PER_BLOCK * len(piece.hashes))
        if isinstance(piece, StoredBlocks):
            self._store(pool, piece)
        else:
            for one in piece.hashes:
                self._remove(pool, one)

    def clear(self, source: int, rank: int | None = None) -> None:
        """What this publisher has, of one rank or of all, is gone; see `settled`. Free where it has nothing."""
        if rank is None:
            caches = [groups for (of_source, _), groups in self._pools.items() if of_source == source]
        else:
            caches = [self._pools.get((source, rank), {})]
        for groups in caches:
            for pool in groups.values():
                self._weight -= pool.weight
                self._ambiguous -= len(pool.ambiguous)
                if pool.blocks or pool.ambiguous:
                    self._leaving.append(pool.clear())
        self._let_leave(CLEARED_AT_ONCE)

    def _let_leave(self, count: int) -> None:
        while self._leaving and count > 0:
            blocks = self._leaving[-1]
            while blocks and count > 0:
                count -= 1
                block = blocks.popitem()[1]
                if block.copies:
                    for one in block.whole:
                        self._numbers.release(one)
                block.parent = block.children = None
            if not blocks:
                self._leaving.pop()

    def cut(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Numbers that have come since the latest cut, and those that have gone; neither is what did both."""
        self._let_leave(CLEARED_AT_ONCE)
        return self._numbers.cut()

    def _pool(self, source: int, rank: int, group: int) -> CachePool | None:
        """Which cache it is; `None`: one over `POOLS_MAX`."""
        groups = self._pools.get((source, rank))
        pool = None if groups is None else groups.get(group)
        if pool is None and len(self._all_pools) < POOLS_MAX:
            pool = self._pools.setdefault((source, rank), {})[group] = CachePool()
            self._all_pools.append(pool)
        return pool

    def _store(self, pool: CachePool, event: StoredBlocks) -> None:
        count, width = len(event.hashes), event.block_tokens * ID_BYTES
        comparable = event.comparable
        before: EngineBlock | None = None
        if event.parent is not None:
            before = pool.blocks.get(event.parent)
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
            before = self._add(pool, event.hashes[place], before, numbers, number, carry, width)
            if before is None:
                self.orphans += comparable - place - 1
                return

    def _add(
        self,
        pool: CachePool,
        key: BlockHash,
        before: EngineBlock | None,
        numbers: tuple[int, ...],
        number: int,
        carry: bytes,
        width: int,
    ) -> EngineBlock | None:
        """One more copy of it; `None` where its hash says nothing."""
        if key in pool.ambiguous:
            pool.ambiguous[key] += 1
            self.malformed += 1
            return None
        block = pool.blocks.get(key)
        if block is None:
            block = pool.blocks[key] = EngineBlock(key, numbers, number, carry, width)
            if before is not None and before.carry:
                block.stand_behind(before)
            self._weigh(pool, block.weight)
        elif (block.number, block.carry) != (number, carry):
            self.malformed += 1
            self._doubt(pool, block)
            return None
        else:
            pool.blocks.move_to_end(key)
        block.copies += 1
        if block.copies == 1:
            self._came(block)
            self._pay(pool, block)
        while self._weight > self._blocks_max:
            self.dropped += 1
            largest = max(self._all_pools, key=_weight_of) if len(self._all_pools) > 1 else pool
            self._drop(largest, largest.first)
        return block if block.copies else None

    def _doubt(self, pool: CachePool, block: EngineBlock) -> None:
        """Its hash stands for another beginning as well."""
        pool.ambiguous[block.key] = block.copies + 1
        self._ambiguous += 1
        self._drop(pool, block)
        if self._ambiguous > self._blocks_max:
            pool.ambiguous.popitem(last=False)
            self._ambiguous -= 1

    def _remove(self, pool: CachePool, key: BlockHash) -> None:
        block = pool.blocks.get(key)
        if block is None:
            copies = pool.ambiguous.get(key)
            if copies == 1:
                del pool.ambiguous[key]
                self._ambiguous -= 1
            elif copies is not None:
                pool.ambiguous[key] = copies - 1
        elif block.copies:
            block.copies -= 1
            if not block.copies:
                self._went(block)
                self._pay(pool, block)
                self._let_go(pool, block)

    def _came(self, block: EngineBlock) -> None:
        for one in block.whole:
            self._numbers.hold(one)
        for other in block.spanning():
            self._visits_left -= 1
            other.missing -= 1
            if other.numbers and other.copies and not other.missing:
                self._numbers.hold(other.numbers[0])

    def _went(self, block: EngineBlock) -> None:
        for one in block.whole:
            self._numbers.release(one)
        for other in block.spanning():
            self._visits_left -= 1
            other.missing += 1
            if other.numbers and other.copies and other.missing == 1:
                self._numbers.release(other.numbers[0])

    def _pay(self, pool: CachePool, block: EngineBlock) -> None:
        """Where those behind it were looked up too often, forget them."""
        if self._visits_left < 0:
            self._visits_left = 0
            for other in tuple(block.children or ()):
                self.orphans += 1
                self._drop(pool, other)

    def _drop(self, pool: CachePool, block: EngineBlock) -> None:
        """Forget it, however many copies there are, and those behind it whose numbers begin in it."""
        visits_left, waiting, dropped = self._visits_left, [block], []
        while waiting:
            one = waiting.pop()
            if one.copies:
                one.copies = 0
                self._went(one)
            dropped.append(one)
            waiting += one.children or ()
        for one in reversed(dropped):
            self._let_go(pool, one)
        self._visits_left = visits_left  # once and no more, so there is nothing to pay

    def _let_go(self, pool: CachePool, block: EngineBlock) -> None:
        """It is of no more use, if there are none behind it; nor then are those that were kept for its sake."""
        one: EngineBlock | None = block
        while one is not None and not one.copies and not one.children and one.key in pool.blocks:
            parent = one.parent
            one.stand_alone()
            del pool.blocks[one.key]
            self._weigh(pool, -one.weight)
            one = parent

    def _weigh(self, pool: CachePool, weight: int) -> None:
        self._weight += weight
        pool.weight += weight


def _weight_of(pool: CachePool) -> int:
    return pool.weight
