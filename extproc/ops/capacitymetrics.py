"""The forecast as gauges, one series for each model that is served or was asked for lately.

Their models are bounded by `forecast.models_max`, and are names that agents tell, not clients: what no node serves is
never forecast.
"""

from collections.abc import Callable, Collection, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from extproc.core.forecast import ModelForecast

_GAUGES: tuple[tuple[str, str, Callable[[ModelForecast], float | None]], ...] = (
    (
        "extproc_nodes_needed",
        "Nodes that should serve the model when a new one could be ready. Models of the same nodes need the same ones.",
        lambda one: one.nodes_needed,
    ),
    (
        "extproc_model_saturation",
        "Nodes that the model's load needs now / its ready nodes; over 1 the objective is missed, +Inf: none is ready.",
        lambda one: one.saturation,
    ),
    (
        "extproc_model_saturated_in_seconds",
        "Time until the ready nodes are too few, 0 if they are. No series where that is not foreseen within an hour.",
        lambda one: one.saturated_in_s,
    ),
    (
        "extproc_nodes_ready",
        "Nodes that serve the model and are ready, by reports that still count.",
        lambda one: one.nodes_ready,
    ),
    (
        "extproc_nodes_coming",
        "Nodes that are loading and will serve the model; no capacity yet.",
        lambda one: one.nodes_coming,
    ),
    (
        "extproc_cold_start_seconds",
        "How long a new node is expected to be loading before it is ready.",
        lambda one: one.cold_start_s,
    ),
)


class CapacityGauges(Collector):
    """One reading of the forecast, made anew for each page: so no series outlives its model."""

    def __init__(self, forecasts: Collection[ModelForecast]) -> None:
        self._forecasts = forecasts

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client. A value that is not known has no series."""
        for name, text, read in _GAUGES:
            family = GaugeMetricFamily(name, text, labels=["model"])
            for one in self._forecasts:
                value = read(one)
                if value is not None:
                    family.add_metric([one.model], value)
            yield family
