"""Messages on their way: so many, of so many bytes, and no more. The oldest make room."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Bounded(Generic[Item]):
    """A queue with one reader, who may wait for it; whoever puts something into it never does."""

    def __init__(self, items_max: int, bytes_max: int) -> None:
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        """How many are in it."""
        return len(self._items)

    @property
    def bytes(self) -> int:
        """Of all that are in it."""
        return self._bytes

    def put(self, item: Item, size_bytes: int) -> int:
        """Add one; the number of old ones that were lost for it. One alone always has room."""
        self._items.append((item, size_bytes))
        self._bytes += size_bytes
        lost = 0
        while len(self._items) > 1 and (len(self._items) > self._items_max or self._bytes > self._bytes_max):
            self.take()
            lost += 1
        self._filled.set()
        return lost

    def take(self) -> Item:
        """The oldest. Raises `IndexError` where there is none."""
        item, size_bytes = self._items.popleft()
        self._bytes -= size_bytes
        return item

    def clear(self) -> int:
        """Lose all of them; how many they were."""
        lost = len(self._items)
        self._items.clear()
        self._bytes = 0
        return lost

    def wake(self) -> None:
        """End the reader's waiting though there is nothing."""
        self._filled.set()

    async def wait(self) -> None:
        """Until something is put into it or `wake` is called, or both were since the last waiting."""
        await self._filled.wait()
        self._filled.clear()
