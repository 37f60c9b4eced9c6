"""Our numbers that stand in an engine's cache, and what changed of them."""

from collections.abc import Collection


class HeldNumbers:
    """Each counts as often as it is there. Changes are collected until `cut`."""

    __slots__ = ("_changed", "_counts")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._changed: dict[int, bool] = {}
        """Those that came or went since the latest cut, and whether they were there then."""

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def all(self) -> Collection[int]:
        """Do not keep it."""
        return self._counts.keys()

    def hold(self, number: int) -> None:
        """It is there once more."""
        count = self._counts.get(number, 0)
        self._counts[number] = count + 1
        if not count and self._changed.pop(number, None) is None:
            self._changed[number] = False

    def release(self, number: int) -> None:
        """It is there once less."""
        count = self._counts[number] - 1
        if count:
            self._counts[number] = count
        else:
            del self._counts[number]
            if self._changed.pop(number, None) is None:
                self._changed[number] = True

    def cut(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Numbers that have come since the latest cut, and those that have gone; neither is what did both."""
        changed = self._changed
        stored = tuple([one for one, was in changed.items() if not was])
        removed = tuple([one for one, was in changed.items() if was])
        self._changed = {}
        return stored, removed
