"""Whether a node has room for a request, and if not why, in a phrase for people."""

from math import ceil

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from extproc.core.capacity import blocks_needed
from extproc.core.cost import kv_usage_expected
from extproc.core.filters import context_length_tokens
from extproc.core.request import InferenceRequest
from extproc.core.snapshot import NodeView

TOO_FEW_BLOCKS = "too few free KV blocks"
"""The one way of being full that need not refuse a request: engines queue it."""
KV_USAGE_MAX_OF_LOAD_SCORE = 0.9


class Limits(BaseModel):
    """When a node is full, whatever a request's objective is."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kv_usage_max: float | None = Field(None, gt=0, le=1)
    """A node at or over this share of KV cache takes nothing more. `None`: 0.9 for `load-score`, else no limit: a busy
    engine keeps its cache full."""
    requests_waiting_max: int = Field(100, ge=1, le=1_000_000)
    """A node with this many waiting requests takes nothing more."""
    kv_blocks_required: bool = False
    """Whether nodes with too few free KV blocks are full. Else such a request goes to the cheapest of them where no
    other has more, and waits in the engine."""


class Room(Struct, frozen=True):
    """What of a node one request may fill: its policy's limits, less what higher classes have reserved."""

    limits: Limits = Limits()
    kv_usage_max: float | None = None
    wait_s_max: float | None = None
    """Seconds of prompt work ahead of it on the node that is chosen; `None`: no limit."""
    share: float = 1.0
    """Of all limits, over 0: what higher classes leave."""
    looks_at_queue: bool = True
    looks_at_blocks: bool = True
    counts_unseen_blocks: bool = True
    """Whether the KV cache's usage is brought up to date by the ledger. These three are off where not every candidate
    tells what it takes."""
    full: str | None = None
    """Why every candidate is full."""


def room_of(limits: Limits, strategy: str, wait_s_max: float | None, share: float) -> Room:
    """The room for requests of a policy's limits and strategy, and of a class to which this share is left."""
    kv_usage_max = limits.kv_usage_max
    if kv_usage_max is None and strategy == "load-score":
        kv_usage_max = KV_USAGE_MAX_OF_LOAD_SCORE
    if kv_usage_max is None and share < 1:
        kv_usage_max = 1.0
    return Room(
        limits,
        None if kv_usage_max is None else kv_usage_max * share,
        None if wait_s_max is None else wait_s_max * share,
        share,
    )


def why_full(node: NodeView, prompt_tokens: int, output_tokens: int, room: Room) -> str | None:
    """What the node has no room in for a request, or `None` if it has room. Absent signals make no node full.

    The request has so many prompt tokens that are not cached there, and so many are expected to be its answer.
    Requests that no sample shows yet count as queued only where the engine has a queue already: an engine
    whose queue is empty starts what it gets. They count once each, however many answers they ask for: a few clients
    must not make a node look full. Their KV blocks always count. A prompt that an empty cache could
    not hold is no matter of room: waiting would not help, so the engine shall say what is wrong with it.
    """
    if room.full is not None:
        return room.full
    if room.looks_at_queue and queue_full(node, room):
        return "queue full"
    if cache_full(node, room):
        return "KV cache full"
    if room.looks_at_blocks and short_of_blocks(node, prompt_tokens, output_tokens):
        return TOO_FEW_BLOCKS
    return None


def queue_full(node: NodeView, room: Room) -> bool:
    """Whether the engine's queue is as long as it may be; see `why_full`."""
    waiting = node.snapshot.requests_waiting
    if waiting is None:
        return False
    unseen = node.own.requests_unseen if waiting else 0
    return waiting + unseen >= ceil(round(room.limits.requests_waiting_max * room.share, 6))


def cache_full(node: NodeView, room: Room) -> bool:
    """Whether as much of the KV cache is in use as may be."""
    if room.kv_usage_max is None:
        return False
    usage = kv_usage_expected(node) if room.counts_unseen_blocks else node.snapshot.kv_usage
    return usage is not None and usage >= room.kv_usage_max


def short_of_blocks(node: NodeView, prompt_tokens: int, output_tokens: int) -> bool:
    """Whether the request needs more KV blocks than are free; see `why_full`."""
    available = node.snapshot.kv_blocks_available
    if available is None:
        return False
    needed = _blocks(node, prompt_tokens, output_tokens)
    return needed is not None and available - node.own.kv_blocks_unseen < needed


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
