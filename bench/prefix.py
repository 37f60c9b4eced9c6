"""What the prefix index costs: 100,000 prompts placed on 100 nodes, then lookups, insertions and memory.

    .venv/bin/python -m bench.prefix

Medians of several rounds, CPU time of this thread; hashing the prompt's text is not part of it. Lookups are of a prompt
of 100,000 tokens: unknown to all, held whole by a few nodes, and held by every node to another depth, which is the
worst.
"""

import random
import statistics
import time
import tracemalloc
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from bench.machine import machine
from extproc.core.prefix import ENTRY_BYTES, PrefixIndex
from extproc.core.request import PROMPT_BLOCK_TOKENS

PLACEMENTS = 100_000
NODES = 100
NODE_BLOCKS = 400_000 // PROMPT_BLOCK_TOKENS
PROMPT_BLOCKS = 100_000 // PROMPT_BLOCK_TOKENS
LOOKUP_AIM_US = 300
ENTRIES = 400_000
"""Of the index that is filled; the default bound is 670,000."""
FLEETS_OF = (10, 100, 1000, 4096)
PROMPTS_OF = (1, 16, 1600)
"""Blocks."""
ROUNDS = 7


def chain(chance: random.Random, blocks: int) -> tuple[int, ...]:
    """A prompt that nothing else begins like."""
    return tuple(chance.getrandbits(64) for _ in range(blocks))


def placed(chance: random.Random, placements: int, nodes: int) -> PrefixIndex:
    """An index after so many prompts of 2 to 64 blocks behind one of 50 shared beginnings, on nodes taken at random."""
    index = PrefixIndex(2**40)
    shared = [chain(chance, 32) for _ in range(50)]
    for _ in range(placements):
        prompt = chance.choice(shared) + chain(chance, chance.randrange(2, 64))
        index.insert(f"node-{chance.randrange(nodes)}", prompt, NODE_BLOCKS)
    return index


def microseconds(call: Callable[[], object], calls: int) -> float:
    """Median over the rounds of the CPU time of one call."""
    rounds = []
    for _ in range(ROUNDS):
        begun = time.thread_time()
        for _ in range(calls):
            call()
        rounds.append((time.thread_time() - begun) / calls * 1e6)
    return statistics.median(rounds)


def bytes_per_entry(blocks_a_node: int, nodes: int) -> float:
    """Memory of an index whose nodes' caches have been filled three times over, by the blocks that it holds."""
    chance = random.Random(2)
    tracemalloc.start()
    try:
        index = PrefixIndex(2**40)
        for _ in range(3 * blocks_a_node // 100):
            for number in range(nodes):
                index.insert(f"node-{number}", chain(chance, 100), blocks_a_node)
        return tracemalloc.get_traced_memory()[0] / len(index)
    finally:
        tracemalloc.stop()


def bytes_per_entry_at_most(nodes: int, prompt_blocks: int) -> float:
    """The most memory of an entry, while an index fills from a quarter of the way on: a table just grown is emptiest.

    Nobody shares a prompt, and all go to the ten nodes that joined last, whose bits are the highest: the number that
    says which nodes have a block is then the longest, and each prompt has one of its own.
    """
    chance = random.Random(3)
    names = [f"node-{number}" for number in range(nodes)]
    tracemalloc.start()
    try:
        index = PrefixIndex(2**40)
        for name in names:
            index.insert(name, chain(chance, 1), ENTRIES)
        most = 0.0
        while len(index) < ENTRIES:
            index.insert(chance.choice(names[-10:]), chain(chance, prompt_blocks), ENTRIES)
            if len(index) > ENTRIES // 4:
                most = max(most, tracemalloc.get_traced_memory()[0] / len(index))
        return most
    finally:
        tracemalloc.stop()


def memory() -> Table:
    """What an entry takes by fleet and by prompt."""
    table = Table(title=f"bytes of a block at a node at most, {ENTRIES:,} in all", title_justify="left")
    for column in ("nodes", *(f"prompts of {blocks}" for blocks in PROMPTS_OF)):
        table.add_column(column, justify="right")
    for nodes in FLEETS_OF:
        table.add_row(f"{nodes:,}", *(f"{bytes_per_entry_at_most(nodes, blocks):.0f}" for blocks in PROMPTS_OF))
    return table


def main() -> None:
    """Print the tables."""
    chance = random.Random(1)
    index = placed(chance, PLACEMENTS, NODES)
    long = chain(chance, PROMPT_BLOCKS)
    rows = [("lookup, 100,000 tokens, unknown", microseconds(lambda: index.match(long), 1000), "µs")]
    for number in range(3):
        index.insert(f"node-{number}", long, NODE_BLOCKS)
    rows.append(("lookup, whole at three nodes", microseconds(lambda: index.match(long), 1000), "µs"))
    for number in range(NODES):
        index.insert(f"node-{number}", long[: PROMPT_BLOCKS * (number + 1) // NODES], NODE_BLOCKS)
    assert len(index.match(long)) == NODES
    rows.append((f"lookup, at {NODES} nodes to as many depths", microseconds(lambda: index.match(long), 100), "µs"))
    fresh = iter([chain(chance, PROMPT_BLOCKS) for _ in range(20 * ROUNDS)])
    new = microseconds(lambda: index.insert("node-0", next(fresh), NODE_BLOCKS), 20)
    rows.append(("insertion of a new block, another going", new / PROMPT_BLOCKS, "µs"))
    again = microseconds(lambda: index.insert("node-1", long, NODE_BLOCKS), 20)
    rows.append(("insertion of a known block", again / PROMPT_BLOCKS, "µs"))
    gone = iter([f"node-{number}" for number in range(NODES)])
    rows.append((f"forgetting a node of {NODE_BLOCKS} blocks", microseconds(lambda: index.forget(next(gone)), 5), "µs"))
    for blocks, nodes in ((20_000, 1), (22_000, 2), (NODE_BLOCKS, 10), (1000, 100)):
        rows.append((f"memory of a block, {nodes} nodes of {blocks}", bytes_per_entry(blocks, nodes), "bytes"))
    title = (
        f"prefix index · {machine()}\n{PLACEMENTS:,} placements on {NODES} nodes, {len(index):,} blocks left at the end"
    )
    table = Table(title=title, title_justify="left")
    for column in ("what", "cost", "unit", "aim"):
        table.add_column(column, justify="left" if column in {"what", "unit"} else "right")
    for what, cost, unit in rows:
        aim = f"< {LOOKUP_AIM_US}" if what.startswith("lookup") else f"<= {ENTRY_BYTES}" if unit == "bytes" else ""
        table.add_row(what, f"{cost:.2f}" if cost < 10 else f"{cost:.0f}", unit, aim)
    Console().print(table)
    Console().print(memory())


if __name__ == "__main__":
    main()
