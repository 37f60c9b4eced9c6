"""What operators can watch: every metric's name and meaning, here only.

Labels have few values: outcomes, codes and verdicts are closed sets, tokenizers are those of the configuration, and
node ids are bounded by `nodes_max` because a node's series go when the table forgets it. Model names of requests are
no label: clients choose them.
"""

import enum
from collections.abc import Callable, Collection, Iterable
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

from extproc.core.decision import Chosen, Decision, Outcome, Refused, Unknown
from extproc.core.request import CountSource
from extproc.ops.nodegauges import NodeGauges, NodeSample

# The time a series was made says nothing to an operator and doubles the page.
disable_created_metrics()  # type: ignore[no-untyped-call]

_DECIDE_BUCKETS_S = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 0.1)
_TOKEN_BUCKETS_S = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
_ERROR_BUCKETS_RATIO = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
# Whole numbers: what is within "0" and not within "-1" is no difference at all.
_DIFFERENCE_BUCKETS_TOKENS = (-10_000, -1000, -100, -10, -1, 0, 1, 10, 100, 1000, 10_000)
_PROMPT_BUCKETS_TOKENS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
_OUTPUT_BUCKETS_TOKENS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)

_ANSWER_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

_STATUSES = ("1xx", "2xx", "3xx", "4xx", "5xx")
_TOKENIZER_LABELS = ("tokenizer", "engine", "reason", "renderer", "models")
_LABEL_CHARS_MAX = 200


