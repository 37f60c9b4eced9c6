"""Nodes that fail requests are left out for a while, and tried again with one request at a time."""

from collections import deque
from collections.abc import Mapping

from extproc.core.outcome import Ending
from extproc.core.settings import EjectionSettings

DOUBLINGS_MAX = 32
"""Of the time that a node is out: it may fail its trials for days."""
FAILED_KEPT = 16
"""Failed requests of a node that are remembered, so that none counts twice."""
SILENT_PROBES_MAX = 3
"""Trials that ended without a word about how; then the node counts as well."""
VERDICT_S = 2.0
"""How long after a trial's end the word about it may take: access logs come in batches."""
PROBE_S = 30.0
"""How long a trial may run before another is sent beside it."""


class _State:
    __slots__ = ("errors", "failed", "out_until_s", "probe", "probes", "silent", "times", "unreachable", "well_since_s")

    def __init__(self) -> None:
        self.unreachable = 0
        self.errors = 0
        self.failed: deque[str] = deque(maxlen=FAILED_KEPT)
        """The latest requests that failed: Envoy may tell of one twice, by its head and by its end."""
        self.times = 0
        """Ejections without a good time of `longest_s` between them."""
        self.out_until_s: float | None = None
        """Out until then, and on trial afterwards; `None`: neither."""
        self.probe: str | None = None
        """The request by which it is tried now."""
        self.probes: deque[str] = deque(maxlen=FAILED_KEPT)
        """All by which it was tried since it is out: an answer may take longer than `PROBE_S`."""
        self.silent = 0
        self.well_since_s = float("-inf")


class Ejections:
    """Which nodes are out.

        well ── failures in a row ──► out for 5, 10, 20 … s ──► on trial ── an answer ──► well
                                           ▲                      │
                                           └───── a failure ──────┘

    Only answers to requests that were sent as a trial bring a node back: one that was sent before it failed may still
    end well. State: counts for each node that failed lately, a bounded number since they are members.
    """

    def __init__(self, settings: EjectionSettings) -> None:
        self._settings = settings
        self._states: dict[str, _State] = {}
        self.out_until_s: Mapping[str, float] = {}
        """Nodes that are out or on trial, and until when no request goes there."""

    def chosen(self, node_id: str, request_id: str, now_s: float) -> None:
        """A request was sent to the node. To one that is on trial it is the trial."""
        state = self._states.get(node_id)
        if state is not None and state.out_until_s is not None and state.out_until_s <= now_s:
            state.probe = request_id
            state.probes.append(request_id)
            self._bar(state, now_s + PROBE_S)

    def answered(self, node_id: str, request_id: str, ending: Ending, now_s: float, members: int) -> None:
        """What one answer says of the node; `members` is how many nodes there are."""
        if ending is Ending.UNTOLD:
            return
        state = self._states.get(node_id)
        if ending is Ending.SERVED:
            if state is not None and state.out_until_s is None:
                state.unreachable = state.errors = 0
            elif state is not None and request_id in state.probes:
                self._back(state, now_s)
            return
        if state is None:
            state = self._states[node_id] = _State()
        if state.out_until_s is not None:
            self._tried(state, request_id, ending, now_s)
            return
        if request_id in state.failed:
            return
        state.failed.append(request_id)
        if ending is Ending.UNREACHABLE:
            state.unreachable += 1
        else:
            state.errors += 1
        settings = self._settings
        failed = state.unreachable >= settings.unreachable_max or state.errors >= settings.errors_max
        if failed and len(self.out_until_s) + 1 <= settings.share_max * members:
            self._eject(state, now_s)

    def finished(self, node_id: str, request_id: str, now_s: float) -> None:
        """A request is over. If it was a trial, the word about it comes soon or never."""
        state = self._states.get(node_id)
        if state is None or state.probe != request_id:
            return
        state.silent += 1
        if state.silent >= SILENT_PROBES_MAX:
            self._back(state, now_s)
        else:
            self._bar(state, now_s + VERDICT_S)

    def moved(self, chosen_id: str, node_id: str, request_id: str, now_s: float) -> None:
        """Another node than the chosen one got the request: it is no trial of that one, which soon has another."""
        state = self._states.get(chosen_id)
        if state is not None and request_id in state.probes:
            state.probes.remove(request_id)
            if state.probe == request_id:
                state.probe = None
                self._bar(state, now_s + VERDICT_S)
        self.chosen(node_id, request_id, now_s)

    def _tried(self, state: _State, request_id: str, ending: Ending, now_s: float) -> None:
        """A trial failed. An error may be the request's own fault: then another is sent, as often as before."""
        if request_id not in state.probes:
            return
        state.probes.remove(request_id)
        if ending is Ending.ERROR:
            state.errors += 1
            state.silent = 0
        if ending is Ending.UNREACHABLE or state.errors >= self._settings.errors_max:
            self._eject(state, now_s)
        elif state.probe == request_id:
            state.probe = None
            self._bar(state, now_s)

    def well_since_s(self, node_id: str) -> float:
        """When the node was last brought back; long ago if it never was out."""
        state = self._states.get(node_id)
        return float("-inf") if state is None else state.well_since_s

    def forget(self, node_id: str) -> None:
        """The node is a member no more, or began anew."""
        if self._states.pop(node_id, None) is not None:
            self._show()

    def _eject(self, state: _State, now_s: float) -> None:
        if state.out_until_s is None and now_s - state.well_since_s > self._settings.longest_s:
            state.times = 0
        seconds = min(self._settings.first_s * 2.0 ** min(state.times, DOUBLINGS_MAX), self._settings.longest_s)
        state.times += 1
        state.unreachable = state.errors = state.silent = 0
        state.probe = None
        state.probes.clear()
        self._bar(state, now_s + seconds)

    def _back(self, state: _State, now_s: float) -> None:
        state.out_until_s = state.probe = None
        state.probes.clear()
        state.well_since_s = now_s
        state.silent = 0
        self._show()

    def _bar(self, state: _State, until_s: float) -> None:
        state.out_until_s = until_s
        self._show()

    def _show(self) -> None:
        self.out_until_s = {
            node_id: state.out_until_s for node_id, state in self._states.items() if state.out_until_s is not None
        }
