"""What is counted of the exchange with other routers. Kinds, directions and reasons are closed sets in our code."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

SENT = "sent"
RECEIVED = "received"
KINDS = ("loads", "placements", "routers", "ends")
DROPPED = (
    "placements_budget",
    "placements_late",
    "ends_late",
    "disconnected",
    "late",
    "unheard",
    "other_key",
)


class ExchangeMetrics:
    """Told by the exchange. Nothing of it is on the page where there is no bus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.counts: dict[str, dict[str, int]] = {SENT: {}, RECEIVED: {}, "refused": {}, "dropped": {}}
        """The same numbers for the page: messages by direction and kind, refused ones, and what was dropped."""
        self._messages = Counter(
            "extproc_exchange_messages_total",
            "Messages on the bus, received from others and for us. kind: loads (what routers have at nodes), "
            "placements (prompts sent somewhere), routers (who is there), ends (of answers, told for another router).",
            ["direction", "kind"],
            registry=registry,
        )
        self._bytes = Counter(
            "extproc_exchange_bytes_total",
            "Their bytes.",
            ["direction", "kind"],
            registry=registry,
        )
        self._dropped = Counter(
            "extproc_exchange_dropped_total",
            "What was not told, or not heard. reason: placements_budget (prompts over placement_bytes_per_s), "
            "placements_late (messages that came faster than they are read), ends_late (ends of answers, the same), "
            "disconnected (messages), late (loads over silence_s old, or of more than peers_max routers), unheard "
            "(messages with prompts, of routers that are not heard, or one too many), other_key (the same, of routers "
            "with another prefix_secret).",
            ["reason"],
            registry=registry,
        )
        self._refused = Counter(
            "extproc_exchange_refused_total",
            "Messages that were wrong, and not taken; the log says why.",
            ["kind"],
            registry=registry,
        )

    def watch(
        self,
        connected: Callable[[], bool],
        way_s: Callable[[], float],
        peers: Callable[[], int],
        lost: Callable[[], Mapping[str, int]],
    ) -> None:
        """Where to look, for each page. `lost` are messages that the bus lost on our side, by reason."""
        registry = self._registry
        for counter, labels in (
            (self._messages, [(direction, kind) for direction in (SENT, RECEIVED) for kind in KINDS]),
            (self._bytes, [(direction, kind) for direction in (SENT, RECEIVED) for kind in KINDS]),
            (self._dropped, [(reason,) for reason in DROPPED]),
            (self._refused, [(kind,) for kind in KINDS]),
        ):
            for values in labels:
                counter.labels(*values)  # from the start, so that the first one is seen to come
        registry.register(_Lost(lost))
        for name, text, figure in (
            (
                "extproc_bus_connected",
                "1: the bus can be reached; 0: routers know of each other by reports alone.",
                connected,
            ),
            ("extproc_bus_way_seconds", "From here to the bus, or back, as measured lately; 0: not yet.", way_s),
            ("extproc_peers", "Other routers of the fleet that are heard.", peers),
        ):
            Gauge(name, text, registry=registry).set_function(partial(_number, figure))

    def message(self, direction: str, kind: str, size: int) -> None:
        """A message of so many bytes was sent, or has come."""
        self._messages.labels(direction, kind).inc()
        self._bytes.labels(direction, kind).inc(size)
        counts = self.counts[direction]
        counts[kind] = counts.get(kind, 0) + 1

    def dropped(self, reason: str, number: int = 1) -> None:
        """So many things were not told, or not heard."""
        if number:
            self._dropped.labels(reason).inc(number)
            counts = self.counts["dropped"]
            counts[reason] = counts.get(reason, 0) + number

    def refused(self, kind: str) -> None:
        """A message was wrong."""
        self._refused.labels(kind).inc()
        counts = self.counts["refused"]
        counts[kind] = counts.get(kind, 0) + 1


class _Lost(Collector):
    """Messages that the bus lost."""

    def __init__(self, lost: Callable[[], Mapping[str, int]]) -> None:
        self._lost = lost

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        counter = CounterMetricFamily(
            "extproc_bus_lost",
            "Messages that our end of the bus lost. reason: slow (we did not keep up), unsent (the bus was not there, "
            "or others or the way there did not keep up) or long.",
            labels=["reason"],
        )
        for reason, number in self._lost().items():
            counter.add_metric([reason], number)
        yield counter


def _number(figure: Callable[[], float]) -> float:
    return float(figure())
