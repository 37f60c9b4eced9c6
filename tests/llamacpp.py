"""A real llama.cpp server for tests: random weights in a GGUF file made here, served by a process of its own.

async with llamacpp_server(tmp_path) as server:
    ...  # server.url, server.model

As a program it is that process: `python -m tests.llamacpp MODEL_FILE PORT`.
"""

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import gguf
import numpy as np

from tests.waiting import until

PROJECT = Path(__file__).parent.parent
MODEL = "tiny-llama"
CONTEXT_TOKENS = 4096
SLOTS = 2


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE as GGUF has it: a token's id is its place."""

    pre: str
    """llama.cpp's name of the way to split text before merging."""
    tokens: list[str]
    types: list[gguf.TokenType]
    merges: list[str]
    """Never empty: llama.cpp refuses that."""
    bos: str | None
    eos: str
    adds_bos: bool
    chat_template: str | None


@dataclass(frozen=True)
class Size:
    """A llama's dimensions."""

    embedding: int
    layers: int
    heads: int
    feed_forward: int


SLOW = Size(embedding=512, layers=4, heads=8, feed_forward=1536)
"""28 MB with few tokens: one takes some ms."""
TINY = Size(embedding=64, layers=1, heads=2, feed_forward=64)
"""For vocabularies of real size: 128 bytes for each token, and no time spent on it."""


@dataclass(frozen=True)
class LlamaCppServer:
    """One running server."""

    url: str
    model: str
    process: asyncio.subprocess.Process


def write_slow_model(path: Path) -> None:
    """Write a llama of single bytes that takes its time."""
    write_model(path, single_bytes(), SLOW)


@contextlib.asynccontextmanager
async def llamacpp_server(
    folder: Path, write: Callable[[Path], None] = write_slow_model
) -> AsyncIterator[LlamaCppServer]:
    """Start a server with two slots of 2,048 tokens each, wait until it is healthy, and end it afterwards."""
    model_file = folder / f"{MODEL}.gguf"
    if not model_file.exists():
        await asyncio.to_thread(write, model_file)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    log_file = folder / f"llamacpp-{port}.log"
    with log_file.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.llamacpp", str(model_file), str(port)), cwd=PROJECT, stdout=log, stderr=log
        )
    server = LlamaCppServer(f"http://127.0.0.1:{port}", MODEL, process)

    async def healthy() -> bool:
        assert process.returncode is None, log_file.read_text(errors="replace")
        try:
            async with session.get(f"{server.url}/health") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            await until(healthy, within_s=60)
        yield server
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def single_bytes() -> Vocabulary:
    """GPT-2's alphabet, in which every byte is one printable character, and two merges."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    alphabet = [chr(byte) for byte in printable] + [chr(0x100 + place) for place in range(len(hidden))]
    tokens = [*alphabet, "th", "the", "<|end|>"]
    return Vocabulary(
        pre="default",
        tokens=tokens,
        types=[gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL],
        merges=["t h", "th e"],
        bos="<|end|>",
        eos="<|end|>",
        adds_bos=False,
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    )


def write_model(path: Path, vocabulary: Vocabulary, size: Size) -> None:
    """Write a llama with random weights, its output tied to its embedding."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(MODEL)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(size.embedding)
    writer.add_block_count(size.layers)
    writer.add_feed_forward_length(size.feed_forward)
    writer.add_head_count(size.heads)
    writer.add_head_count_kv(size.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(size.embedding // size.heads)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _add_vocabulary(writer, vocabulary)

    chance = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", (chance.random(shape, dtype=np.float32) - 0.5).astype(np.float16) / 8)

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(size.embedding, dtype=np.float32))

    add("token_embd", len(vocabulary.tokens), size.embedding)
    for layer in range(size.layers):
        add_norm(f"blk.{layer}.attn_norm")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{part}", size.embedding, size.embedding)
        add_norm(f"blk.{layer}.ffn_norm")
        add(f"blk.{layer}.ffn_gate", size.feed_forward, size.embedding)
        add(f"blk.{layer}.ffn_up", size.feed_forward, size.embedding)
        add(f"blk.{layer}.ffn_down", size.embedding, size.feed_forward)
    add_norm("output_norm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_eos_token_id(vocabulary.tokens.index(vocabulary.eos))
    if vocabulary.bos is not None:
        writer.add_bos_token_id(vocabulary.tokens.index(vocabulary.bos))
    writer.add_add_bos_token(vocabulary.adds_bos)
    if vocabulary.chat_template is not None:
        writer.add_chat_template(vocabulary.chat_template)


def _serve(model_file: str, port: int) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model_file
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = SLOTS
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.use_jinja = True
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
