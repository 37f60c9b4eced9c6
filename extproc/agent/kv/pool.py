"""One of an engine's caches: that of one rank and one kind of layers."""

from collections import OrderedDict

from extproc.agent.kv.block import EngineBlock
from extproc.agent.kv.formats import BlockHash


class CachePool:
    """Its blocks, by their hashes."""

    __slots__ = ("ambiguous", "blocks", "weight")

    def __init__(self) -> None:
        self.blocks: OrderedDict[BlockHash, EngineBlock] = OrderedDict()
        """The least recently stored first."""
        self.ambiguous: OrderedDict[BlockHash, int] = OrderedDict()
        """Hashes that stood for different beginnings, and their copies: engines that hash a block without those before
        it do so. What they say of such a one means nothing."""
        self.weight = 0
        """Of its blocks."""

    @property
    def first(self) -> EngineBlock:
        """The least recently stored; only where there is one."""
        return next(iter(self.blocks.values()))

    def clear(self) -> OrderedDict[BlockHash, EngineBlock]:
        """It has nothing. What it had, which refers to itself and is to be taken apart."""
        blocks = self.blocks
        self.blocks, self.ambiguous, self.weight = OrderedDict(), OrderedDict(), 0
        return blocks
