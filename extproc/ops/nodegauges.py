"""The nodes of the table as they stand when somebody looks, and as gauges."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from extproc.core.balancer import Balancer
from extproc.core.snapshot import Freshness, NodeState, NodeView


@dataclass(frozen=True, slots=True)
class NodeSample:
    """A node as it stood when the page was asked for."""

    view: NodeView
    freshness: Freshness
    age_s: float

    @property
    def is_ready(self) -> bool:
        """Whether a fresh snapshot says that it is ready."""
        return self.freshness is Freshness.FRESH and self.view.snapshot.state is NodeState.READY


def samples_of(balancer: Balancer, now_s: float) -> list[NodeSample]:
    """Every node as it stands now."""
    return [NodeSample(view, balancer.freshness(view, now_s), now_s - view.sampled_at_s) for view in balancer.views()]


class NodeGauges(Collector):
    """The table as gauges, made anew for each page: so no series outlives its node."""

    def __init__(self, nodes: Collection[NodeSample]) -> None:
        self._nodes = nodes

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        nodes = self._nodes
        states = GaugeMetricFamily(
            "extproc_nodes",
            "Nodes in the table, by what their agent says of them and how fresh that is.",
            labels=["state", "freshness"],
        )
        counts: dict[tuple[str, str], int] = {}
        for one in nodes:
            key = (one.view.snapshot.state.value, one.freshness.value)
            counts[key] = counts.get(key, 0) + 1
        for key, count in sorted(counts.items()):
            states.add_metric(key, count)
        yield states
        yield _gauge(
            "extproc_node_kv_usage_ratio",
            "Share of the node's KV cache in use, 0 to 1.",
            ((one, one.view.snapshot.kv_usage) for one in nodes),
        )
        yield _gauge(
            "extproc_node_requests_waiting",
            "Requests in the engine's own queue.",
            ((one, one.view.snapshot.requests_waiting) for one in nodes),
        )
        yield _gauge(
            "extproc_node_sequences_open",
            "Answers asked of the node by this router and not finished; a request for n answers counts n.",
            ((one, one.view.own.sequences_open) for one in nodes),
        )
        yield _gauge(
            "extproc_node_snapshot_age_seconds",
            "Time since the node's latest sample was taken.",
            ((one, one.age_s) for one in nodes),
        )
        yield _gauge(
            "extproc_node_fresh",
            "1: decisions rest on the node's snapshot; 0: it is too old and the node is served by the fallback.",
            ((one, float(one.freshness is Freshness.FRESH)) for one in nodes),
        )


def _gauge(name: str, text: str, values: Iterable[tuple[NodeSample, float | None]]) -> Metric:
    """One gauge by node. A value that is not known has no series: 0 would be a claim."""
    family = GaugeMetricFamily(name, text, labels=["node"])
    for sample, value in values:
        if value is not None:
            family.add_metric([sample.view.snapshot.node_id], value)
    return family
