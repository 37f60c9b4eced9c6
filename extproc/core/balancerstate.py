"""What a balancer consists of, and what of it can be looked at: nothing here changes anything."""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import islice

from extproc.core.admission import Admission
from extproc.core.chooser import Chooser
from extproc.core.decision import Decision
from extproc.core.fallback import SmoothWeightedRoundRobin
from extproc.core.fleetstate import FleetState
from extproc.core.forecast import Forecast, ModelForecast
from extproc.core.quotas import Quotas
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import Freshness, NodeView


class BalancerState:
    """The parts of a balancer."""

    def __init__(self, settings: BalancerSettings, started_s: float) -> None:
        self.settings = settings
        self._fleet = FleetState(settings)
        self._admission = Admission(settings)
        for view in self._fleet.views():
            self._admission.serves(view.snapshot.node_id, view.snapshot.host, view.context_lengths)
        self._chooser = Chooser(settings, self._fleet, started_s)
        self._forecast = Forecast(settings.forecast, settings.nodes, settings.rates, started_s)
        self._quotas = Quotas(settings.quotas, settings.quota_buckets_max)
        self._round_robin = SmoothWeightedRoundRobin()
        self._round_robin_uninspected = SmoothWeightedRoundRobin()  # of its own: polls must not take inference's turns
        self._decisions: deque[Decision] = deque(maxlen=settings.decisions_kept_max)
        self.on_room: Callable[[], None] = _nobody_waits
        """Called when somebody waits and there may be room. It must not call back, but see to it that `admit` is called
        soon after, and when `next_deadline_s` has come."""

    def views(self) -> Collection[NodeView]:
        """Every member as decisions see it; do not hold it over another call."""
        return self._fleet.views()

    def view_of(self, node_id: str) -> NodeView | None:
        """One member; do not hold it over another call."""
        return self._fleet.table.get(node_id)

    def kv_blocks_told(self, node_id: str) -> int | None:
        """How many blocks the node tells that it has in its cache; `None`: it does not tell, or not all of them."""
        return self._fleet.caches.kv.count(node_id)

    def freshness(self, view: NodeView, now_s: float) -> Freshness:
        """How far a member's snapshot can be trusted now."""
        return self._fleet.freshness(view, now_s)

    @property
    def out_until_s(self) -> Mapping[str, float]:
        """Nodes that failed requests: until when none goes there; past that time they are on trial."""
        return self._fleet.out_until_s

    def decisions(self, limit: int) -> list[Decision]:
        """The latest decisions about inference requests, newest first."""
        return list(islice(reversed(self._decisions), max(0, limit)))

    def forecasts(self, now_s: float) -> tuple[ModelForecast, ...]:
        """What is to come of each model, and how many nodes that takes. Nodes that are left out are none."""
        return self._forecast.of([one for one in self.views() if one.snapshot.node_id not in self.out_until_s], now_s)

    @property
    def requests_open(self) -> int:
        """Requests sent somewhere by us and not finished."""
        return len(self._fleet.ledger)

    @property
    def next_deadline_s(self) -> float | None:
        """When the time is up of the first who waits; `None`: nobody waits."""
        return self._admission.queue.next_deadline_s

    @property
    def waiting(self) -> Mapping[str, tuple[int, int]]:
        """How many wait of each class, and the bytes of their bodies."""
        return self._admission.queue.depths()


def _nobody_waits() -> None:
    """Before anybody looks after those who wait."""
