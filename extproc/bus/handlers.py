"""Those who listen: messages wait for them in a bounded queue, and are given out a slice at a time, within a bounded
share of the event loop: what waits meanwhile and does not fit loses its oldest."""

import asyncio
from collections.abc import Callable

import structlog

from extproc.bus.bounded import Bounded
from extproc.bus.bus import MESSAGE_BYTES_MAX, BusCounts, Handler
from extproc.bus.share import SLICE_S, Share
from extproc.bus.subjects import text_of

WAITING_MESSAGES_MAX = 16_384
WAITING_BYTES_MAX = 64 * MESSAGE_BYTES_MAX
"""Heard and not handled yet."""
LOG_INTERVAL_S = 10.0
"""Faults of handlers are logged no more often."""


class Handlers:
    """Of all channels of one bus. Whoever hears a message for them never waits."""

    def __init__(
        self, counts: BusCounts, clock: Callable[[], float], log: structlog.typing.FilteringBoundLogger
    ) -> None:
        self._counts = counts
        self._clock = clock
        self._log = log
        self._handlers: dict[str, list[Handler]] = {}
        self._waiting: Bounded[tuple[str, str, bytes]] = Bounded(WAITING_MESSAGES_MAX, WAITING_BYTES_MAX)
        self._share = Share(clock)
        self._is_due = False
        self._logged_s = float("-inf")

    @property
    def channels(self) -> list[str]:
        """To which somebody listens, in the order of their first listeners."""
        return list(self._handlers)

    @property
    def waiting_bytes(self) -> int:
        """Of messages that nobody has handled yet."""
        return self._waiting.bytes

    def listen(self, channel: str, handler: Handler) -> None:
        """From now on."""
        self._handlers.setdefault(channel, []).append(handler)

    def hear(self, channel: str, token: str, message: bytes) -> None:
        """A message has come; `token` is as in subjects, or empty."""
        counts = self._counts
        counts.received += 1
        counts.received_bytes += len(message)
        if len(message) > MESSAGE_BYTES_MAX:
            counts.dropped_long += 1
        else:
            counts.dropped_slow += self._waiting.put((channel, token, message), len(message))
            if not self._is_due:
                self._is_due = True
                asyncio.get_running_loop().call_soon(self._give)  # a task would cost more than most handlers

    def forget(self) -> None:
        """Nobody hears what waits."""
        self._waiting.clear()

    def _give(self) -> None:
        """Give messages to their handlers, for a slice."""
        began_s = self._clock()
        while len(self._waiting):
            channel, token, message = self._waiting.take()
            below = text_of(token) if token else ""
            if below is not None:
                for handler in self._handlers.get(channel, ()):
                    self.guarded(handler, below, message)
            if self._clock() - began_s >= SLICE_S:
                break
        # Even where nothing waits: what comes at once is no reason to take more.
        rest_s = self._share.rest_s(self._clock() - began_s)
        self._is_due = rest_s > 0 or len(self._waiting) > 0
        if self._is_due:
            asyncio.get_running_loop().call_later(rest_s, self._give)

    def guarded(self, call: Callable[..., None], *arguments: object) -> None:
        """Call it; what it raises is counted, and logged now and then: other handlers are called all the same."""
        try:
            call(*arguments)
        except Exception:  # noqa: BLE001 - of any handler
            self._counts.faults += 1
            if (now_s := self._clock()) - self._logged_s >= LOG_INTERVAL_S:
                self._logged_s = now_s
                self._log.error("bus message not handled", faults=self._counts.faults, exc_info=True)
