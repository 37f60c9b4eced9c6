"""The nodes of the table as they stand when somebody looks, and as gauges."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from extproc.core.balancer import Balancer
from extproc.core.loads import prefill_tokens_ahead
from extproc.core.peerload import NO_PEER_LOAD, PeerLoad
from extproc.core.snapshot import NO_LOAD, Freshness, NodeState, NodeView, OwnLoad


@dataclass(frozen=True, slots=True)
class NodeSample:
    """A node as it stood when the page was asked for."""

    view: NodeView
    freshness: Freshness
    age_s: float | None
    """Of its snapshot; `None`: it is static, no agent has told of it."""
    tokens_ahead: float = 0.0
    """Prompt tokens that it has to compute before it comes to another prompt."""
    out_s: float | None = None
    """For how long still no request goes there, because it failed some; 0 or less: it is on trial. `None`: neither."""
    kv_blocks_told: int | None = None
    """Blocks of 16 tokens that it tells it has in its cache; `None`: it does not tell."""
    own: OwnLoad = NO_LOAD
    """What this router has there; in `view.own` is what the others have, too."""
    peers: PeerLoad = NO_PEER_LOAD
    """What the other routers have."""

    @property
    def is_ready(self) -> bool:
        """Whether a fresh snapshot says that it is ready."""
        return self.freshness is Freshness.FRESH and self.view.snapshot.state is NodeState.READY


def samples_of(balancer: Balancer, now_s: float) -> list[NodeSample]:
    """Every node as it stands now."""
    out_until_s = balancer.out_until_s

    def sample_of(view: NodeView) -> NodeSample:
        until_s = out_until_s.get(view.snapshot.node_id)
        out_s = None if until_s is None else until_s - now_s
        ahead = prefill_tokens_ahead(view, now_s)
        age_s = None if view.is_static else now_s - view.sampled_at_s
        node_id = view.snapshot.node_id
        told, own, peers = balancer.kv_blocks_told(node_id), balancer.own_load(node_id), balancer.peer_load(node_id)
        return NodeSample(view, balancer.freshness(view, now_s), age_s, ahead, out_s, told, own, peers)

    return [sample_of(view) for view in balancer.views()]


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
            ((one, one.own.sequences_open) for one in nodes),
        )
        yield _gauge(
            "extproc_node_peers_sequences_open",
            "The same of the other routers together, by their latest words.",
            ((one, one.peers.sequences_open) for one in nodes),
        )
        yield _gauge(
            "extproc_node_in_flight",
            "Answers that the node works on or has queued, whoever asked: its snapshot, brought up to date by what "
            "this router and its peers sent and saw end since.",
            ((one, one.view.in_flight) for one in nodes),
        )
        yield _gauge(
            "extproc_node_prefill_tokens_ahead",
            "Prompt tokens to be computed there before the first token of a new request.",
            ((one, one.tokens_ahead) for one in nodes),
        )
        yield _gauge(
            "extproc_node_prefill_tokens_per_second",
            "The node's learned rate.",
            ((one, one.view.learned.prefill_tokens_per_s) for one in nodes),
        )
        yield _gauge(
            "extproc_node_cache_trust_ratio",
            "Share of the expected prefix hits that the node's own counters are taken to confirm, 0 to 1.",
            ((one, one.view.learned.cache_trust) for one in nodes),
        )
        yield _gauge(
            "extproc_node_kv_blocks_told",
            "Blocks of 16 tokens that the node's engine tells it has in its prefix cache; no series: it does not tell.",
            ((one, one.kv_blocks_told) for one in nodes),
        )
        absent = GaugeMetricFamily(
            "extproc_node_signal_absent",
            "1: the node's engine should tell this signal, a field of /nodes, and its agent says that it is missing or "
            "cannot be true. /nodes says why.",
            labels=["node", "signal"],
        )
        for one in nodes:
            for signal, _ in one.view.snapshot.absent:
                absent.add_metric([one.view.snapshot.node_id, signal], 1)
        yield absent
        yield _gauge(
            "extproc_node_out",
            "1: the node failed requests and is left out, or tried with one request at a time; 0: it is not.",
            ((one, float(one.out_s is not None)) for one in nodes),
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
