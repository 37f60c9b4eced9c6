"""What operators can watch: every metric's name and meaning, here only.

Labels have few values: outcomes, codes and verdicts are closed sets, and node ids are bounded by `nodes_max`
because a node's series go when the table forgets it. Model names are no label: clients choose them.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import assert_never

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from extproc.core.balancer import Balancer
from extproc.core.decision import Chosen, Decision, Outcome, Refused, Unknown
from extproc.core.snapshot import Freshness, NodeState, NodeView

# The time a series was made says nothing to an operator and doubles the page.
disable_created_metrics()  # type: ignore[no-untyped-call]

_DECIDE_BUCKETS_S = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 0.1)
_TOKEN_BUCKETS_S = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
_PROMPT_BUCKETS_TOKENS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)


class Estimated(enum.Enum):
    """Why a prompt's text was not counted by a tokenizer."""

    NO_TOKENIZER = "no_tokenizer"
    BUSY = "busy"
    FAILED = "failed"


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


class Metrics:
    """The counters of one `serve`. Methods are named for what happened and may be called from any thread."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        Info("extproc_build", "Which extproc this is.", registry=registry).info({"version": version("extproc")})
        self._decisions = Counter(
            "extproc_decisions_total",
            "Routing decisions. outcome: chosen, fallback (round robin: no fresh snapshot could be trusted), unknown "
            "(Envoy's static cluster serves), uninspected (no inference: always round robin), or a refusal's code. "
            "phase: which work dominates; none for what was not inspected.",
            ["outcome", "phase"],
            registry=registry,
        )
        self._routed = Counter(
            "extproc_node_requests_total",
            "Requests sent to a node, by choice or by fallback. A node's count goes when the node is forgotten.",
            ["node"],
            registry=registry,
        )
        self._decide_s = Histogram(
            "extproc_decide_seconds",
            "Time to choose a node, without reading the body and counting tokens.",
            buckets=_DECIDE_BUCKETS_S,
            registry=registry,
        )
        self._prompt_tokens = Histogram(
            "extproc_prompt_tokens",
            "Prompt tokens of inference requests, counted or estimated.",
            buckets=_PROMPT_BUCKETS_TOKENS,
            registry=registry,
        )
        self._responses = Counter(
            "extproc_responses_total",
            "Requests that were answered here instead of by a node, by the code of the error body.",
            ["code"],
            registry=registry,
        )
        self._policy_faults = Counter(
            "extproc_policy_faults_total",
            "Requests whose route names a policy that is unknown or wrong; the default policy served them.",
            registry=registry,
        )
        self._streams = Gauge(
            "extproc_streams_open",
            "Requests in flight: Envoy holds one stream for each until its answer is complete.",
            registry=registry,
        )
        self._body_bytes = Gauge(
            "extproc_body_bytes_held", "Request bodies held now, over all requests.", registry=registry
        )
        self._snapshots = Counter(
            "extproc_snapshots_total",
            "Messages of agents. verdict: applied, ignored (old or repeated) or refused (wrong; the log says why).",
            ["verdict"],
            registry=registry,
        )
        self._token_s = Histogram(
            "extproc_token_count_seconds",
            "Time of a tokenizer to count a prompt, waiting for a thread included. exact: whether the node counts "
            "the same.",
            ["exact"],
            buckets=_TOKEN_BUCKETS_S,
            registry=registry,
        )
        self._estimates = Counter(
            "extproc_token_estimates_total",
            "Prompts whose text was estimated by its size. reason: no_tokenizer (none is configured for the model), "
            "busy (too much text was waiting) or failed (the text cannot be encoded).",
            ["reason"],
            registry=registry,
        )
        self._estimated = {reason: self._estimates.labels(reason.value) for reason in Estimated}
        self._errors = Counter(
            "extproc_errors_total",
            "Faults of extproc itself, by place: each is a bug worth reporting; the request went on by the fallback.",
            ["where"],
            registry=registry,
        )
        # `labels` costs more than counting: what is counted for each request keeps its children.
        self._decided: dict[tuple[str, str], Counter] = {}
        self._routed_to: dict[str, Counter] = {}

    def watch_gateway(self, streams_open: Callable[[], int], body_bytes: Callable[[], int]) -> None:
        """Where to look, for each page, how many requests are in flight and how many bytes their bodies hold."""
        self._streams.set_function(streams_open)
        self._body_bytes.set_function(body_bytes)

    def decided(self, decision: Decision, seconds: float) -> None:
        """The balancer answered, after this long."""
        self._decide_s.observe(seconds)
        if decision.prompt_tokens is not None:
            self._prompt_tokens.observe(decision.prompt_tokens)
        phase = "none" if decision.phase is None else decision.phase.value
        key = ("uninspected" if decision.model is None else _outcome(decision.outcome), phase)
        counter = self._decided.get(key)
        if counter is None:
            counter = self._decided[key] = self._decisions.labels(*key)
        counter.inc()
        if isinstance(decision.outcome, Chosen):
            node_id = decision.outcome.node_id
            routed = self._routed_to.get(node_id)
            if routed is None:
                routed = self._routed_to[node_id] = self._routed.labels(node_id)
            routed.inc()

    def responded(self, code: str) -> None:
        """We answered a request ourselves, with an error of this code."""
        self._responses.labels(code).inc()

    def policy_fault(self) -> None:
        """A route's policy could not be used."""
        self._policy_faults.inc()

    def snapshot(self, verdict: str) -> None:
        """An agent's message was applied, ignored or refused."""
        self._snapshots.labels(verdict).inc()

    def tokens(self, seconds: float, exact: bool) -> None:
        """A tokenizer counted a prompt, in this time."""
        self._token_s.labels("true" if exact else "false").observe(seconds)

    def tokens_estimated(self, reason: Estimated) -> None:
        """A prompt's text was estimated by its size."""
        self._estimated[reason].inc()

    def our_error(self, where: str) -> None:
        """Something of ours failed. `where` is a fixed name in our code, never input."""
        self._errors.labels(where).inc()

    def keep_nodes(self, node_ids: Collection[str]) -> None:
        """Drop the series of every node but these: called when the table forgets nodes."""
        for gone in self._routed_to.keys() - set(node_ids):
            self._routed.remove(gone)
            del self._routed_to[gone]

    def page(self, nodes: Collection[NodeSample]) -> bytes:
        """The page that Prometheus scrapes (text format 0.0.4), with the nodes' gauges."""
        return generate_latest(self._registry) + generate_latest(_Nodes(nodes))


def _outcome(outcome: Outcome) -> str:
    match outcome:
        case Chosen(fallback=fallback):
            return "fallback" if fallback else "chosen"
        case Refused(refusal=refusal):
            return refusal.value
        case Unknown():
            return "unknown"
        case _:
            assert_never(outcome)


class _Nodes(Collector):
    """The table as gauges, made anew for each page: so no series outlives its node."""

    def __init__(self, nodes: Collection[NodeSample]) -> None:
        self._nodes = nodes

    def collect(self) -> Iterator[Metric]:
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
