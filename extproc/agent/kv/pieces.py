"""Events in pieces that take little time each."""

from collections.abc import Iterator

from extproc.agent.kv.events import RemovedBlocks, StoredBlocks
from extproc.kvchain import BLOCK_TOKENS


def work_of(event: StoredBlocks | RemovedBlocks) -> int:
    """Blocks, the engine's or ours, whichever are more; at least 1."""
    tokens = len(event.token_ids) if isinstance(event, StoredBlocks) else 0
    return max(1, len(event.hashes), tokens // BLOCK_TOKENS)


def pieces(event: StoredBlocks | RemovedBlocks, work_max: int) -> Iterator[StoredBlocks | RemovedBlocks]:
    """The same as events of so much work each, or of one block: each stands behind the one before."""
    if work_of(event) <= work_max:
        yield event
        return
    size = work_max
    if isinstance(event, StoredBlocks):
        size = max(1, min(work_max, work_max * BLOCK_TOKENS // event.block_tokens))
    for at in range(0, len(event.hashes), size):
        hashes = event.hashes[at : at + size]
        if isinstance(event, RemovedBlocks):
            yield RemovedBlocks(hashes, event.group)
            continue
        yield StoredBlocks(
            hashes,
            event.hashes[at - 1] if at else event.parent,
            event.token_ids[at * event.block_tokens : (at + size) * event.block_tokens],
            event.block_tokens,
            event.adapter,
            min(len(hashes), max(0, event.comparable - at)),
            event.group,
        )
