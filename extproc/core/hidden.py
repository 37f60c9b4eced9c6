"""Which signals a node does not tell, as bits: a decision looks at all of its candidates for what some of them hide."""

from collections.abc import Iterable

from extproc.core.snapshot import NodeView, Snapshot

REQUESTS = 1
"""How many run, or wait."""
QUEUE = 2
"""How many wait."""
PENDING = 4
"""How many lack their first token."""
RATE = 8
"""Totals of prompts and their seconds."""
HITS = 16
"""Tokens found in its prefix cache."""
KV_USAGE = 32
KV_SIZE = 64
"""Its KV blocks, or their size."""
KV_BLOCKS = 128
"""Its free KV blocks, or their size."""


def hides_of(snapshot: Snapshot) -> int:
    """The bits of what a snapshot lacks."""
    one = snapshot
    lacks = {
        REQUESTS: one.requests_running is None or one.requests_waiting is None,
        QUEUE: one.requests_waiting is None,
        PENDING: one.pending_prefills is None,
        RATE: one.prefill_tokens_total is None or one.prefill_seconds_total is None,
        HITS: one.prefix_hits_total is None,
        KV_USAGE: one.kv_usage is None,
        KV_SIZE: not one.kv_blocks_total or not one.kv_block_size_tokens,
        KV_BLOCKS: one.kv_blocks_available is None or one.kv_block_size_tokens is None,
    }
    return sum(bit for bit, is_lacking in lacks.items() if is_lacking)


def some_hide(nodes: Iterable[NodeView]) -> int:
    """What some of the nodes hide, and others tell."""
    kinds = {node.hides for node in nodes}  # a few, of many nodes
    some, every = 0, -1
    for bits in kinds:
        some |= bits
        every &= bits
    return some & ~every
