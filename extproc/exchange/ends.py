"""Ends of answers that Envoy told us and that are another router's: told to it, several at a time."""

import asyncio
from collections import deque
from collections.abc import Callable

from extproc.core.outcome import Answered
from extproc.exchange import endswire
from extproc.ops.exchangemetrics import ExchangeMetrics

TOGETHER_S = 0.02
"""So long ends wait for others to go with them."""
WAITING_MAX = 10_000
"""The oldest go first."""


class EndsTold:
    """State: ends that wait to be sent. `send` publishes a message."""

    def __init__(self, send: Callable[[bytes], None], clock: Callable[[], float], metrics: ExchangeMetrics) -> None:
        self._send = send
        self._clock = clock
        self._metrics = metrics
        self._waiting: deque[tuple[str, Answered]] = deque(maxlen=WAITING_MAX)
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, router: str, ended: Answered) -> None:
        """How a request of this router's ended. It goes out within `TOGETHER_S`."""
        if len(self._waiting) == WAITING_MAX:
            self._metrics.dropped("ends_late")
        self._waiting.append((router, ended))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOGETHER_S, self.flush)

    def flush(self) -> None:
        """Send what waits now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        by_router: dict[str, list[Answered]] = {}
        for router, ended in self._waiting:
            by_router.setdefault(router, []).append(ended)
        self._waiting.clear()
        now_s = self._clock()
        for router, ends in by_router.items():
            for message in endswire.ends_bytes(router, ends, now_s):
                self._send(message)
