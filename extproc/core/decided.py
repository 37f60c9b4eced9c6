"""From a verdict to the decision that is told: whose turn it is where the router fell back, and what it rested on."""

from collections.abc import Collection

from extproc.core.decision import Chosen, Decision, Outcome, Refused, Unknown
from extproc.core.fallback import SmoothWeightedRoundRobin
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.router import FallBack, Verdict
from extproc.core.snapshot import NodeView

FALLBACK = "fallback"
"""Stands as the strategy of decisions that the round robin made."""


def serve(outcome: Chosen | Refused | Unknown | FallBack, round_robin: SmoothWeightedRoundRobin) -> Outcome:
    """Turn a fallback into the node whose turn it is."""
    return _by_turn(outcome.members, round_robin.pick(outcome.members)) if isinstance(outcome, FallBack) else outcome


def would_serve(outcome: Chosen | Refused | Unknown | FallBack, round_robin: SmoothWeightedRoundRobin) -> Outcome:
    """What `serve` would answer; no turn is taken."""
    return _by_turn(outcome.members, round_robin.peek(outcome.members)) if isinstance(outcome, FallBack) else outcome


def decision_of(
    request: InferenceRequest, policy: RoutingPolicy, verdict: Verdict, outcome: Outcome, now_s: float
) -> Decision:
    """The decision about an inference request."""
    fell_back = isinstance(outcome, Chosen) and outcome.fallback
    return Decision(
        request_id=request.request_id,
        trace_id=request.trace_id,
        at_s=now_s,
        model=request.model,
        prompt_tokens=request.prompt.tokens,
        tokens_exact=request.prompt.exact,
        tokens_source=request.prompt.source,
        phase=verdict.phase,
        uncached_tokens=verdict.uncached_tokens,
        policy=policy.name,
        strategy=FALLBACK if fell_back else policy.strategy,
        outcome=outcome,
        candidates=verdict.candidates,
    )


def uninspected(request_id: str, trace_id: str, outcome: Outcome, now_s: float) -> Decision:
    """The decision about what is no inference request."""
    return Decision(
        request_id=request_id,
        trace_id=trace_id,
        at_s=now_s,
        model=None,
        prompt_tokens=None,
        tokens_exact=False,
        tokens_source=None,
        phase=None,
        uncached_tokens=None,
        policy="",
        strategy=FALLBACK,
        outcome=outcome,
        candidates=(),
    )


def _by_turn(members: Collection[NodeView], served: NodeView) -> Chosen:
    reason = f"round robin of {len(members)}"
    return Chosen(served.snapshot.node_id, served.snapshot.host, reason, fallback=True)
