"""How much of the agent's time one engine's messages may take: however many are ready, others have their turn."""

import asyncio
from collections.abc import Callable
from typing import Final

TAKEN_AT_ONCE_MAX: Final = 100
"""Messages, or pieces of long ones, that are taken without a rest."""
TAKEN_AT_ONCE_S: Final = 0.005
"""How long that may take, less what one piece takes; and how long the rest is, at least."""


class Pace:
    """One engine's, whatever number of publishers it has. It works half of the time at most."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pieces = 0
        self._busy_s = 0.0
        self._rest_until_s = float("-inf")

    async def turn(self) -> float:
        """Wait until something may be taken; when that is."""
        while True:
            now_s = self._clock()
            if now_s >= self._rest_until_s:
                return now_s
            await asyncio.sleep(self._rest_until_s - now_s)

    def took(self, since_s: float) -> None:
        """Something was taken from that time on, without a wait."""
        now_s = self._clock()
        self._pieces += 1
        self._busy_s += now_s - since_s
        if self._pieces >= TAKEN_AT_ONCE_MAX or self._busy_s >= TAKEN_AT_ONCE_S:
            self._rest_until_s = now_s + max(TAKEN_AT_ONCE_S, self._busy_s)
            self._pieces, self._busy_s = 0, 0.0
