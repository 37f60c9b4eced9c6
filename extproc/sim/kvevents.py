"""KV events in a simulation: the numbers by which routers know the blocks of prompts, and what an agent tells of them.

A key of a simulation stands for a block of `traces.BLOCK_TOKENS` and all before it. Nodes tell blocks of
`kvchain.BLOCK_TOKENS`, so each key is some numbers, of which an engine has all or none.
"""

from collections.abc import Iterable
from typing import Final

from extproc.core.snapshot import KvBlocksTold
from extproc.kvchain import BLOCK_TOKENS
from extproc.sim import traces
from extproc.sim.node import Node

PER_KEY: Final = traces.BLOCK_TOKENS // BLOCK_TOKENS
"""Numbers for each key."""


def token_blocks(keys: Iterable[int]) -> tuple[int, ...]:
    """As `InferenceRequest.token_blocks`: distinct ones for distinct keys, which take the place of hashes as they are.

    Keys from 0 to 2**64 / `PER_KEY` - 1.
    """
    return tuple([number for key in keys for number in range(key * PER_KEY, key * PER_KEY + PER_KEY)])


def told(node: Node) -> KvBlocksTold | None:
    """What a node's agent tells of its cache now, behind a snapshot: everything at first, then what has changed.

    `None`: nothing has. The node must have been advanced until now.
    """
    pool = node.engine.pool
    everything = not pool.logs
    changes = pool.changes()
    if not (changes.stored or changes.removed):
        return None
    return KvBlocksTold(node.name, node.name, everything, token_blocks(changes.stored), token_blocks(changes.removed))
