"""The choice itself: a pure function of the request, the nodes, the policy and the time."""

import hashlib
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from math import floor

from msgspec import Struct

from extproc.core.cost import STRATEGIES, Prospects
from extproc.core.decision import Candidate, Chosen, Refusal, Refused, Unknown
from extproc.core.filters import (
    TOO_FEW_BLOCKS,
    context_length_tokens,
    long_enough,
    not_out,
    perhaps_ready,
    ready,
    serving,
    tokens_at_least,
    why_full,
)
from extproc.core.loads import prefill_tokens_ahead
from extproc.core.phase import classify, expected_output_tokens
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest, Phase
from extproc.core.settings import BalancerSettings, NodeLimits
from extproc.core.snapshot import NodeView

SLOW_START_SHARE_MIN = 0.25
"""Of its rate: what a node that has just become ready counts with."""
SLOW_START_STEPS = 8


class FallBack(Struct, frozen=True):
    """No fresh snapshot can be trusted: it is the round robin's turn among these members."""

    members: Sequence[NodeView]


class Verdict(Struct, frozen=True):
    """What `decide` found, and how the nodes fared."""

    outcome: Chosen | Refused | Unknown | FallBack
    candidates: tuple[Candidate, ...] = ()
    """The best few, best first."""
    phase: Phase = Phase.DECODE
    uncached_tokens: int | None = None
    """Of the chosen node; `None` where costs did not choose."""


class Known(Struct, frozen=True):
    """What a decision rests on beside the request, the nodes and the policy."""

    turn: int = 0
    """How many requests of the same policy for the same model were sent before."""
    models_left: Container[str] = ()
    """Models whose last node left a while ago at most: only its agent may have gone."""
    cached_blocks: Mapping[str, int] = {}
    """How many of the prompt's first blocks each node has in its cache; none where it is not named."""
    out_until_s: Mapping[str, float] = {}
    """Nodes that failed requests, and until when they are left out."""
    output_tokens: float = 256.0
    """Mean length of an answer of the model."""
    prefill_tokens_per_s: float = 8000.0
    """Of the whole fleet, as the next."""
    decode_s_per_token: float = 0.025


def decide(
    request: InferenceRequest,
    nodes: Collection[NodeView],
    policy: RoutingPolicy,
    settings: BalancerSettings,
    known: Known,
    now_s: float,
) -> Verdict:
    """Choose a node for a request; raises for no input, and the order of `nodes` never matters.

    Filters come first, from the most lasting to the most fleeting reason: model, context length, readiness,
    failures, room. Full is not stale: where fresh nodes are ready and all of them full, the request is refused; the
    fallback is for nodes of which nothing fresh is known.
    """
    output_tokens = expected_output_tokens(request, known.output_tokens)
    longest = max(known.cached_blocks.values(), default=0)
    phase = classify(
        max(1, request.prompt.tokens - request.cached_tokens(longest)),
        output_tokens,
        known.prefill_tokens_per_s,
        known.decode_s_per_token,
    )
    if not nodes:
        return Verdict(Unknown("no node has reported yet"), phase=phase)
    able = serving(nodes, request.model)
    if not able and request.model in known.models_left:
        return Verdict(_model_left(request.model, settings), phase=phase)
    if not able:
        return Verdict(_model_not_found(request.model), phase=phase)
    long = long_enough(able, request)
    if not long:
        return Verdict(_context_length_exceeded(request, able), phase=phase)
    eligible = not_out(ready(long, now_s, settings.nodes), known.out_until_s, now_s)
    if not eligible:
        return Verdict(fall_back(long, known.out_until_s, settings, now_s), phase=phase)
    uncached = _uncached_tokens(request, eligible, known.cached_blocks)
    prospects = Prospects(
        request.request_id,
        phase,
        known.turn,
        eligible,
        uncached,
        [prefill_tokens_ahead(node, now_s) for node in eligible],
        _prefill_rates(eligible, settings.nodes, now_s),
        output_tokens * request.sequences,
        policy.first_token_weight,
        policy.crowding_weight,
        policy.output_token_weight,
        policy.weights,
    )
    costs = STRATEGIES[policy.strategy](prospects)
    return _choose(request, prospects, costs, policy, settings, output_tokens * request.sequences)


def fall_back(
    nodes: Collection[NodeView], out_until_s: Mapping[str, float], settings: BalancerSettings, now_s: float
) -> FallBack | Refused:
    """Where to go when no fresh snapshot says ready."""
    members = not_out(perhaps_ready(nodes, now_s, settings.nodes), out_until_s, now_s)
    if members:
        return FallBack(members)
    return Refused(
        Refusal.NO_READY_NODE,
        f"No node is ready: {len(nodes)} known, all loading or draining. Retry later.",
        settings.retry_after_s,
    )


