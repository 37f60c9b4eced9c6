"""What vLLM itself says of its KV blocks, heard by our own subscriber, and what our numbering of blocks makes of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import zmq
import zmq.asyncio

from bench.realvllm.recording import At, Values
from extproc.agent.kvsettings import KvEventsConfig
from extproc.agent.kvsubscriber import KvSubscriber
from extproc.agent.kvwatch import KvWatch
from extproc.kvchain import BLOCK_TOKENS, token_blocks_of

TOPIC: Final = "kv-events"
BLOCKS_MAX: Final = 10_000


@dataclass(slots=True)
class Heard:
    """Batches as they came, and what is known by them."""

    watch: KvWatch
    batches: list[tuple[float, int, Any]] = field(default_factory=list)
    """When, which number, what."""
    repeats: list[tuple[float, list[int], int]] = field(default_factory=list)
    """When, which prompt was asked again, and how many of its tokens vLLM found in its cache."""

    def cached_tokens(self, prompt: list[int], block_tokens: int) -> int | None:
        """Tokens of a prompt that vLLM should find in its cache: whole blocks of its own, never the last token.

        `None`: it is not known what is there.
        """
        if not self.watch.known:
            return None
        return found_tokens(prompt, self.watch.blocks.held, block_tokens)


def found_tokens(prompt: list[int], held: Any, block_tokens: int) -> int:
    """The same out of the numbers of our blocks that are there."""
    depth = 0
    for number in token_blocks_of(prompt):
        if number not in held:
            break
        depth += 1
    return min(depth * BLOCK_TOKENS, len(prompt) - 1) // block_tokens * block_tokens


def written(heard: Heard, pages: Sequence[At[Values]], path: Path) -> None:
    """Write as JSON lines, by their times: `{"t_s", "number", "batch"}`, `{"t_s", "prompt", "cached"}`, and where the
    prefix counters of `pages` changed `{"t_s", "queries", "hits"}`."""
    lines: list[dict[str, Any]] = [{"t_s": at_s, "number": one, "batch": batch} for at_s, one, batch in heard.batches]
    lines += [{"t_s": at_s, "prompt": prompt, "cached": cached} for at_s, prompt, cached in heard.repeats]
    before: dict[str, float] = {}
    for at_s, series in pages:
        counted = {
            name: float(value)
            for name in ("queries", "hits")
            for key, value in series.items()
            if key.startswith(f"vllm:prefix_cache_{name}_total")
        }
        if counted != before:
            lines.append({"t_s": at_s, **counted})
        before = counted
    lines.sort(key=lambda line: line["t_s"])
    texts = (json.dumps(line | {"t_s": round(line["t_s"], 3)}, separators=(",", ":")) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts))


@asynccontextmanager
async def heard(path: Path, clock: Callable[[], float]) -> AsyncIterator[Heard]:
    """Hear a vLLM that publishes at a socket file, from before it starts on."""
    config = KvEventsConfig(endpoint=f"ipc://{path}", topic=TOPIC, blocks_max=BLOCKS_MAX)
    found = Heard(KvWatch(1, config.blocks_max))
    context = zmq.asyncio.Context()
    log = structlog.get_logger("kv events")
    tasks = [
        asyncio.create_task(KvSubscriber(config, found.watch, clock, log).run(context)),
        asyncio.create_task(_keep(context, config, found, clock)),
    ]
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        context.destroy(linger=0)


async def _keep(context: zmq.asyncio.Context, config: KvEventsConfig, found: Heard, clock: Callable[[], float]) -> None:
    socket = context.socket(zmq.SUB)
    socket.subscribe(config.topic)
    socket.connect(config.endpoint)
    while True:
        _, number, payload = await socket.recv_multipart()
        found.batches.append((clock(), int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))
