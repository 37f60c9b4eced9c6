"""What is counted of requests as they come: who was chosen for them, what we answered ourselves, what they hold."""

from collections.abc import Callable, Collection
from typing import assert_never

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from extproc.core.decision import Chosen, Decision, Queued, Refused, Unknown

_DECIDE_BUCKETS_S = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 0.1)
POLICIES_COUNTED_MAX = 64
"""Policies that have series of their own; inline ones name themselves."""
_PROMPT_BUCKETS_TOKENS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)


class RequestMetrics:
    """Requests until they are decided, and those in flight. May be told from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._decisions = Counter(
            "extproc_decisions_total",
            "Routing decisions. outcome: chosen, fallback (round robin: no fresh snapshot could be trusted), control "
            "(round robin: the control arm of a canary), unknown (no node known, or just started: Envoy's own cluster "
            "serves), uninspected (no inference: always round robin), or a refusal's code. What waits for room is "
            "counted when it is decided. phase: which work dominates; none for what was not inspected.",
            ["outcome", "phase"],
            registry=registry,
        )
        self._arms = Counter(
            "extproc_decisions_by_arm_total",
            "Decisions about inference requests by policy and arm of its canary: strategy, control (the round robin's "
            "share), or observed (Envoy was told nothing). "
            f"Policies after the first {POLICIES_COUNTED_MAX} are `other`.",
            ["policy", "arm", "outcome"],
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
            "extproc_body_bytes_held",
            "Request bodies held now, over all requests, and large ones that were announced and are on their way.",
            registry=registry,
        )
        # `labels` costs more than counting: what is counted for each request keeps its children.
        self._decided: dict[tuple[str, str], Counter] = {}
        self._policies: set[str] = set()
        self._by_arm: dict[tuple[str, str, str], Counter] = {}
        self._routed_to: dict[str, Counter] = {}

    def watch(self, streams_open: Callable[[], int], body_bytes: Callable[[], int]) -> None:
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
        key = ("uninspected" if decision.model is None else _outcome(decision), phase)
        counter = self._decided.get(key)
        if counter is None:
            counter = self._decided[key] = self._decisions.labels(*key)
        counter.inc()
        if decision.arm:
            self._count_arm(decision)
        if isinstance(decision.outcome, Chosen):
            node_id = decision.outcome.node_id
            routed = self._routed_to.get(node_id)
            if routed is None:
                routed = self._routed_to[node_id] = self._routed.labels(node_id)
            routed.inc()

    def _count_arm(self, decision: Decision) -> None:
        policy = decision.policy
        if policy not in self._policies:
            if len(self._policies) < POLICIES_COUNTED_MAX:
                self._policies.add(policy)
            else:
                policy = "other"
        key = (policy, decision.arm, _outcome(decision))
        counter = self._by_arm.get(key)
        if counter is None:
            counter = self._by_arm[key] = self._arms.labels(*key)
        counter.inc()

    def responded(self, code: str) -> None:
        """We answered a request ourselves, with an error of this code."""
        self._responses.labels(code).inc()

    def policy_fault(self) -> None:
        """A route's policy could not be used."""
        self._policy_faults.inc()

    def keep_nodes(self, node_ids: Collection[str]) -> None:
        """Drop the series of every node but these: called when the table forgets nodes."""
        for gone in self._routed_to.keys() - set(node_ids):
            self._routed.remove(gone)
            del self._routed_to[gone]


def _outcome(decision: Decision) -> str:
    match decision.outcome:
        case Chosen(fallback=fallback):
            # A canary's control arm is meant to go by turns: who watches `fallback` need not hear of it.
            return "control" if fallback and decision.arm == "control" else "fallback" if fallback else "chosen"
        case Refused(refusal=refusal):
            return refusal.value
        case Unknown():
            return "unknown"
        case Queued():
            return "queued"
        case _:
            assert_never(decision.outcome)
