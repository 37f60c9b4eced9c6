"""What vLLM says of its KV blocks: kept as it came, and what the agent's numbers of blocks promise of a prompt."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq
import zmq.asyncio

from bench.realvllm.recording import At, Values
from extproc.kvchain import BLOCK_TOKENS, token_blocks_of

TOPIC: Final = "kv-events"


@dataclass(slots=True)
class Heard:
    """What came, for a recording."""

    batches: list[tuple[float, int, Any]] = field(default_factory=list)
    """When, which number, what."""
    repeats: list[tuple[float, list[int], int]] = field(default_factory=list)
    """When, which prompt was asked again, and how many of its tokens vLLM found in its cache."""


def found_tokens(prompt: list[int], held: Container[int], block_tokens: int) -> int:
    """Tokens of a prompt that vLLM should find in its cache: whole blocks of its own, never the last token. `held` are
    the numbers of our blocks that are there."""
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
    found, context = Heard(), zmq.asyncio.Context()
    keeping = asyncio.create_task(_keep(context, path, found, clock))
    try:
        yield found
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        context.destroy(linger=0)


async def _keep(context: zmq.asyncio.Context, path: Path, found: Heard, clock: Callable[[], float]) -> None:
    socket = context.socket(zmq.SUB)
    socket.subscribe(TOPIC)
    socket.connect(f"ipc://{path}")
    while True:
        _, number, payload = await socket.recv_multipart()
        found.batches.append((clock(), int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))
