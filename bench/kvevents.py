"""What KV events cost: an agent to hear and tell them, a router to keep and look them up.

    .venv/bin/python -m bench.kvevents

An engine of so many blocks, whose cache is full, computes prompts of 32 blocks behind one of 50 shared beginnings and
drops as many blocks as it stores, as batches of the form that vLLM publishes. A lookup is of a prompt of 4,096 blocks
(65,536 tokens) among 100 nodes. Medians of several rounds, CPU time of this thread; ZeroMQ and gRPC are not part of it.
"""

import random
import statistics
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec.msgpack import encode
from rich.console import Console
from rich.table import Table

from bench.machine import machine
from extproc.agent.kv.blocks import EngineBlocks
from extproc.agent.kv.events import batch_of
from extproc.agent.kv.told import KvTold
from extproc.agent.kv.watch import KvReport, KvWatch
from extproc.core.kvcoming import ComingBlocks
from extproc.core.kvindex import ENTRY_BYTES, KvIndex
from extproc.kvchain import BLOCK_TOKENS, token_blocks_of
from extproc.nodes.wire import kv_blocks_of
from extproc.pb.nodes_pb2 import AgentMessage

NODES = 100
ASKED_BLOCKS = 4096
SIZES = (1, 16, 32, 784)
"""Tokens in an engine's block."""
ENGINE_TOKENS = 400_000
PROMPT_TOKENS = 1568
ROUNDS = 7


