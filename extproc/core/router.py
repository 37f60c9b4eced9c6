"""The choice itself: a pure function of the request, the nodes, the policy and the time."""

from collections.abc import Collection, Container, Mapping, Sequence
from math import fsum
from operator import truediv

from msgspec import Struct

from extproc.core.comparable import in_flight, judged, prefill_rates, tokens_ahead, uncached_tokens, unsure
from extproc.core.cost import STRATEGIES, Prospects
from extproc.core.decision import Candidate, Chosen, Refused, Unknown
from extproc.core.filters import in_subset, long_enough, not_out, perhaps_ready, ready, serving
from extproc.core.hidden import some_hide
from extproc.core.phase import classify, expected_output_tokens
from extproc.core.policy import RoutingPolicy
from extproc.core.ranking import by_cost, others_by_cost
from extproc.core.refusals import (
    context_length_exceeded,
    model_left,
    model_not_found,
    no_ready_node,
    not_in_subset,
    overloaded,
)
from extproc.core.request import InferenceRequest, Phase
from extproc.core.room import TOO_FEW_BLOCKS, Room, room_of, why_full
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeView


class FallBack(Struct, frozen=True):
    """It is the round robin's turn among these members: no fresh snapshot can be trusted, or the canary says so."""

    members: Sequence[NodeView]
    others_max: int = 0
    """Further ones to be named."""


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
    cached_tokens: Mapping[str, int] = {}
    """How many of the prompt's first tokens each node should have in its cache; none where it is not named."""
    told: Container[str] = ()
    """Nodes of which that is no estimate: they tell their blocks."""
    out_until_s: Mapping[str, float] = {}
    """Nodes that failed requests, and until when they are left out."""
    output_tokens: float = 256.0
    """Mean length of an answer of the model."""
    prefill_tokens_per_s: float = 8000.0
    """Of the whole fleet, as the next."""
    decode_s_per_token: float = 0.025
    rates_known: bool = True
    """Whether prompts have been seen computed for long enough that a wait can be told from the rates."""


class Standing(Struct, frozen=True):
    """Where a request stands among those that wait or may come."""

    share: float = 1.0
    """Of each node's room, over 0: what higher classes leave for it."""
    claimed: Container[str] = ()
    """Nodes for which others wait that come before it."""
    tokens_before: float = 0.0
    """Tokens of those, prompts' and expected answers'."""


ALONE = Standing()


def decide(
    request: InferenceRequest,
    nodes: Collection[NodeView],
    policy: RoutingPolicy,
    settings: BalancerSettings,
    known: Known,
    now_s: float,
    standing: Standing = ALONE,
) -> Verdict:
    """Choose a node for a request; raises for no input, and the order of `nodes` never matters.

    Filters come first, from the most lasting to the most fleeting reason: model, subset, context length, readiness,
    failures, those who come before it, room. Full is not stale: where fresh nodes are ready and all of them full, the
    request is refused; the fallback is for nodes of which nothing fresh is known.

    Admission comes last, and looks at the one node that was chosen: where a policy has an objective for the first
    token, a request is refused that would wait for too much of it. Of another node, whose queue is shorter, the costs
    say that the request would be a burden to those who are there.

    The canary's control arm has the same filters, and then turns instead of costs. It is refused only where every node
    is full.
    """
    output_tokens = expected_output_tokens(request, known.output_tokens)
    longest = max(known.cached_tokens.values(), default=0)
    if policy.classify == "expected-time":
        phase = classify(
            max(1, request.prompt.tokens - longest),
            output_tokens,
            known.prefill_tokens_per_s,
            known.decode_s_per_token,
        )
    else:
        phase = Phase(policy.classify)
    if not nodes:
        return Verdict(Unknown("no node has reported yet"), phase=phase)
    able = serving(nodes, request.model)
    if not able and request.model in known.models_left:
        return Verdict(model_left(request.model, settings), phase=phase)
    if not able:
        return Verdict(model_not_found(request.model), phase=phase)
    allowed = able if request.subset is None else in_subset(able, request.subset)
    if not allowed:
        return Verdict(not_in_subset(settings), phase=phase)
    long = long_enough(allowed, request)
    if not long:
        return Verdict(context_length_exceeded(request, allowed), phase=phase)
    eligible = not_out(ready(long, now_s, settings.nodes), known.out_until_s, now_s)
    if not eligible:
        return Verdict(fall_back(long, known.out_until_s, policy.others_max, settings, now_s), phase=phase)
    free = (
        [node for node in eligible if node.snapshot.node_id not in standing.claimed] if standing.claimed else eligible
    )
    hides = some_hide(free)
    uncached = uncached_tokens(request, free, known.cached_tokens, known.told, hides)
    prospects = Prospects(
        request.request_id,
        phase,
        known.turn,
        free,
        uncached,
        tokens_ahead(free, hides, known.prefill_tokens_per_s, now_s),
        prefill_rates(free, hides, settings.nodes, now_s),
        output_tokens * request.sequences,
        policy.first_token_weight,
        policy.crowding_weight,
        policy.output_token_weight,
        policy.weights,
        in_flight(free, hides),
        unsure(request, free, others_lack_it=len(able) < len(nodes), others_too_short=len(long) < len(allowed)),
    )
    if not free:
        rates = prefill_rates(eligible, 0, settings.nodes, now_s)
        wait_s = standing.tokens_before / fsum(rates)
        return Verdict(overloaded(request, "others wait for every node", wait_s, settings), phase=phase)
    wait_s_max = None if policy.ttft_s is None else policy.wait_fraction * policy.ttft_s
    room = room_of(policy.limits, policy.strategy, wait_s_max, standing.share)
    if hides:
        room = judged(room, free, uncached, prospects.output_tokens, hides)
    if policy.arm_of(request.request_id) == "control":
        return _by_turn(request, prospects, policy, room, settings)
    costs = STRATEGIES[policy.strategy](prospects)
    verdict = _choose(request, prospects, costs, policy, room, settings)
    return _admitted(request, verdict, prospects, room, settings) if known.rates_known else verdict


