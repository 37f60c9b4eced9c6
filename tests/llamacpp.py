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
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import gguf
import numpy as np

from tests.waiting import until

PROJECT = Path(__file__).parent.parent
MODEL = "tiny-llama"
CONTEXT_TOKENS = 2048
SLOTS = 2
EMBEDDING, LAYERS, HEADS, FEED_FORWARD = 512, 4, 8, 1536


@dataclass(frozen=True)
class LlamaCppServer:
    """One running server."""

    url: str
    model: str
    process: asyncio.subprocess.Process


@contextlib.asynccontextmanager
async def llamacpp_server(folder: Path) -> AsyncIterator[LlamaCppServer]:
    """Start a server with two slots of 1,024 tokens each, wait until it is healthy, and end it afterwards."""
    model_file = folder / f"{MODEL}.gguf"
    if not model_file.exists():
        await asyncio.to_thread(write_model, model_file)
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


def write_model(path: Path) -> None:
    """Write a llama with random weights and a vocabulary of single bytes; 28 MB, so that a token takes some ms."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(MODEL)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(EMBEDDING // HEADS)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)

    # GPT-2's alphabet: every byte is one printable character; two merges, since an empty list is refused.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    alphabet = [chr(byte) for byte in printable] + [chr(0x100 + place) for place in range(len(hidden))]
    tokens = [*alphabet, "th", "the", "<|end|>"]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([normal] * (len(tokens) - 1) + [control])
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")

    chance = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", (chance.random(shape, dtype=np.float32) - 0.5).astype(np.float16) / 8)

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(EMBEDDING, dtype=np.float32))

    add("token_embd", len(tokens), EMBEDDING)
    for layer in range(LAYERS):
        add_norm(f"blk.{layer}.attn_norm")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{part}", EMBEDDING, EMBEDDING)
        add_norm(f"blk.{layer}.ffn_norm")
        add(f"blk.{layer}.ffn_gate", FEED_FORWARD, EMBEDDING)
        add(f"blk.{layer}.ffn_up", FEED_FORWARD, EMBEDDING)
        add(f"blk.{layer}.ffn_down", EMBEDDING, FEED_FORWARD)
    add_norm("output_norm")
    add("output", len(tokens), EMBEDDING)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
