"""What the parent of workers counts itself."""

from collections.abc import Callable, Collection, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from extproc.ops.metrics import Metrics
from extproc.workers import exposition

_SHARED: Final = ("extproc_peers_refused", "extproc_errors", "extproc_build", "process_")
"""Of what every `serve` counts, that which happens in the parent."""


class OwnMetrics:
    """The page of the parent alone."""

    def __init__(
        self,
        metrics: Metrics,
        workers: int,
        listening: Callable[[], Collection[int]],
        hung: Callable[[], Collection[int]],
        restarts: Callable[[], int],
        streams: Callable[[], int],
    ) -> None:
        self._metrics = metrics
        self._registry = CollectorRegistry()
        self._registry.register(_Workers(workers, listening, hung, restarts, streams))

    def page(self) -> bytes:
        """Text format 0.0.4."""
        return exposition.only(self._metrics.page([]), _SHARED) + generate_latest(self._registry)


class _Workers(Collector):
    def __init__(
        self,
        workers: int,
        listening: Callable[[], Collection[int]],
        hung: Callable[[], Collection[int]],
        restarts: Callable[[], int],
        streams: Callable[[], int],
    ) -> None:
        self._workers = workers
        self._listening = listening
        self._hung = hung
        self._restarts = restarts
        self._streams = streams

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        states = GaugeMetricFamily(
            "extproc_workers",
            "Workers by state: listening, hung (it does not answer), or away (starting, or about to).",
            labels=["state"],
        )
        listening, hung = len(self._listening()), len(self._hung())
        states.add_metric(["listening"], listening - hung)
        states.add_metric(["hung"], hung)
        states.add_metric(["away"], self._workers - listening)
        yield states
        yield CounterMetricFamily(
            "extproc_worker_restarts", "Workers that ended by themselves and were started again.", self._restarts()
        )
        yield GaugeMetricFamily("extproc_agent_relays", "Agents whose streams are passed on.", self._streams())
