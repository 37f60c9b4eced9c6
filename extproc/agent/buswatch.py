"""What an operator is told of an agent's bus: how long it is there or not, and that it does not lead to any router."""

from collections.abc import Callable
from typing import Any

import structlog

from extproc.bus.bus import Bus

SILENCE_S = 5.0
"""Routers say each second that they are there. Where none is heard for so long, none listens, as far as we know."""
AGAIN_S = 60.0
"""It is said again so often, while it lasts."""


class BusWatch:
    """Of one bus; `fleet` is what its subjects begin with. Look at it now and then."""

    def __init__(
        self, bus: Bus, fleet: str, clock: Callable[[], float], log: structlog.typing.FilteringBoundLogger
    ) -> None:
        self._bus = bus
        self._fleet = fleet
        self._clock = clock
        self._log = log
        self._connected = bus.connected
        self._since_s = self._heard_s = clock()
        self._told_s = float("-inf")

    def look(self, *, is_any_heard: bool) -> None:
        """Note how it is. `is_any_heard`: a router is, now."""
        now_s = self._clock()
        if self._bus.connected != self._connected:
            self._connected, self._since_s, self._heard_s = self._bus.connected, now_s, now_s
        if is_any_heard or not self._connected:
            self._heard_s = now_s
        elif now_s - self._heard_s >= SILENCE_S and now_s - self._told_s >= AGAIN_S:
            self._told_s = now_s
            for_s = round(now_s - self._heard_s, 1)
            self._log.warning("no router heard on the bus", fleet=self._fleet, for_s=for_s)

    def shown(self) -> dict[str, Any]:
        """`for_s`: how long it is connected, or not; `reason`: why nothing, or not all, gets to routers by it."""
        for_s = round(self._clock() - self._since_s, 3)
        reason = self._reason()
        return {"connected": self._connected, "for_s": for_s} | ({} if reason is None else {"reason": reason})

    def _reason(self) -> str | None:
        if not self._connected:
            return self._bus.reason
        if self._bus.refused is not None:
            return self._bus.refused
        silent = self._clock() - self._heard_s >= SILENCE_S
        return f"no router of the fleet {self._fleet} is heard" if silent else None
