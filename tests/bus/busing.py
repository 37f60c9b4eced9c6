"""Buses for tests: those who were reached, what they heard, and settings of real servers."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from structlog.testing import CapturingLogger

from extproc.bus.bus import LOADS, Bus
from extproc.bus.natsbus import NatsBus
from extproc.bus.settings import NatsSettings
from tests.waiting import until


class Told:
    """A log that keeps what it was told."""

    def __init__(self) -> None:
        self._to = CapturingLogger()
        self.log: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
            self._to, processors=[], wrapper_class=structlog.make_filtering_bound_logger(0)
        )

    def events(self, event: str) -> list[dict[str, Any]]:
        return [call.kwargs for call in self._to.calls if call.kwargs["event"] == event]

    @property
    def lines(self) -> list[str]:
        return [call.kwargs["event"] for call in self._to.calls]


class Ears:
    """Somebody who listens to a channel of a bus, and counts how often it was reached."""

    def __init__(self, bus: Bus, channel: str = LOADS) -> None:
        self.bus = bus
        self.heard: list[tuple[str, bytes]] = []
        self.reached = 0
        bus.listen(channel, lambda below, message: self.heard.append((below, message)))

    def connect(self) -> None:
        self.reached += 1

    @property
    def messages(self) -> list[bytes]:
        return [message for _, message in self.heard]

    async def hears(self, message: bytes) -> None:
        await until(lambda: message in self.messages, 30)


@asynccontextmanager
async def reached(*buses: Bus) -> AsyncIterator[list[Ears]]:
    """Buses that are open, and who listens to them."""
    ears = [Ears(bus) for bus in buses]
    try:
        for one in ears:
            await one.bus.open(one.connect)
        await until(lambda: all(one.reached for one in ears))
        yield ears
    finally:
        for one in ears:
            await one.bus.close()


def nats_bus(*servers: str, told: Told | None = None, **settings: Any) -> NatsBus:
    """Towards servers, not open yet."""
    whole = NatsSettings.model_validate({"servers": list(servers)} | settings)
    return NatsBus(whole, time.monotonic, (told or Told()).log)