def _uncached_tokens(
    request: InferenceRequest, nodes: Sequence[NodeView], cached_blocks: Mapping[str, int]
) -> list[int]:
    """Prompt tokens that each node has to compute, at least 1."""
    tokens = request.prompt.tokens
    uncached = [max(1, tokens)] * len(nodes)
    if cached_blocks:
        for index, node in enumerate(nodes):
            blocks = cached_blocks.get(node.snapshot.node_id)
            if blocks:
                uncached[index] = request.uncached_tokens(request.cached_tokens(blocks), node.learned.cache_trust)
    return uncached


def _prefill_rates(nodes: Sequence[NodeView], limits: NodeLimits, now_s: float) -> list[float]:
    """Learned rates; a node that became ready a moment ago counts as slower, until `slow_start_s` are over."""
    rates = [node.learned.prefill_tokens_per_s for node in nodes]
    starting_since_s = now_s - limits.slow_start_s
    for index, node in enumerate(nodes):
        if node.ready_since_s > starting_since_s:
            share = (now_s - node.ready_since_s) / limits.slow_start_s
            # In steps, else nodes that became ready within a second of each other would never tie.
            rates[index] *= max(SLOW_START_SHARE_MIN, floor(share * SLOW_START_STEPS) / SLOW_START_STEPS)
    return rates


def _choose(
    request: InferenceRequest,
    prospects: Prospects,
    costs: Sequence[float],
    policy: RoutingPolicy,
    settings: BalancerSettings,
    output_tokens: int,
) -> Verdict:
    """Walk the nodes in the order of their costs and take the first with room.

    Too few free KV blocks are no room as long as another node has some; where none has, the cheapest queues the
    request. For an adapter the nodes that have it loaded, or load it now, come first, then those with a place for it.
    """
    nodes, kept_max = prospects.nodes, settings.candidates_kept_max
    candidates: list[Candidate] = []
    chosen: int | None = None
    short: int | None = None
    for index in _by_cost(request, nodes, costs):
        node_id, cost = nodes[index].snapshot.node_id, costs[index]
        if chosen is not None:
            if len(candidates) >= kept_max:
                break
            candidates.append(Candidate(node_id, cost))
            continue
        full = why_full(nodes[index], prospects.uncached_tokens[index], output_tokens, policy.limits)
        if full is None:
            chosen = index
            del candidates[kept_max - 1 :]
        elif full is TOO_FEW_BLOCKS and short is None:
            short = index
        if len(candidates) < kept_max:
            candidates.append(Candidate(node_id, cost, full))
    with_room = " with room" if chosen is not None and candidates[0].excluded else ""
    if chosen is None:
        chosen = short
    phase = prospects.phase
    if chosen is None:
        message = f"Every ready node for the model `{request.model}` is full ({len(nodes)} of them). Retry later."
        refused = Refused(Refusal.OVERLOADED, message, settings.retry_after_s)
        return Verdict(refused, tuple(candidates), phase)
    snapshot, cost = nodes[chosen].snapshot, costs[chosen]
    reason = f"{policy.strategy} {cost:.3g}, best of {len(nodes)}{with_room}"
    outcome = Chosen(snapshot.node_id, snapshot.host, reason)
    return Verdict(outcome, tuple(candidates), phase, prospects.uncached_tokens[chosen])


def _by_cost(request: InferenceRequest, nodes: Sequence[NodeView], costs: Sequence[float]) -> Iterator[int]:
    """Indices by cost. Tied ones stand by node id, turned by a hash of the request: so ties spread evenly."""
    keys: Sequence[float] | Sequence[tuple[int, float]] = costs
    if any(request.model in node.adapters_unloaded for node in nodes):
        keys = [(_adapter_tier(node, request.model), cost) for node, cost in zip(nodes, costs, strict=True)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    start = 0
    while start < len(order):
        key = keys[order[start]]
        end = start + 1
        while end < len(order) and keys[order[end]] == key:
            end += 1
        if end - start == 1:
            yield order[start]
        else:
            tied = sorted(order[start:end], key=lambda index: nodes[index].snapshot.node_id)
            first = _chance(request.request_id, len(tied))
            yield from tied[first:] + tied[:first]
        start = end


def _adapter_tier(node: NodeView, model: str) -> int:
    """0: no adapter, or loaded, or being so; 1: there is a place for it; 2: another would have to go, or who knows."""
    if model not in node.adapters_unloaded or model in node.own.adapters_sent:
        return 0
    return 1 if (node.snapshot.adapter_slots_free or 0) > node.own.adapters_unseen else 2


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
