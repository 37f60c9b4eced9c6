"""How long nodes take from loading to ready, by the models that they serve then."""

from collections import OrderedDict

from extproc.core.forecastsettings import ForecastSettings
from extproc.core.snapshot import NodeState, Snapshot

NEW_SHARE = 0.3
"""How much the latest start counts against all before it."""
UNSEEN_S = 10.0
"""A node that is loading so soon after our own start began before: how long it took cannot be told."""


class ColdStarts:
    """Learned from what agents report.

        LOADING, as a boot that was never ready ──► begun ──► READY: so long it took

    An engine that does not answer for a moment is LOADING too; its boot was ready before, so that is no start.
    State: for each node since when it is loading and which boot was ready; for each model its mean, a bounded number.
    """

    def __init__(self, settings: ForecastSettings, started_s: float) -> None:
        self._settings = settings
        self._seen_from_s = started_s + UNSEEN_S
        self._nodes: dict[str, _Start] = {}
        self._seconds: OrderedDict[str, float] = OrderedDict()

    def observe(self, snapshot: Snapshot, now_s: float) -> None:
        """A node reported."""
        start = self._nodes.get(snapshot.node_id)
        if start is None:
            start = self._nodes[snapshot.node_id] = _Start()
        if snapshot.state is NodeState.LOADING:
            if start.since_s is None and snapshot.boot_id != start.ready_boot:
                start.since_s = now_s
        elif snapshot.state is NodeState.READY:
            if start.since_s is not None and start.since_s >= self._seen_from_s:
                for served in snapshot.models or ():
                    self._learn(served.name, now_s - start.since_s)
            start.since_s, start.ready_boot = None, snapshot.boot_id

    def forget(self, node_id: str) -> None:
        """The node is a member no more."""
        self._nodes.pop(node_id, None)

    def expected_s(self, model: str) -> float:
        """Of the next node that will serve the model, within the configured bounds."""
        return self._seconds.get(model, self._settings.cold_start_s)

    def _learn(self, model: str, seconds: float) -> None:
        bounded = min(max(seconds, self._settings.cold_start_min_s), self._settings.cold_start_max_s)
        before = self._seconds.pop(model, bounded)
        self._seconds[model] = before + NEW_SHARE * (bounded - before)
        if len(self._seconds) > self._settings.models_max:
            self._seconds.popitem(last=False)


class _Start:
    __slots__ = ("ready_boot", "since_s")

    def __init__(self) -> None:
        self.since_s: float | None = None
        self.ready_boot: str | None = None
