"""What operators can watch: the metrics of one `serve`, and the page that has them.

Every metric's name and meaning stands here, in `requestmetrics`, `queuemetrics`, `answermetrics`, `tokenmetrics`,
`exchangemetrics`, `capacitymetrics` or `nodegauges` only.

Labels have few values: outcomes, codes and verdicts are closed sets, tokenizers are those of the configuration, and
node ids are bounded by `nodes_max` because a node's series go when the table forgets it. Model names of requests are
no label: clients choose them; but those that nodes serve are, of the forecast.
"""

from collections.abc import Collection
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from extproc.core.forecast import ModelForecast
from extproc.ops.answermetrics import AnswerMetrics
from extproc.ops.capacitymetrics import CapacityGauges
from extproc.ops.exchangemetrics import ExchangeMetrics
from extproc.ops.nodegauges import NodeGauges, NodeSample
from extproc.ops.queuemetrics import QueueMetrics
from extproc.ops.requestmetrics import RequestMetrics
from extproc.ops.tokenmetrics import TokenMetrics

# The time a series was made says nothing to an operator and doubles the page.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """All counters of one `serve`, by concern. Methods are named for what happened; any thread may call them."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Info("extproc_build", "Which extproc this is.", registry=registry).info({"version": version("extproc")})
        self.requests = RequestMetrics(registry)
        """Told by the gateway."""
        self.queue = QueueMetrics(registry)
        """The same."""
        self.answers = AnswerMetrics(registry)
        """Told by the access log."""
        self.tokens = TokenMetrics(registry)
        """Told by the counter."""
        self.exchange = ExchangeMetrics(registry)
        """Told by the exchange with other routers."""
        self._snapshots = Counter(
            "extproc_snapshots_total",
            "Messages of agents. verdict: applied, ignored (old or repeated) or refused (wrong; the log says why).",
            ["verdict"],
            registry=registry,
        )
        self._snapshots_by = {verdict: self._snapshots.labels(verdict) for verdict in ("applied", "ignored", "refused")}
        self._peers_refused = Counter(
            "extproc_peers_refused_total",
            "RPCs refused for who called, by port. reason: name (of the client's certificate) or token. "
            "Clients that TLS itself turns away are not counted.",
            ["port", "reason"],
            registry=registry,
        )
        self._errors = Counter(
            "extproc_errors_total",
            "Faults of extproc itself, by place: each is a bug worth reporting; the request went on by the fallback.",
            ["where"],
            registry=registry,
        )

    def snapshot(self, verdict: str) -> None:
        """An agent's message was applied, ignored or refused."""
        self._snapshots_by[verdict].inc()

    def peer_refused(self, port: str, reason: str) -> None:
        """An RPC was refused because of who called. Both are fixed names in our code, never input."""
        self._peers_refused.labels(port, reason).inc()

    def our_error(self, where: str) -> None:
        """Something of ours failed. `where` is a fixed name in our code, never input."""
        self._errors.labels(where).inc()

    def page(self, nodes: Collection[NodeSample], forecasts: Collection[ModelForecast] = ()) -> bytes:
        """The page that Prometheus scrapes (text format 0.0.4), with the gauges of nodes and of models."""
        own = generate_latest(self._registry)
        return own + generate_latest(NodeGauges(nodes)) + generate_latest(CapacityGauges(forecasts))
