"""One block of an engine's prefix cache, with its place among those before and behind it. See `blocks.py`."""

from collections.abc import Iterator

from extproc.agent.kv.formats import BlockHash


class EngineBlock:
    """One block of the engine."""

    __slots__ = ("carry", "children", "copies", "key", "missing", "number", "numbers", "parent", "place", "width")

    def __init__(self, key: BlockHash, numbers: tuple[int, ...], number: int, carry: bytes, width: int) -> None:
        self.key = key
        """What it is known by in its pool."""
        self.copies = 0
        """0: it is gone, and kept for the sake of `children`."""
        self.numbers = numbers
        """Of our blocks that end in it."""
        self.number = number
        """Of the last one that ends at or before its end."""
        self.carry = carry
        """Tokens behind that, up to its end."""
        self.width = width
        """Its own tokens' bytes."""
        self.parent: EngineBlock | None = None
        """The one before, if a block of ours spans both."""
        self.children: list[EngineBlock] | None = None
        """Those behind it, likewise."""
        self.place = 0
        """Among its parent's children."""
        self.missing = 0
        """Of those before it in which its first number begins: so many are gone."""

    @property
    def weight(self) -> int:
        """What it counts of `blocks_max`."""
        return len(self.numbers) or 1

    @property
    def whole(self) -> tuple[int, ...]:
        """Numbers that are there if it is, whatever happens to those before it or is so now."""
        return self.numbers[1:] if self.missing else self.numbers

    def spanning(self) -> Iterator["EngineBlock"]:
        """Those whose first number begins in it or before, and those without a number between."""
        waiting = list(self.children or ())
        while waiting:
            one = waiting.pop()
            yield one
            if not one.numbers:
                waiting += one.children or ()

    def stand_behind(self, parent: "EngineBlock") -> None:
        """A block of ours spans both."""
        self.parent = parent
        if parent.children is None:
            parent.children = []
        self.place = len(parent.children)
        parent.children.append(self)
        lead, one = len(parent.carry), parent
        while True:
            self.missing += not one.copies
            lead -= one.width
            if lead <= 0 or one.parent is None:
                return
            one = one.parent

    def stand_alone(self) -> None:
        """It is of no more use to its parent."""
        if self.parent is not None:
            siblings = self.parent.children
            assert siblings is not None, "it is one of them"
            last = siblings.pop()
            if last is not self:
                siblings[self.place], last.place = last, self.place
            self.parent = None
