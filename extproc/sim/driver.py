"""An engine in real time: a task on the event loop that lets each step end when its time has come."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from extproc.sim.engine import Engine
from extproc.sim.events import Event, Request

Deliver = Callable[[Event], None]
"""Takes the events of one sequence, in order; must not block."""


class Driver:
    """Owns an engine on the running loop's clock. `run` must be running for anything to happen.

    The engine's time is the clock's less all that it was held up, so its own counters know nothing of that.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._clock = asyncio.get_running_loop().time
        self._deliver: dict[str, Deliver] = {}
        self._work = asyncio.Event()
        self._held_at_s = float("-inf")
        """The engine's time when it was last held up."""
        self._behind_s = 0.0
        """How far the engine's time is behind the clock, once it goes on."""

    def submit(self, request: Request, deliver: Deliver) -> None:
        """Start a sequence; it must be closed with `abort`, however it ends."""
        self._deliver[request.request_id] = deliver
        self.engine.submit(request, self._now_s())
        self._work.set()

    def abort(self, request_id: str) -> None:
        """Nobody waits for this sequence any more: it finished, or its client is gone."""
        if self._deliver.pop(request_id, None) is not None:
            self.engine.abort(request_id, self._now_s())

    def hold(self, for_s: float) -> None:
        """From now on and for so long nothing is computed; then the engine goes on where it stood."""
        self._held_at_s = self._now_s()
        self._behind_s = self._clock() + for_s - self._held_at_s

    def set_speed(self, speed: float) -> None:
        """Over 0. Holds from the next step that is composed: at the latest when a sequence comes, goes or ends."""
        self.engine.settings = replace(self.engine.settings, speed=speed)

    def _now_s(self) -> float:
        return max(self._held_at_s, self._clock() - self._behind_s)

    async def run(self) -> None:
        """Advance the engine until cancelled."""
        while True:
            # First of all, also when idle: a call of ours may have caught up with the engine's last step.
            for event in self.engine.advance(self._now_s()):
                deliver = self._deliver.get(event.request_id)
                if deliver is not None:
                    deliver(event)
            end_s = self.engine.next_step_end_s
            if end_s is None:
                self._work.clear()
                await self._work.wait()
            else:
                # Even when late: others must run between two steps.
                await asyncio.sleep(max(0.0, end_s + self._behind_s - self._clock()))
