"""Who may serve a request. A filter that says no says why, in a phrase for people."""

from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from extproc.core.capacity import blocks_needed
from extproc.core.cost import kv_usage_expected
from extproc.core.request import InferenceRequest
from extproc.core.settings import NodeLimits
from extproc.core.snapshot import Freshness, NodeState, NodeView


class Limits(BaseModel):
    """When a node is full."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kv_usage_max: float = Field(0.90, gt=0, le=1)
    """A node at or over this share of KV cache takes nothing more."""
    requests_waiting_max: int = Field(100, ge=1, le=1_000_000)
    """A node with this many waiting requests takes nothing more."""


def freshness(age_s: float, limits: NodeLimits) -> Freshness:
    """How far a snapshot of this age can be trusted."""
    if age_s < limits.fresh_s:
        return Freshness.FRESH
    return Freshness.STALE if age_s < limits.stale_s else Freshness.UNKNOWN


def serving(nodes: Iterable[NodeView], model: str) -> list[NodeView]:
    """Nodes that list the model. Nodes whose list is not known may serve it too."""
    return [node for node in nodes if node.context_lengths is None or model in node.context_lengths]


def context_length_tokens(node: NodeView, model: str) -> int | None:
    """The node's context length for the model; `None` if not known."""
    return None if node.context_lengths is None else node.context_lengths.get(model)


def tokens_at_least(request: InferenceRequest) -> int:
    """Context that the request surely needs: an estimated prompt proves nothing, so only exact counts are used."""
    prompt_tokens = request.prompt.tokens if request.prompt.exact else 0
    return prompt_tokens + (request.output_tokens_max or 0)


def long_enough(nodes: Sequence[NodeView], request: InferenceRequest) -> Sequence[NodeView]:
    """Nodes whose context holds the request; an unknown context length may hold it."""
    wanted_tokens = tokens_at_least(request)
    if not wanted_tokens:
        return nodes
    fitting = []
    for node in nodes:
        length_tokens = context_length_tokens(node, request.model)
        if length_tokens is None or wanted_tokens <= length_tokens:
            fitting.append(node)
    return fitting


def ready(nodes: Iterable[NodeView], now_s: float, limits: NodeLimits) -> list[NodeView]:
    """Nodes that a fresh snapshot calls ready."""
    since_s = now_s - limits.fresh_s
    return [node for node in nodes if node.sampled_at_s > since_s and node.snapshot.state is NodeState.READY]


def perhaps_ready(nodes: Iterable[NodeView], now_s: float, limits: NodeLimits) -> list[NodeView]:
    """Members that the fallback may use: their snapshot is stale and said ready, or is too old to say anything."""
    members = []
    for node in nodes:
        match freshness(now_s - node.sampled_at_s, limits):
            case Freshness.STALE if node.snapshot.state is NodeState.READY:
                members.append(node)
            case Freshness.UNKNOWN:
                members.append(node)
            case _:
                pass
    return members


def not_out(nodes: Sequence[NodeView], out_until_s: Mapping[str, float], now_s: float) -> Sequence[NodeView]:
    """Nodes that are not left out for failing. Where that leaves none, all: the last node is never out."""
    if not out_until_s:
        return nodes
    well = [node for node in nodes if out_until_s.get(node.snapshot.node_id, now_s) <= now_s]
    return well or nodes


TOO_FEW_BLOCKS = "too few free KV blocks"
"""The one way of being full that does not refuse a request: engines queue it."""


def why_full(node: NodeView, prompt_tokens: int, output_tokens: int, limits: Limits) -> str | None:
    """What the node has no room in for a request, or `None` if it has room. Absent signals make no node full.

    The request has so many prompt tokens that are not cached there, and so many are expected to be its answer.
    Requests that no sample shows yet count as queued only where the engine has a queue already: an engine
    whose queue is empty starts what it gets. They count once each, however many answers they ask for: a few clients
    must not make a node look full. Their KV blocks always count. A prompt that an empty cache could
    not hold is no matter of room: waiting would not help, so the engine shall say what is wrong with it.
    """
    one, own = node.snapshot, node.own
    if one.requests_waiting is not None:
        waiting = one.requests_waiting + (own.requests_unseen if one.requests_waiting else 0)
        if waiting >= limits.requests_waiting_max:
            return "queue full"
    usage = kv_usage_expected(node)
    if usage is not None and usage >= limits.kv_usage_max:
        return "KV cache full"
    if one.kv_blocks_available is not None:
        needed = _blocks(node, prompt_tokens, output_tokens)
        if needed is not None and one.kv_blocks_available - own.kv_blocks_unseen < needed:
            return TOO_FEW_BLOCKS
    return None


def blocks_taken(node: NodeView, request: InferenceRequest, prompt_tokens: int) -> int:
    """KV blocks that the request will take at the node for its prompt tokens that are not cached there.

    0 where that is not known, and where the engine will refuse it: an estimate may be longer than the context or the
    whole cache. Such a request goes to the engine for its answer, and must not make the node look full to the others
    meanwhile. Its answer takes none at first: samples show it as it grows.
    """
    length_tokens = context_length_tokens(node, request.model)
    if length_tokens is not None and request.prompt.tokens > length_tokens:
        return 0
    return _blocks(node, prompt_tokens, 0) or 0


def may_hold(node: NodeView, request: InferenceRequest) -> bool:
    """Whether the prompt fits the node's context and whole cache, an estimate being too large by half at most."""
    one, length_tokens = node.snapshot, context_length_tokens(node, request.model)
    tokens = request.prompt.tokens if request.prompt.exact else request.prompt.tokens * 2 // 3
    if length_tokens is not None and tokens > length_tokens:
        return False
    blocks = blocks_needed(tokens, one.kv_block_size_tokens)
    return blocks is None or one.kv_blocks_total is None or blocks <= one.kv_blocks_total


def _blocks(node: NodeView, prompt_tokens: int, output_tokens: int) -> int | None:
    """`None` where the block size is unknown, or the prompt too large. No answer is expected to exceed the cache."""
    one = node.snapshot
    blocks = blocks_needed(prompt_tokens + output_tokens, one.kv_block_size_tokens)
    if blocks is None or one.kv_blocks_total is None or blocks <= one.kv_blocks_total:
        return blocks
    prompt_blocks = blocks_needed(prompt_tokens, one.kv_block_size_tokens)
    assert prompt_blocks is not None, "the block size is known"
    return None if prompt_blocks > one.kv_blocks_total else one.kv_blocks_total
