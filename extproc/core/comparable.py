"""What the costs compare, of each candidate. What one of them hides must not favour it.

| hidden by some candidates, told by others | counts instead | so who hides it |
|---|---|---|
| requests running or waiting | of all what we have open there | is compared like those that tell |
| pending prefills | of all what we sent there, less what the fleet's rate computes | is compared like those that tell |
| totals of prompts | the slowest rate among them, and work that does not shrink | is none the better |
| hits of its prefix cache | the least trust among them | is none the better |
| its queue, KV usage or free blocks | no limit on it, or the one verdict of most | is full with the others |
| its blocks or their size | of all the KV usage that samples show | is compared like those that tell |
| what it serves, or how long a context | it comes last, where others were left out for theirs | is none the better |

Rates, trust and models are not left out for all: one node that tells nothing would make every choice blind to slow
nodes, broken caches and wrong models. What all of them hide compares as it is. What a candidate hides is told apart by
`NodeView.hides`, so that a decision among nodes that tell everything costs nothing more.
"""

from collections.abc import Container, Mapping, Sequence
from math import floor

from msgspec.structs import replace

from extproc.core import hidden
from extproc.core.filters import context_length_tokens
from extproc.core.loads import own_tokens_ahead, prefill_tokens_ahead
from extproc.core.request import InferenceRequest
from extproc.core.room import Room, cache_full, queue_full, short_of_blocks
from extproc.core.settings import NodeLimits
from extproc.core.snapshot import NodeView

SLOW_START_SHARE_MIN = 0.25
"""Of its rate: what a node that has just become ready counts with."""
SLOW_START_STEPS = 8
TELLING_SHARE_MIN = 0.5
"""So many of the candidates must tell a signal for those to speak for all."""
SHORT_WHERE_TOLD = "too few free KV blocks where they are told"


def in_flight(nodes: Sequence[NodeView], hides: int) -> list[int]:
    """Sequences at each node: n of the costs."""
    if hides & hidden.REQUESTS:
        return [node.own.sequences_open for node in nodes]
    return [node.in_flight for node in nodes]


def tokens_ahead(nodes: Sequence[NodeView], hides: int, fleet_tokens_per_s: float, now_s: float) -> list[float]:
    """Prompt tokens that each node has to compute before another prompt: W of the costs."""
    all_hide_pending = not hides & hidden.PENDING and bool(nodes) and bool(nodes[0].hides & hidden.PENDING)
    if hides & hidden.PENDING or (all_hide_pending and hides & hidden.QUEUE):
        return [own_tokens_ahead(node, fleet_tokens_per_s, now_s) for node in nodes]
    ahead = [prefill_tokens_ahead(node, now_s) for node in nodes]
    if hides & hidden.RATE:
        for index, node in enumerate(nodes):
            if node.hides & hidden.RATE:
                ahead[index] = node.prefill_tokens_pending
    return ahead


def prefill_rates(nodes: Sequence[NodeView], hides: int, limits: NodeLimits, now_s: float) -> list[float]:
    """Learned rates: r of the costs; a node that became ready a moment ago counts as slower for `slow_start_s`."""
    rates = [node.learned.prefill_tokens_per_s for node in nodes]
    if hides & hidden.RATE:
        slowest = min(rates)
        rates = [slowest if node.hides & hidden.RATE else rate for node, rate in zip(nodes, rates, strict=True)]
    starting_since_s = now_s - limits.slow_start_s
    for index, node in enumerate(nodes):
        if node.ready_since_s > starting_since_s:
            share = (now_s - node.ready_since_s) / limits.slow_start_s
            # In steps, else nodes that became ready within a second of each other would never tie.
            rates[index] *= max(SLOW_START_SHARE_MIN, floor(share * SLOW_START_STEPS) / SLOW_START_STEPS)
    return rates


def uncached_tokens(
    request: InferenceRequest,
    nodes: Sequence[NodeView],
    cached_tokens: Mapping[str, int],
    told: Container[str],
    hides: int,
) -> list[int]:
    """Prompt tokens that each node has to compute, at least 1: u of the costs.

    `cached_tokens` are those that each node should have in its cache, and `told` the nodes that tell their blocks.
    """
    tokens = request.prompt.tokens
    uncached = [max(1, tokens)] * len(nodes)
    if cached_tokens:
        least = min(node.learned.cache_trust for node in nodes) if hides & hidden.HITS else 1.0
        least_told = min(node.learned.told_trust for node in nodes) if hides & hidden.HITS else 1.0
        for index, node in enumerate(nodes):
            node_id = node.snapshot.node_id
            cached = cached_tokens.get(node_id)
            if cached and node_id in told:
                trust = least_told if node.hides & hidden.HITS else node.learned.told_trust
                uncached[index] = request.uncached_tokens(cached, trust)
            elif cached:
                trust = least if least < 1 and node.hides & hidden.HITS else node.learned.cache_trust
                uncached[index] = request.uncached_tokens(cached, trust)
    return uncached


def judged(room: Room, nodes: Sequence[NodeView], uncached: Sequence[int], output_tokens: int, hides: int) -> Room:
    """The room of which all candidates can be judged."""
    if not hides & (hidden.QUEUE | hidden.KV_USAGE | hidden.KV_SIZE | hidden.KV_BLOCKS):
        return room
    if hides & hidden.KV_SIZE:
        room = replace(room, counts_unseen_blocks=False)
    if hides & hidden.QUEUE:
        told = [queue_full(node, room) for node in nodes if not node.hides & hidden.QUEUE]
        room = replace(room, looks_at_queue=False, full=_full("queue full", told, nodes) or room.full)
    if hides & hidden.KV_USAGE and room.kv_usage_max is not None:
        told = [cache_full(node, room) for node in nodes if not node.hides & hidden.KV_USAGE]
        room = replace(room, kv_usage_max=None, full=_full("KV cache full", told, nodes) or room.full)
    if hides & hidden.KV_BLOCKS:
        told = [
            short_of_blocks(node, tokens, output_tokens)
            for node, tokens in zip(nodes, uncached, strict=True)
            if not node.hides & hidden.KV_BLOCKS
        ]
        full = _full(SHORT_WHERE_TOLD, told, nodes) if room.limits.kv_blocks_required else None
        room = replace(room, looks_at_blocks=False, full=full or room.full)
    return room


def _full(why: str, told: list[bool], nodes: Sequence[NodeView]) -> str | None:
    """Why all are full, if they are."""
    return why if all(told) and len(told) >= TELLING_SHARE_MIN * len(nodes) else None


def unsure(
    request: InferenceRequest, nodes: Sequence[NodeView], *, others_lack_it: bool, others_too_short: bool
) -> frozenset[str]:
    """Nodes that may serve it as far as is known, where others are known not to."""
    if not (others_lack_it or others_too_short):
        return frozenset()
    return frozenset(
        node.snapshot.node_id
        for node in nodes
        if (others_lack_it and node.context_lengths is None)
        or (others_too_short and context_length_tokens(node, request.model) is None)
    )
