"""What happens next in a simulation."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Happens = Callable[[float, Any], None]
"""Is told when it is, and what it is about."""


class Agenda:
    """Moments, the next one first; what shall happen at the same moment does in the order in which it was entered."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Happens, Any]] = []
        self._order = 0
        self.now_s = float("-inf")
        """The moment of what happens, or happened last."""

    @property
    def next_s(self) -> float:
        """When something happens next; there must be something."""
        return self._heap[0][0]

    def at(self, at_s: float, happens: Happens, about: Any = None) -> None:
        """Enter something; not before now."""
        self._order += 1
        heappush(self._heap, (at_s, self._order, happens, about))

    def go_on(self) -> None:
        """Let the next thing happen."""
        self.now_s, _, happens, about = heappop(self._heap)
        happens(self.now_s, about)
