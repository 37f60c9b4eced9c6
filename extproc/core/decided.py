"""From a verdict to the decision that is told: whose turn it is where the router fell back, and what it rested on."""

from collections.abc import Callable, Sequence

from extproc.core.decision import Chosen, Decision, Outcome, Refused, Unknown
from extproc.core.policy import RoutingPolicy
from extproc.core.ranking import others_by_chance
from extproc.core.request import InferenceRequest
from extproc.core.router import FallBack, Verdict
from extproc.core.snapshot import NodeView

FALLBACK = "fallback"
"""Stands as the strategy of decisions that the round robin made."""


Turn = Callable[[Sequence[NodeView]], NodeView]
"""Whose turn it is among members: a round robin's `pick`, or its `peek`, which takes no turn."""


def serve(outcome: Chosen | Refused | Unknown | FallBack, whose_turn: Turn, request_id: str) -> Outcome:
    """Turn a fallback into the node whose turn it is, with others for the same request."""
    return _by_turn(outcome, whose_turn(outcome.members), request_id) if isinstance(outcome, FallBack) else outcome


def decision_of(
    request: InferenceRequest,
    policy: RoutingPolicy,
    verdict: Verdict,
    outcome: Outcome,
    now_s: float,
    priority: str,
    queued_s: float = 0.0,
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
        priority=priority,
        queued_s=queued_s,
        arm=policy.arm_of(request.request_id),
    )


def uninspected(request_id: str, trace_id: str, policy: str, outcome: Outcome, now_s: float) -> Decision:
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
        policy=policy,
        strategy=FALLBACK,
        outcome=outcome,
        candidates=(),
    )


def _by_turn(fallback: FallBack, served: NodeView, request_id: str) -> Chosen:
    members = fallback.members
    others: tuple[str, ...] = ()
    if fallback.others_max:
        others = others_by_chance(request_id, members, served, fallback.others_max)
    reason = f"round robin of {len(members)}"
    return Chosen(served.snapshot.node_id, served.snapshot.host, reason, fallback=True, others=others)
