"""Requests that wait for room, on the event loop: one future for each, and when to look whether one may go.

Nothing is polled. The balancer says when there may be room: a snapshot came, a request began or ended. Several such
words are one look, and looks in vain take a tenth of the loop's time at most, however large the fleet is and however
often it reports. Those that let somebody go cost what deciding costs anyway; were they held back too, a large fleet
would idle while requests wait. A timer stands for the first who runs out of time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from extproc.core.balancer import Balancer
from extproc.core.decision import Decision

LOOKS_SHARE_MAX: Final = 0.1
"""Of the event loop's time, for looks that let nobody go."""


class WaitingRequests:
    """Those who wait. `clock` is the balancer's; `on_fault` is told of an error of ours, while it is handled."""

    def __init__(self, balancer: Balancer, clock: Callable[[], float], on_fault: Callable[[], None]) -> None:
        self._balancer = balancer
        self._clock = clock
        self._on_fault = on_fault
        self._decisions: dict[str, asyncio.Future[Decision]] = {}
        self._look: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rested_at_s = 0.0
        """When the next look may be, by the event loop's time."""
        self._draining = False
        balancer.on_room = self.look_soon

    def __len__(self) -> int:
        return len(self._decisions)

    async def decision(self, request_id: str, first: Awaitable[object] | None = None) -> Decision:
        """The end of its waiting. Raises where looking failed, for an error of ours, and what `first` raises.

        It waits from the moment of the call, though `first` is awaited before: what is decided meanwhile is not lost.
        Who gives up waiting must finish the request with the balancer.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Decision] = loop.create_future()
        self._decisions[request_id] = future
        if self._draining:
            loop.call_soon(self.drain)
        self._set_timer()
        try:
            if first is not None:
                await first
            return await future
        finally:
            del self._decisions[request_id]

    def look_soon(self) -> None:
        """There may be room."""
        if self._look is None:
            loop = asyncio.get_running_loop()
            self._look = loop.call_at(max(loop.time(), self._rested_at_s), self._admit)

    def drain(self) -> None:
        """Turn away all who wait, and all who will."""
        self._draining = True
        self._settle(self._balancer.drain)

    def _admit(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
        began_s = time.perf_counter()
        if not self._settle(self._balancer.admit):
            took_s = time.perf_counter() - began_s
            self._rested_at_s = asyncio.get_running_loop().time() + took_s * (1 / LOOKS_SHARE_MAX - 1)
        self._set_timer()

    def _settle(self, decide: Callable[[float], list[Decision]]) -> int:
        """How many were decided."""
        try:
            decisions = decide(self._clock())
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody waits for ever
            self._on_fault()
            for future in self._decisions.values():
                if not future.done():
                    future.set_exception(error)
            return 0
        for decision in decisions:
            waits = self._decisions.get(decision.request_id)
            if waits is not None and not waits.done():
                waits.set_result(decision)
        return len(decisions)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_s = self._balancer.next_deadline_s
        if deadline_s is not None:
            loop = asyncio.get_running_loop()
            at_s = loop.time() + deadline_s - self._clock()
            self._timer = loop.call_at(max(at_s, self._rested_at_s), self._admit)
