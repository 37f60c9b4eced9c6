"""The choice itself: a pure function of the request, the nodes, the policy and the time."""

import hashlib
from collections.abc import Collection, Container, Iterator, Sequence

from msgspec import Struct

from extproc.core.cost import STRATEGIES
from extproc.core.decision import Candidate, Chosen, Refusal, Refused, Unknown
from extproc.core.filters import (
    context_length_tokens,
    long_enough,
    perhaps_ready,
    ready,
    serving,
    tokens_at_least,
    why_full,
)
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest, Phase
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeView


class FallBack(Struct, frozen=True):
    """No fresh snapshot can be trusted: it is the round robin's turn among these members."""

    members: Sequence[NodeView]


class Verdict(Struct, frozen=True):
    """What `decide` found, and how the nodes fared."""

    outcome: Chosen | Refused | Unknown | FallBack
    candidates: tuple[Candidate, ...] = ()
    """The best few, best first."""


def decide(
    request: InferenceRequest,
    phase: Phase,
    nodes: Collection[NodeView],
    policy: RoutingPolicy,
    settings: BalancerSettings,
    now_s: float,
    models_left: Container[str] = (),
) -> Verdict:
    """Choose a node for a request; raises for no input, and the order of `nodes` never matters.

    Filters come first, from the most lasting to the most fleeting reason: model, context length, readiness,
    room. Full is not stale: where fresh nodes are ready and all of them full, the request is refused; the
    fallback is for nodes of which nothing fresh is known. `models_left` are those whose last node left a
    while ago at most: only its agent may have gone, so they are not called unknown.
    """
    if not nodes:
        return Verdict(Unknown("no node has reported yet"))
    able = serving(nodes, request.model)
    if not able and request.model in models_left:
        return Verdict(_model_left(request.model, settings))
    if not able:
        return Verdict(_model_not_found(request.model))
    long = long_enough(able, request)
    if not long:
        return Verdict(_context_length_exceeded(request, able))
    eligible = ready(long, now_s, settings.nodes)
    if eligible:
        return _choose(request, phase, eligible, policy, settings)
    return Verdict(fall_back(long, settings, now_s))


def fall_back(nodes: Collection[NodeView], settings: BalancerSettings, now_s: float) -> FallBack | Refused:
    """Where to go when no fresh snapshot says ready."""
    members = perhaps_ready(nodes, now_s, settings.nodes)
    if members:
        return FallBack(members)
    return Refused(
        Refusal.NO_READY_NODE,
        f"No node is ready: {len(nodes)} known, all loading or draining. Retry later.",
        settings.retry_after_s,
    )


def _choose(
    request: InferenceRequest,
    phase: Phase,
    eligible: Sequence[NodeView],
    policy: RoutingPolicy,
    settings: BalancerSettings,
) -> Verdict:
    """Walk the nodes in the order of their costs and take the first with room."""
    costs = STRATEGIES[policy.strategy](phase, eligible, policy.weights)
    kept_max = settings.candidates_kept_max
    candidates: list[Candidate] = []
    outcome: Chosen | None = None
    for cost, node in _by_cost(request.request_id, eligible, costs):
        snapshot = node.snapshot
        if outcome is not None:
            if len(candidates) >= kept_max:
                break
            candidates.append(Candidate(snapshot.node_id, cost))
            continue
        full = why_full(node, request, policy.limits)
        if full is None:
            with_room = " with room" if candidates else ""
            reason = f"{policy.strategy} {cost:.1f}, best of {len(eligible)}{with_room}"
            outcome = Chosen(snapshot.node_id, snapshot.host, reason)
            del candidates[kept_max - 1 :]
        if len(candidates) < kept_max:
            candidates.append(Candidate(snapshot.node_id, cost, full))
    if outcome is None:
        message = f"Every ready node for the model `{request.model}` is full ({len(eligible)} of them). Retry later."
        return Verdict(Refused(Refusal.OVERLOADED, message, settings.retry_after_s), tuple(candidates))
    return Verdict(outcome, tuple(candidates))


def _by_cost(request_id: str, eligible: Sequence[NodeView], costs: Sequence[float]) -> Iterator[tuple[float, NodeView]]:
    """Nodes by cost. Tied ones stand by node id, turned by a hash of the request: so ties spread evenly."""
    order = sorted(range(len(costs)), key=costs.__getitem__)
    start = 0
    while start < len(order):
        cost = costs[order[start]]
        end = start + 1
        while end < len(order) and costs[order[end]] == cost:
            end += 1
        if end - start == 1:
            yield cost, eligible[order[start]]
        else:
            tied = sorted((eligible[index] for index in order[start:end]), key=lambda node: node.snapshot.node_id)
            first = _chance(request_id, len(tied))
            for node in tied[first:] + tied[:first]:
                yield cost, node
        start = end


def _chance(request_id: str, sides: int) -> int:
    """An even die of so many sides, thrown by the request's id: the same request always throws the same."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % sides


def _model_not_found(model: str) -> Refused:
    return Refused(Refusal.MODEL_NOT_FOUND, f"The model `{model}` does not exist: no node serves it.")


def _model_left(model: str, settings: BalancerSettings) -> Refused:
    message = f"Every node that served the model `{model}` has left. Retry later."
    return Refused(Refusal.NO_READY_NODE, message, settings.retry_after_s)


def _context_length_exceeded(request: InferenceRequest, able: Sequence[NodeView]) -> Refused:
    lengths = [context_length_tokens(node, request.model) for node in able]
    longest = max(length for length in lengths if length is not None)
    return Refused(
        Refusal.CONTEXT_LENGTH_EXCEEDED,
        f"The model `{request.model}` takes at most {longest} tokens, prompt and output together; "
        f"this request wants {tokens_at_least(request)}.",
    )
