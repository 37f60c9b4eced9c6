"""Starts of `python -m extproc …` by forks of a process that has imported it; see `tests.forkserver`."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from extproc import children
from tests.forkserver import COMMANDS


class Forked(asyncio.Protocol):
    """A process that is not our child, as `asyncio.subprocess.Process` shows one: what `children.Child` needs of it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._told = b""
        self._pid: asyncio.Future[int] = loop.create_future()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._transport: asyncio.BaseTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """The fork server tells the pid in a line, and the exit status in another."""
        self._told += data
        if self._told.count(b"\n") == 2:
            self._transport.close()  # before anybody hears of it: who does may close the loop
        for future, line in zip((self._pid, self._ended), self._told.split(b"\n")[:-1], strict=False):
            if not future.done():
                future.set_result(int(line))

    def connection_lost(self, _: Exception | None) -> None:
        """The status is told, or the fork server is gone, and with it all that it started."""
        if not self._pid.done():
            self._pid.set_exception(ConnectionError("the fork server is gone"))
        if not self._ended.done():
            self._ended.set_result(-signal.SIGKILL)

    async def running(self) -> None:
        """Until there is a pid."""
        await self._pid

    @property
    def pid(self) -> int:
        return self._pid.result()

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


@contextmanager
def forking() -> Iterator[None]:
    """Within it, children that are `extproc serve`, `agent` or `emulate` are forked; the first starts the fork server.

    Not in a changed environment: a library may have read it when it was imported. So a test that wants a process of its
    own changes it. And on Linux only.
    """
    if sys.platform != "linux":
        yield
        return
    begun, environment, server = children.begun, _environment(), _ForkServer()

    async def forked(command: Sequence[str | Path], output: BinaryIO) -> asyncio.subprocess.Process:
        ours = list(command[:3]) == children.ourselves() and command[3:4] and command[3] in COMMANDS
        if not ours or _environment() != environment:
            return await begun(command, output)
        return cast(asyncio.subprocess.Process, await server.forked([str(one) for one in command[3:]], output))

    children.begun = forked
    try:
        yield
    finally:
        children.begun = begun
        server.end()


class _ForkServer:
    def __init__(self) -> None:
        self._asking: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def forked(self, arguments: list[str], output: BinaryIO) -> Forked:
        told, tell = os.pipe()
        message = json.dumps([arguments, str(Path.cwd())]).encode()
        socket.send_fds(self._server(), [message], [output.fileno(), tell])
        os.close(tell)
        _, process = await asyncio.get_running_loop().connect_read_pipe(Forked, os.fdopen(told, "rb"))
        await process.running()
        return process

    def end(self) -> None:
        if self._asking is not None and self._process is not None:
            self._asking.close()
            self._process.wait()

    def _server(self) -> socket.socket:
        if self._asking is None:
            self._asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with asked:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.forkserver", str(asked.fileno())],
                    cwd=Path(__file__).parent.parent,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[asked.fileno()],
                    start_new_session=True,
                )
        return self._asking


_OURS = {"TOKENIZERS_PARALLELISM": "false", "FASTOKENS_BPE_THREADS": "1", "GRPC_VERBOSITY": "ERROR"}.items()
"""What extproc itself sets as it is imported or begins: the same in each process, whenever that is."""


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST_") and (name, value) not in _OURS
    }
