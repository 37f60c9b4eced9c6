"""A real `nats-server` for a test, on a port from the system, which can be killed and come back there."""

import asyncio
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

BINARY = Path(sys.executable).with_name("nats-server")
_LISTENS = re.compile(rb"Listening for client connections on [^\n]*:(\d+)\n")
_READY = b"Server is ready"
START_S_MAX = 20.0


class NatsServer:
    """`config` is text in the server's own format; of addresses and ports it says nothing."""

    def __init__(self, folder: Path, config: str = "") -> None:
        self._config = folder / "nats.conf"
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.log = b""
        """What it has written, of all its starts."""
        self.configure(config)

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def configure(self, config: str) -> None:
        """Counts from the next start."""
        self._config.write_text(config)

    async def start(self) -> None:
        """On the port that it had before, if it had one; returns when it answers."""
        where = ("-a", "127.0.0.1", "-p", str(self._port or -1), "-c", str(self._config))
        process = await asyncio.create_subprocess_exec(
            str(BINARY), *where, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        self._process = process
        began = len(self.log)
        async with asyncio.timeout(START_S_MAX):
            while _READY not in self.log[began:]:
                assert await self._read(process), self.log[began:].decode(errors="replace")
        listens = _LISTENS.search(self.log, began)
        assert listens is not None
        self._port = int(listens[1])
        self._reading = asyncio.create_task(self._read_on(process))

    async def restart(self, config: str | None = None) -> None:
        """With another configuration, if one is given."""
        await self.kill()
        if config is not None:
            self.configure(config)
        await self.start()

    async def stop(self) -> None:
        """As an operator does: it says goodbye to its clients."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def _end(self, by: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.send_signal(by)
        await self._process.wait()
        if self._reading is not None:
            await self._reading
        self._process = self._reading = None

    async def _read(self, process: asyncio.subprocess.Process) -> bytes:
        assert process.stderr is not None
        read = await process.stderr.read(65536)
        self.log += read
        return read

    async def _read_on(self, process: asyncio.subprocess.Process) -> None:
        while await self._read(process):
            pass


@asynccontextmanager
async def nats_server(config: str = "") -> AsyncIterator[NatsServer]:
    """One that runs, and is killed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder), config)
        try:
            await server.start()
            yield server
        finally:
            await server.kill()