class Engine:
    """Publishes prompts, and the removal of the oldest ones of its own."""

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        self._chance = random.Random(1)
        self._hash = 0
        self._kept: deque[list[int]] = deque()
        self.blocks = 0

    def batch(self) -> bytes:
        """A prompt stored, and as many blocks removed once the cache is full."""
        size = self._size
        count = PROMPT_TOKENS // size
        hashes = list(range(self._hash, self._hash + count))
        self._hash += count
        tokens = [self._chance.randrange(150_000) for _ in range(count * size)]
        event: dict[str, Any] = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None}
        event |= {"token_ids": tokens}
        event |= {"block_size": size, "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": [None] * count}
        events = [event]
        self._kept.append(hashes)
        self.blocks += count
        if self.blocks * size > ENGINE_TOKENS:
            gone = self._kept.popleft()
            self.blocks -= len(gone)
            events += [{"type": "BlockRemoved", "block_hashes": [one], "medium": "GPU"} for one in reversed(gone)]
        return encode([0.0, events, 0])

    def fill(self) -> list[bytes]:
        """As many prompts as its cache holds."""
        return [self.batch() for _ in range(ENGINE_TOKENS // PROMPT_TOKENS)]


def microseconds(call: Callable[[], object], calls: int = 1) -> float:
    """CPU time of one call."""
    begun = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - begun) / calls * 1e6


def agent_rows(size: int) -> list[tuple[str, float, str]]:
    """Of an engine with blocks of so many tokens."""
    engine = Engine(size)
    watch = KvWatch(1, 10_000_000)
    tracemalloc.start()
    sequence = -1
    for sequence, payload in enumerate(engine.fill()):
        watch.heard(0, sequence, payload, 0.0)
    watch.report("n", "b")
    memory = tracemalloc.get_traced_memory()[0] / engine.blocks
    tracemalloc.stop()
    a_batch = PROMPT_TOKENS // size
    decoding, hearing, cutting = [], [], []
    for _ in range(ROUNDS):
        payloads = [engine.batch() for _ in range(30)]
        decoding.append(microseconds(lambda: [batch_of(one) for one in payloads]) / 30 / a_batch)  # noqa: B023

        def hear() -> None:
            nonlocal sequence
            for payload in payloads:  # noqa: B023
                sequence += 1
                watch.heard(0, sequence, payload, 0.0)

        hearing.append(microseconds(hear) / 30 / a_batch)
        cutting.append(microseconds(lambda: watch.report("n", "b")) / 30 / a_batch)
    name = f"blocks of {size} tokens: "
    return [
        (f"{name}decoding, of one stored and one removed", statistics.median(decoding), "µs"),
        (f"{name}all of hearing them", statistics.median(hearing), "µs"),
        (f"{name}the report", statistics.median(cutting), "µs"),
        (f"{name}memory of one", memory, "bytes"),
    ]


def wire_rows() -> list[tuple[str, float, str]]:
    """From the agent's report to the router's event, for one block of ours."""
    chance = random.Random(2)
    numbers = [chance.getrandbits(64) for _ in range(20_000)]
    parse = AgentMessage.FromString
    blocks = EngineBlocks(1)
    for number in numbers:
        blocks._numbers.hold(number)
    written, read = [], []
    messages: list[bytes] = []
    for _ in range(ROUNDS):

        def write() -> None:
            messages.clear()
            told = KvTold()
            told.offer(KvReport("n", "b", blocks, (), ()), 0.0)
            while told:
                messages.append(told.message().SerializeToString())

        written.append(microseconds(write) / len(numbers))
        read.append(microseconds(lambda: [kv_blocks_of(parse(one).kv_blocks) for one in messages]) / len(numbers))
    return [
        ("agent: one block made a message", statistics.median(written), "µs"),
        ("router: one block off the wire", statistics.median(read), "µs"),
        ("one block on the wire", sum(map(len, messages)) / len(numbers), "bytes"),
    ]


def index_rows() -> list[tuple[str, float, str]]:
    """A router's index of 100 nodes."""
    chance = random.Random(3)
    index = KvIndex(2**40, 2**40)
    own = ENGINE_TOKENS // BLOCK_TOKENS // 4
    long = token_blocks_of(range(ASKED_BLOCKS * BLOCK_TOKENS))
    telling, memory = [], 0.0
    tracemalloc.start()
    for number in range(NODES):
        blocks = [chance.getrandbits(64) for _ in range(own)]
        index.told(f"node-{number}", blocks)
        del blocks
        memory = max(memory, tracemalloc.get_traced_memory()[0] / len(index))
    tracemalloc.stop()
    rows = [("memory of a block at a node, at most", memory, "bytes")]
    nobody = tuple(chance.getrandbits(64) for _ in range(ASKED_BLOCKS))
    unknown = statistics.median(microseconds(lambda: index.match(nobody, {}), 1000) for _ in range(ROUNDS))
    for number in range(3):
        index.told(f"node-{number}", long)
    whole = statistics.median(microseconds(lambda: index.match(long, {}), 10) for _ in range(ROUNDS))
    for number in range(NODES):
        index.told(f"node-{number}", long[: ASKED_BLOCKS * (number + 1) // NODES])
    assert len(index.match(long, {})) == NODES
    everywhere = statistics.median(microseconds(lambda: index.match(long, {}), 10) for _ in range(ROUNDS))
    coming = ComingBlocks(2**40)
    coming.sent("r", "node-5", index.bit("node-5"), long)
    on_its_way = statistics.median(microseconds(lambda: index.match(long, coming.masks), 10) for _ in range(ROUNDS))
    for turn in range(ROUNDS):
        fresh = [chance.getrandbits(64) for _ in range(1000)]
        telling.append(microseconds(lambda: index.told(f"node-{turn}", fresh)) / 1000)  # noqa: B023
        telling.append(microseconds(lambda: index.told(f"node-{turn}", (), fresh)) / 1000)  # noqa: B023

    def send() -> None:
        coming.sent("x", "node-6", index.bit("node-6"), long)
        coming.over("x")

    sending = [microseconds(send) for _ in range(ROUNDS)]
    gone = [microseconds(lambda: index.forget(f"node-{number}")) for number in range(20, 20 + ROUNDS)]  # noqa: B023
    rows += [
        ("a block told, or told to be gone", statistics.median(telling), "µs"),
        (f"lookup of {ASKED_BLOCKS} blocks, unknown", unknown, "µs"),
        (f"lookup of {ASKED_BLOCKS} blocks, whole at three nodes", whole, "µs"),
        (f"lookup of {ASKED_BLOCKS} blocks, at {NODES} nodes to as many depths", everywhere, "µs"),
        ("the same, with a prompt on its way", on_its_way, "µs"),
        (f"a prompt of {ASKED_BLOCKS} blocks sent, and over", statistics.median(sending), "µs"),
        (f"forgetting a node of {own} blocks", statistics.median(gone), "µs"),
    ]
    return rows


def main() -> None:
    """Print the table."""
    ids = list(range(ASKED_BLOCKS * BLOCK_TOKENS))
    chain = statistics.median(microseconds(lambda: token_blocks_of(ids)) for _ in range(ROUNDS)) / ASKED_BLOCKS
    rows = [("one number of the chain, from token ids", chain, "µs")]
    for size in SIZES:
        rows += agent_rows(size)
    rows += wire_rows() + index_rows()
    table = Table(title=f"KV events · {machine()}\nan entry is reckoned with {ENTRY_BYTES} bytes", title_justify="left")
    for column in ("what", "cost", "unit"):
        table.add_column(column, justify="right" if column == "cost" else "left")
    for what, cost, unit in rows:
        table.add_row(what, f"{cost:.2f}" if cost < 10 else f"{cost:.0f}", unit)
    Console().print(table)


if __name__ == "__main__":
    main()
