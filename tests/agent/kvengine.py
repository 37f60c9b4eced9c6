"""An engine's prefix cache as plain as can be, and what it says of itself: what tests hold ours against."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from extproc.agent.kv.events import Batch, Cleared, Event, RemovedBlocks, StoredBlocks
from extproc.kvchain import token_blocks_of

Tokens = tuple[int, ...]


def stored(tokens: Sequence[int], block_tokens: int, known: int = 0, adapter: str = "") -> StoredBlocks:
    """What is said of all whole blocks of a prompt but the first so many. Hashes are sound: of all tokens so far."""
    ends = range((known + 1) * block_tokens, len(tokens) + 1, block_tokens)
    return StoredBlocks(
        hashes=[hash_of(tokens[:end], adapter) for end in ends],
        parent=hash_of(tokens[: known * block_tokens], adapter) if known else None,
        token_ids=list(tokens[known * block_tokens : known * block_tokens + len(ends) * block_tokens]),
        block_tokens=block_tokens,
        adapter=adapter,
        comparable=len(ends),
        group=0,
    )


def removed(*beginnings: Sequence[int], adapter: str = "") -> RemovedBlocks:
    """What is said of the last blocks of these beginnings."""
    return RemovedBlocks([hash_of(one, adapter) for one in beginnings], 0)


def hash_of(tokens: Sequence[int], adapter: str = "") -> int:
    return hash((adapter, tuple(tokens)))


def batch(*events: Event, rank: int = 0) -> Batch:
    return Batch(rank, list(events), 0, 0)


def found(prompt: Sequence[int], held: Iterable[int], adapter: str = "") -> int:
    """How many of a prompt's first blocks of ours are among these numbers."""
    numbers = set(held)
    depth = 0
    for number in token_blocks_of(prompt, adapter):
        if number not in numbers:
            break
        depth += 1
    return depth


@dataclass
class ModelEngine:
    """Beginnings of prompts, each with its copies."""

    block_tokens: int
    copies: dict[Tokens, int] = field(default_factory=dict)

    def run(self, prompt: Tokens, anew: int) -> list[Event]:
        """It has computed a prompt. The last so many blocks are stored anew though they may be there already."""
        events: list[Event] = []
        size = self.block_tokens
        count = len(prompt) // size
        have = 0
        while have < count - anew and self.copies.get(prompt[: (have + 1) * size]):
            have += 1
        if have < count:
            events.append(stored(prompt[: count * size], size, have))
        for end in range((have + 1) * size, count * size + 1, size):
            self.copies[prompt[:end]] = self.copies.get(prompt[:end], 0) + 1
        return events

    def evict(self, choice: int) -> list[Event]:
        there = sorted(self.copies)
        if not there:
            return []
        one = there[choice % len(there)]
        self.copies[one] -= 1
        if not self.copies[one]:
            del self.copies[one]
        return [removed(one)]

    def clear(self) -> list[Event]:
        self.copies.clear()
        return [Cleared()]

    def cached_tokens(self, prompt: Tokens) -> int:
        """Of the longest beginning that it has."""
        size, end = self.block_tokens, 0
        while end + size <= len(prompt) and self.copies.get(prompt[: end + size]):
            end += size
        return end
