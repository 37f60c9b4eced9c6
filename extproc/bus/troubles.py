"""What stands between us and the servers of a bus, for people: each reason is logged once until it changes."""

from collections.abc import Callable

import structlog

REFUSED_S = 10.0
"""A complaint about what we publish counts for so long: it is repeated for each message that is refused."""
QUIET_S = 600.0
"""A server's reason that was logged is logged again where it was not met for so long, or the server was reached."""
REASONS_MAX = 256
"""Reasons that are remembered, of all servers; beyond it the oldest are forgotten, and logged again when met."""
LOG_INTERVAL_S = 10.0
"""Complaints of a server that is reached are logged no more often."""
REASON_CHARS_MAX = 200
_FORBIDDEN = "permissions violation"
_FORBIDDEN_FOR_GOOD = "permissions violation for subscription"


class Troubles:
    """Of one bus; see `Bus` for `reason` and `refused`."""

    def __init__(self, clock: Callable[[], float], log: structlog.typing.FilteringBoundLogger) -> None:
        self._clock = clock
        self._log = log
        self.reason: str | None = None
        self._refused: str | None = None
        self._refused_until_s = float("-inf")
        self._logged: dict[tuple[str, str], float] = {}
        self._complained_s = float("-inf")

    @property
    def refused(self) -> str | None:
        """See `Bus`."""
        return self._refused if self._clock() < self._refused_until_s else None

    def connects(self) -> None:
        """A new connection begins: what was refused before may be allowed now."""
        self._refused = None
        self._refused_until_s = float("-inf")

    def reached(self, server: str) -> None:
        """The connection works."""
        self.reason = None
        for key in [key for key in self._logged if key[0] == server]:
            del self._logged[key]
        self._log.info("bus reached", server=server)

    def failed(self, server: str, reason: str, *, was_reached: bool) -> None:
        """A connection has ended, or was not made."""
        self.reason = reason
        now_s = self._clock()
        known_s = self._logged.pop((server, reason), None)
        self._logged[server, reason] = now_s
        if len(self._logged) > REASONS_MAX:
            del self._logged[next(iter(self._logged))]
        if was_reached or known_s is None or now_s - known_s > QUIET_S:
            self._log.warning("bus lost" if was_reached else "bus not reached", server=server, reason=reason)

    def complained(self, server: str, reason: str) -> None:
        """The server takes something ill, and keeps the connection."""
        now_s = self._clock()
        if _FORBIDDEN in reason.lower() and self._refused_until_s != float("inf"):
            # What we may not hear is told once, and stays so.
            for_good = _FORBIDDEN_FOR_GOOD in reason.lower()
            self._refused, self._refused_until_s = reason, float("inf") if for_good else now_s + REFUSED_S
        if now_s - self._complained_s >= LOG_INTERVAL_S:
            self._complained_s = now_s
            self._log.warning("bus complains", server=server, reason=reason)


def said(error: BaseException) -> str:
    """What an error says, in short and without the client's own marks."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = str(error).removeprefix("nats: ")
    if len(text) > 2 and text[0] == text[-1] == "'":  # as the server puts its own words
        text = text[1:-1]
    return (text or type(error).__name__)[:REASON_CHARS_MAX]