class Estimated(enum.Enum):
    """Why a prompt's text was not counted by a tokenizer."""

    NO_TOKENIZER = "no_tokenizer"
    BUSY = "busy"
    FAILED = "failed"
    TEMPLATE = "template"
    LATE = "late"
    TOO_LONG = "too_long"


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
        self._uncached_tokens = Counter(
            "extproc_uncached_prompt_tokens_total",
            "Prompt tokens of chosen requests that their node was expected to compute, not to have in its cache.",
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
        counts = Counter(
            "extproc_token_counts_total",
            "Prompts by how their tokens were found. source: counted (by the tokenizer, or given as token ids), "
            "cached (most of them for earlier requests) or estimated. A late one is estimated first, then counted.",
            ["source"],
            registry=registry,
        )
        self._counts = {source: counts.labels(source.value) for source in CountSource}
        count_s = Histogram(
            "extproc_token_count_seconds",
            "Time to count a prompt, with rendering its chat and waiting for a thread. source: counted or cached.",
            ["source"],
            buckets=_TOKEN_BUCKETS_S,
            registry=registry,
        )
        self._count_s: dict[CountSource, Histogram] = {
            source: count_s.labels(source.value) for source in CountSource if source is not CountSource.ESTIMATED
        }
        estimates = Counter(
            "extproc_token_estimates_total",
            "Prompts whose text was estimated by its size. reason: no_tokenizer (none is configured for the model), "
            "busy (too much text was waiting), template (it failed, or ran over its fuel), too_long (to be rendered or "
            "encoded at all), late (not counted within token_budget_ms) or failed (the text cannot be encoded).",
            ["reason"],
            registry=registry,
        )
        self._estimates = {reason: estimates.labels(reason.value) for reason in Estimated}
        self._estimate_error = Histogram(
            "extproc_token_estimate_error_ratio",
            "How wrong the estimate of a counted prompt would have been, by the count; for some of the counts.",
            buckets=_ERROR_BUCKETS_RATIO,
            registry=registry,
        )
        differences = Histogram(
            "extproc_token_usage_difference_tokens",
            "usage.prompt_tokens of an engine's answer less our count. The engine counted the same where it is within "
            'le="0" and not within le="-1". exact: whether our count was meant to be the engine\'s.',
            ["exact"],
            buckets=_DIFFERENCE_BUCKETS_TOKENS,
            registry=registry,
        )
        self._differences = {exact: differences.labels(str(exact).lower()) for exact in (True, False)}
        self._tokenizers = Gauge(
            "extproc_tokenizer_info",
            "1 for each tokenizer: the library that counts (engine) and why that one, how its models' chats are "
            "rendered, and the models that it is configured for.",
            _TOKENIZER_LABELS,
            registry=registry,
        )
        self._waiting_bytes = Gauge(
            "extproc_token_waiting_bytes",
            "Text being encoded in threads or waiting for one, as it weighs in waiting_bytes_max.",
            registry=registry,
        )
        self._cache_bytes = Gauge(
            "extproc_token_cache_bytes", "Memory held by counts of chats' earlier messages.", registry=registry
        )
        answers = Counter(
            "extproc_answers_total",
            "Answers to inference requests, by the class of their status; none: the client got no status.",
            ["status"],
            registry=registry,
        )
        self._answers = {status: answers.labels(status) for status in (*_STATUSES, "none")}
        self._answer_s = Histogram(
            "extproc_answer_seconds",
            "From a request's first byte to its answer's last, where Envoy told it.",
            buckets=_ANSWER_BUCKETS_S,
            registry=registry,
        )
        self._first_byte_s = Histogram(
            "extproc_answer_first_byte_seconds",
            "From a request's first byte to the first of its answer, which engines may send before the first token.",
            buckets=_ANSWER_BUCKETS_S,
            registry=registry,
        )
        self._output_tokens = Histogram(
            "extproc_answer_output_tokens",
            "Tokens of answers, where the engine told their number.",
            buckets=_OUTPUT_BUCKETS_TOKENS,
            registry=registry,
        )
        entries = Counter(
            "extproc_access_log_entries_total",
            "Envoy's reports of finished requests. verdict: read, or ignored (of no inference request of ours).",
            ["verdict"],
            registry=registry,
        )
        self._entry_read, self._entry_ignored = entries.labels("read"), entries.labels("ignored")
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
        if decision.uncached_tokens is not None:
            self._uncached_tokens.inc(decision.uncached_tokens)
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

    def watch_tokens(self, waiting_bytes: Callable[[], int], cache_bytes: Callable[[], int]) -> None:
        """Where to look, for each page, how much text waits to be encoded and how much memory known counts take."""
        self._waiting_bytes.set_function(waiting_bytes)
        self._cache_bytes.set_function(cache_bytes)

    def tokenizer_loaded(self, tokenizer: str, engine: str, reason: str, renderer: str, models: Iterable[str]) -> None:
        """A tokenizer is ready. Names are cut to 200 characters, and those of all models to as many together."""
        values = (tokenizer, engine, reason, renderer, ", ".join(models))
        self._tokenizers.labels(*(value[:_LABEL_CHARS_MAX] for value in values)).set(1)

    def counted(self, source: CountSource, seconds: float) -> None:
        """A prompt was counted, in this time: `source` is not `ESTIMATED`."""
        self._counts[source].inc()
        self._count_s[source].observe(seconds)

    def tokens_estimated(self, reason: Estimated) -> None:
        """A prompt's text was estimated by its size."""
        self._counts[CountSource.ESTIMATED].inc()
        self._estimates[reason].inc()

    def estimate_error(self, ratio: float) -> None:
        """A prompt was counted whose estimate would have been wrong by this share of the count."""
        self._estimate_error.observe(ratio)

    def usage_difference(self, tokens: int, exact: bool) -> None:
        """An engine counted so many prompt tokens more than we did; `exact`: our count was to be the engine's."""
        self._differences[exact].observe(tokens)

    def answered(
        self, status: int, output_tokens: int | None, first_byte_s: float | None, duration_s: float | None
    ) -> None:
        """Envoy reported a finished inference request. Status 0, or none that HTTP has: no answer was begun."""
        if first_byte_s is not None:
            self._first_byte_s.observe(first_byte_s)
        if duration_s is not None:
            self._answer_s.observe(duration_s)
        self._entry_read.inc()
        self._answers[_STATUSES[status // 100 - 1] if 100 <= status < 600 else "none"].inc()
        if output_tokens is not None:
            self._output_tokens.observe(output_tokens)

    def access_log_ignored(self, entries: int) -> None:
        """Envoy reported so many requests that tell us nothing: not ours, not over yet, or too many at once."""
        self._entry_ignored.inc(entries)

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
        return generate_latest(self._registry) + generate_latest(NodeGauges(nodes))


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
