"""What is wrong with what others say: counted each time, and logged now and then."""

from collections.abc import Callable

import structlog

from extproc.ops.exchangemetrics import ExchangeMetrics

LOG_INTERVAL_S = 10.0
"""Of each kind of complaint one is logged in this time, with the number of those left out."""


class Complaints:
    """State: what was logged last. `clock` is in seconds."""

    def __init__(
        self, metrics: ExchangeMetrics, clock: Callable[[], float], log: structlog.typing.FilteringBoundLogger
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._logged_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def refused(self, channel: str, reason: str) -> None:
        """A message was wrong."""
        self._metrics.refused(channel)
        self._say("message of a router refused", channel=channel, reason=reason)

    def other_key(self, router: str) -> None:
        """Prompts were told whose hashes have another key than ours."""
        self._metrics.dropped("other_key")
        self._say("router with another prefix_secret: prompts that it tells are not taken", router=router)

    def _say(self, event: str, **values: str) -> None:
        now_s = self._clock()
        if now_s - self._logged_s.get(event, float("-inf")) < LOG_INTERVAL_S:
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return
        self._logged_s[event] = now_s
        self._log.warning(event, **values, left_out=self._left_out.pop(event, 0))
