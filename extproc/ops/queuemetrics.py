"""What is counted of requests that wait for room. Classes of priority are the configuration's: they can be labels."""

from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Gauge, Histogram

from extproc.core.decision import Decision, Refused

_QUEUE_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600)


class QueueMetrics:
    """The admission queue, by class."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._waited_s = Histogram(
            "extproc_queue_seconds",
            "Time that requests waited here for room until they were decided. outcome: went (to a node), or refused "
            "(its time was up, or we ended). Those whose client left are not in it.",
            ["priority", "outcome"],
            buckets=_QUEUE_BUCKETS_S,
            registry=registry,
        )
        self._requests = Gauge(
            "extproc_queue_requests",
            "Requests that wait here for room.",
            ["priority"],
            registry=registry,
        )
        self._bytes = Gauge(
            "extproc_queue_body_bytes",
            "Bodies of requests that wait here for room, which Envoy holds.",
            ["priority"],
            registry=registry,
        )

    def watch(self, depths: Callable[[], Mapping[str, tuple[int, int]]]) -> None:
        """Where to look, for each page, how many requests of each class wait, with how many bytes."""
        for name in depths():
            self._requests.labels(name).set_function(partial(_figure, depths, name, 0))
            self._bytes.labels(name).set_function(partial(_figure, depths, name, 1))

    def decided(self, decision: Decision) -> None:
        """The balancer decided; most have not waited."""
        if decision.queued_s:
            outcome = "refused" if isinstance(decision.outcome, Refused) else "went"
            self._waited_s.labels(decision.priority, outcome).observe(decision.queued_s)

    def gone(self, priority: str, seconds: float) -> None:
        """One who has waited so long is gone: its client left, or Envoy did not wait for us."""
        self._waited_s.labels(priority, "gone").observe(seconds)


def _figure(depths: Callable[[], Mapping[str, tuple[int, int]]], name: str, place: int) -> float:
    return depths()[name][place]
