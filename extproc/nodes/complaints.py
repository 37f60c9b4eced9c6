"""Log lines about agents, of which a hostile or broken one would otherwise cause any number."""

from collections.abc import Callable

import structlog

from extproc.nodes import wire

COMPLAINTS_KEPT_MAX = 1000
"""Kinds of complaints, a node's each, whose last turn is remembered."""
LOG_INTERVAL_S = 10.0
"""The same kind of complaint is logged at most once in this time, with the number of those left out."""


class Complaints:
    """Each kind of complaint, and when it was last logged."""

    def __init__(self, clock: Callable[[], float], log: structlog.typing.FilteringBoundLogger) -> None:
        self._clock = clock
        self._log = log
        self._complaints: dict[tuple[str, str], _Complaint] = {}

    def complain(self, event: str, node_id: str, *, shares_turn: bool = False, **values: str) -> None:
        """Log it, at most once in `LOG_INTERVAL_S` for each event and node. Nodes beyond a bound, and those that are
        said to, share one turn."""
        now_s = self._clock()
        if len(self._complaints) >= COMPLAINTS_KEPT_MAX:
            recent = {key: one for key, one in self._complaints.items() if now_s - one.logged_s < LOG_INTERVAL_S}
            self._complaints = recent
        key = (event, "" if shares_turn or len(self._complaints) >= COMPLAINTS_KEPT_MAX else node_id)
        complaint = self._complaints.setdefault(key, _Complaint(now_s - LOG_INTERVAL_S))
        if now_s - complaint.logged_s < LOG_INTERVAL_S:
            complaint.left_out += 1
            return
        shown = node_id if node_id.isprintable() else wire.shown(node_id)
        self._log.warning(event, node_id=shown, left_out=complaint.left_out, **values)
        self._complaints[key] = _Complaint(now_s)


class _Complaint:
    """When a kind of complaint was last logged."""

    __slots__ = ("left_out", "logged_s")

    def __init__(self, logged_s: float) -> None:
        self.logged_s = logged_s
        self.left_out = 0
