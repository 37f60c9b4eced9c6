"""What holds for the blocks of all arrivals of a list."""

from collections.abc import Iterable

from extproc.sim.traces import BLOCK_TOKENS, Arrival


def is_sound(arrivals: Iterable[Arrival]) -> bool:
    """Every full block has a number, and a number always has the same ones before it."""
    before: dict[int, int | None] = {}
    for arrival in arrivals:
        previous = None
        for block in arrival.prompt_blocks + arrival.answer_blocks:
            if before.setdefault(block, previous) != previous:
                return False
            previous = block
        if len(arrival.prompt_blocks) != arrival.prompt_tokens // BLOCK_TOKENS:
            return False
    return True


def hit_share(arrivals: Iterable[Arrival]) -> float:
    """Share of the prompts' blocks that one unbounded cache would know."""
    seen: set[int] = set()
    hits = blocks = 0
    for arrival in arrivals:
        hits += sum(block in seen for block in arrival.prompt_blocks)
        blocks += len(arrival.prompt_blocks)
        seen.update(arrival.prompt_blocks + arrival.answer_blocks)
    return hits / blocks
