"""Prompts that others sent somewhere, taken into our index: a little at a time, for requests come in between."""

import asyncio
from collections import deque
from collections.abc import Callable

from extproc.core.balancer import Balancer
from extproc.exchange import chains
from extproc.ops.exchangemetrics import ExchangeMetrics

WAITING_BYTES_MAX = 4 * 1024 * 1024
"""Messages that have come and are not read yet; the oldest go first."""
TAKEN_AT_ONCE_BLOCKS = 2000
"""Then others have a turn: 2 ms, mostly less."""


class PlacementsTaken:
    """State: messages that wait. `run` takes them in; whoever runs it counts its faults."""

    def __init__(
        self,
        balancer: Balancer,
        counts: Callable[[str], bool],
        refused: Callable[[str], None],
        clock: Callable[[], float],
        metrics: ExchangeMetrics,
    ) -> None:
        self._balancer = balancer
        self._counts = counts
        """Whether what this router says is of use."""
        self._refused = refused
        self._clock = clock
        self._metrics = metrics
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._come = asyncio.Event()

    @property
    def waiting_bytes(self) -> int:
        """Of messages that are not read yet."""
        return self._waiting_bytes

    def came(self, message: bytes) -> None:
        """It is read later. Raises for no content."""
        self._waiting.append(message)
        self._waiting_bytes += len(message)
        while self._waiting_bytes > WAITING_BYTES_MAX:
            self._waiting_bytes -= len(self._waiting.popleft())
            self._metrics.dropped("placements_late")
        self._come.set()

    async def run(self) -> None:
        """Take in what comes, until it is cancelled."""
        while True:
            await self._come.wait()
            self._come.clear()
            while self._waiting:
                message = self._waiting.popleft()
                self._waiting_bytes -= len(message)
                await self._take(message)

    async def _take(self, message: bytes) -> None:
        found = chains.placements_of(message)
        if isinstance(found, str):
            self._refused(found)
            return
        router, told = found
        if not self._counts(router):
            return
        blocks = 0
        for one in told:
            self._balancer.peer(one, self._clock())
            blocks += len(one.blocks)
            if blocks >= TAKEN_AT_ONCE_BLOCKS:
                blocks = 0
                self._balancer.settle()
                await asyncio.sleep(0)
        self._balancer.settle()
        await asyncio.sleep(0)
