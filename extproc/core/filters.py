"""Who may serve a request. A filter that says no says why, in a phrase for people."""

from collections.abc import Iterable, Sequence

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


def why_full(node: NodeView, request: InferenceRequest, limits: Limits) -> str | None:
    """What the node has no room in, or `None` if it has room. Signals that are absent do not make a node full.

    Requests that no sample shows yet count as queued only where the engine has a queue already: an engine
    whose queue is empty starts what it gets. They count once each, however many answers they ask for: a few clients
    must not make a node look full. Their KV blocks always count. A request that an empty cache could
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
        needed = blocks_needed(request.uncached_tokens, one.kv_block_size_tokens)
        too_large = needed is not None and one.kv_blocks_total is not None and needed > one.kv_blocks_total
        if needed is not None and not too_large and one.kv_blocks_available - own.kv_blocks_unseen < needed:
            return "too few free KV blocks"
    return None


def blocks_taken(node: NodeView, request: InferenceRequest) -> int:
    """KV blocks that the request will take at the node; 0 where that is not known, and where the engine will refuse it.

    An estimate may be longer than the context or the whole cache. Such a request goes to the engine for its answer,
    and must not make the node look full to the others meanwhile.
    """
    one = node.snapshot
    blocks = blocks_needed(request.uncached_tokens, one.kv_block_size_tokens)
    length_tokens = context_length_tokens(node, request.model)
    too_long = length_tokens is not None and request.prompt.tokens > length_tokens
    too_large = blocks is not None and one.kv_blocks_total is not None and blocks > one.kv_blocks_total
    return 0 if blocks is None or too_long or too_large else blocks
