"""A real vLLM on this machine's processors, with a KV cache that a few requests fill."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from bench.realvllm.kvcache import TOPIC
from bench.realvllm.model import CONTEXT_TOKENS, MODEL
from bench.realvllm.recording import Recording
from extproc.address import TcpAddress
from extproc.children import Child, ChildFailedError

KV_BLOCKS: Final = 160
KV_BLOCK_TOKENS: Final = 32
START_S_MAX: Final = 600.0
"""Most of a start are Python's imports: 40 s on an idle machine, minutes on a busy one."""
STOP_S_MAX: Final = 30.0
POLL_S: Final = 0.02
_SETTINGS: Final = (
    "HF_HUB_OFFLINE=1",
    "VLLM_NO_USAGE_STATS=1",
    "VLLM_CPU_KVCACHE_SPACE=1",
    "VLLM_LOG_STATS_INTERVAL=1",
    "VLLM_SERVER_DEV_MODE=1",  # the calls that put it to sleep
)
_OPTIONS: Final = (
    *("--served-model-name", MODEL, "--load-format", "dummy", "--max-model-len", str(CONTEXT_TOKENS)),
    *("--block-size", str(KV_BLOCK_TOKENS), "--num-gpu-blocks-override", str(KV_BLOCKS)),
    *("--enforce-eager", "--enable-prompt-tokens-details"),
)
_EVENTS: Final = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": TOPIC}
_STATISTICS: Final = re.compile(r"Engine \d+: (Avg prompt throughput.*)")


class Vllm:
    """One vLLM at one address, which may be stopped and started again. Its log lines go into the recording."""

    def __init__(
        self, python: Path, model: Path, kv_events: Path, recording: Recording, clock: Callable[[], float]
    ) -> None:
        self.address = TcpAddress("127.0.0.1", _free_port())
        self._command = [
            *("env", *_SETTINGS, str(python), "-m", "vllm.entrypoints.openai.api_server"),
            *("--host", self.address.host, "--port", str(self.address.port), "--model", str(model), *_OPTIONS),
            *("--kv-events-config", json.dumps(_EVENTS | {"endpoint": f"ipc://{kv_events}"})),
        ]
        self._folder = model.parent
        self._recording = recording
        self._clock = clock
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.address}"

    async def start(self) -> None:
        """Begin to start."""
        self._child = await Child.start("vllm", self._command, self._folder)

    async def healthy(self, client: aiohttp.ClientSession) -> None:
        """Wait until it answers. Raises ChildFailedError."""
        deadline_s = self._clock() + START_S_MAX
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with client.get(f"{self.url}/health") as response:
                    if response.status == 200:
                        return
            self.check()
            if self._clock() > deadline_s:
                msg = f"vLLM did not answer within {START_S_MAX:.0f} s; its log is in {self._folder}"
                raise ChildFailedError(msg)
            await asyncio.sleep(POLL_S)

    def check(self) -> None:
        """Raise ChildFailedError if it has ended."""
        assert self._child is not None
        self._child.check()

    async def stop(self) -> None:
        """End it and its workers, which are in its session."""
        if self._child is None:
            return
        await self._child.stop(STOP_S_MAX)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child = None

    async def follow_log(self) -> None:
        """Record its statistics as it writes them, until cancelled."""
        log = self._folder / "vllm.log"
        log.touch()
        with log.open() as lines:
            begun = ""
            while True:
                begun += lines.readline()
                if not begun.endswith("\n"):
                    await asyncio.sleep(POLL_S)
                    continue
                if found := _STATISTICS.search(begun):
                    self._recording.logs.append((self._clock(), found[1]))
                begun = ""


@asynccontextmanager
async def real_vllm(
    python: Path, model: Path, kv_events: Path, recording: Recording, clock: Callable[[], float]
) -> AsyncIterator[Vllm]:
    """A vLLM that is not started yet; it ends with the block."""
    vllm = Vllm(python, model, kv_events, recording, clock)
    following = asyncio.create_task(vllm.follow_log())
    try:
        yield vllm
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await vllm.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