def fall_back(
    nodes: Collection[NodeView],
    out_until_s: Mapping[str, float],
    others_max: int,
    settings: BalancerSettings,
    now_s: float,
) -> FallBack | Refused:
    """Where to go when no fresh snapshot says ready."""
    members = not_out(perhaps_ready(nodes, now_s, settings.nodes), out_until_s, now_s)
    if members:
        return FallBack(members, others_max)
    return no_ready_node(len(nodes), settings)


def _choose(
    request: InferenceRequest,
    prospects: Prospects,
    costs: Sequence[float],
    policy: RoutingPolicy,
    room: Room,
    settings: BalancerSettings,
) -> Verdict:
    """Walk the nodes in the order of their costs and take the first with room.

    Too few free KV blocks are no room as long as another node has some; where none has, the cheapest queues the
    request, unless the policy says that blocks are required. For an adapter the nodes that have it loaded, or load it
    now, come first, then those with a place for it.
    """
    nodes, kept_max = prospects.nodes, settings.candidates_kept_max
    candidates: list[Candidate] = []
    chosen: int | None = None
    short: int | None = None
    for index in by_cost(request, nodes, costs, prospects.unsure):
        node_id, cost = nodes[index].snapshot.node_id, costs[index]
        if chosen is not None:
            if len(candidates) >= kept_max:
                break
            candidates.append(Candidate(node_id, cost))
            continue
        full = why_full(nodes[index], prospects.uncached_tokens[index], prospects.output_tokens, room)
        if full is None:
            chosen = index
            del candidates[kept_max - 1 :]
        elif full is TOO_FEW_BLOCKS and short is None:
            short = index
        if len(candidates) < kept_max:
            candidates.append(Candidate(node_id, cost, full))
    with_room = " with room" if chosen is not None and candidates[0].excluded else ""
    if chosen is None and not room.limits.kv_blocks_required:
        chosen = short
    if chosen is None:
        return Verdict(_all_full(request, prospects, settings), tuple(candidates), prospects.phase)
    snapshot, cost = nodes[chosen].snapshot, costs[chosen]
    reason = f"{policy.strategy} {cost:.3g}, best of {len(nodes)}{with_room}"
    others: tuple[str, ...] = ()
    if policy.others_max:
        others = others_by_cost(request, prospects, costs, chosen, room, policy.others_max)
    outcome = Chosen(snapshot.node_id, snapshot.host, reason, others=others)
    return Verdict(outcome, tuple(candidates), prospects.phase, prospects.uncached_tokens[chosen])


def _admitted(
    request: InferenceRequest, verdict: Verdict, prospects: Prospects, room: Room, settings: BalancerSettings
) -> Verdict:
    """The verdict, or a refusal where the chosen node has too much to compute before. Source: docs/results.md."""
    chosen = verdict.outcome
    if room.wait_s_max is None or not isinstance(chosen, Chosen):
        return verdict
    nodes = prospects.nodes
    index = next(index for index, node in enumerate(nodes) if node.snapshot.node_id == chosen.node_id)
    wait_s = prospects.tokens_ahead[index] / prospects.prefill_tokens_per_s[index]
    if wait_s <= room.wait_s_max:
        return verdict
    why = f"it would wait {wait_s:.2f} s on the best node, and may wait {room.wait_s_max:.2f} s"
    excluded = f"prompt work of {wait_s:.1f} s before it"
    candidates = [
        one if one.node_id != chosen.node_id else one._replace(excluded=excluded) for one in verdict.candidates
    ]
    refused = overloaded(request, why, wait_s - room.wait_s_max, settings)
    return Verdict(refused, tuple(candidates), verdict.phase)


def _by_turn(
    request: InferenceRequest, prospects: Prospects, policy: RoutingPolicy, room: Room, settings: BalancerSettings
) -> Verdict:
    """All of them take turns, as long as one has room."""
    for node, uncached in zip(prospects.nodes, prospects.uncached_tokens, strict=True):
        full = why_full(node, uncached, prospects.output_tokens, room)
        if full is None or (full is TOO_FEW_BLOCKS and not room.limits.kv_blocks_required):
            return Verdict(FallBack(prospects.nodes, policy.others_max), phase=prospects.phase)
    return Verdict(_all_full(request, prospects, settings), phase=prospects.phase)


def _all_full(request: InferenceRequest, prospects: Prospects, settings: BalancerSettings) -> Refused:
    waits_s = map(truediv, prospects.tokens_ahead, prospects.prefill_tokens_per_s)
    why = f"every ready node is full ({len(prospects.nodes)} of them)"
    return overloaded(request, why, min(waits_s), settings)
