"""Prompts that others sent somewhere, taken into our index: a little at a time, for requests come in between."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from extproc.core.balancer import Balancer
from extproc.core.peershares import PromptPlaced
from extproc.exchange import placements, wire
from extproc.ops.exchangemetrics import ExchangeMetrics

WAITING_BYTES_MAX = 4 * 1024 * 1024
"""Messages that have come and are not read yet; the oldest go first."""
TAKEN_AT_ONCE_BLOCKS = 2000
"""Then others have a turn: 2 ms, mostly less; and a prompt costs as much as some blocks, beside its own:"""
PROMPT_BLOCKS = 8


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
        """Whether what this router says is of use; else it counts it itself."""
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
        """It is read later, unless it begins with the name of a router that does not count. Raises for no content."""
        router = wire.named_in(message)
        if router is not None and not self._counts(router):
            return
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
        told = placements.placements_of(message)
        if isinstance(told, str):
            self._refused(told)
        elif self._counts(told.router):
            try:
                await self._take_in(placements.prompts_of(told))
            except placements.WrongPlacementsError as wrong:
                self._refused(str(wrong))

    async def _take_in(self, told: Iterator[PromptPlaced | None]) -> None:
        blocks = 0
        for one in told:
            if one is not None:
                self._balancer.peer(one, self._clock())
                blocks += len(one.blocks) + PROMPT_BLOCKS
            if one is None or blocks >= TAKEN_AT_ONCE_BLOCKS:
                blocks = 0
                self._balancer.settle()
                await asyncio.sleep(0)
        self._balancer.settle()
        await asyncio.sleep(0)
