"""The processes that a supervisor starts, each watched from its start to its end."""

import asyncio
import contextlib
import os
import signal
from multiprocessing import get_context
from multiprocessing.connection import Connection

from extproc.workers.worker import Orders, Word, run

_SPAWN = get_context("spawn")  # what is forked in the midst of gRPC's threads may hang


class WorkerProcess:
    """One life of a worker."""

    def __init__(self, orders: Orders) -> None:
        """Start it."""
        self._told, theirs = _SPAWN.Pipe(duplex=False)
        # Not a daemon: multiprocessing would end those by SIGTERM and wait for each, however we end.
        self._process = _SPAWN.Process(target=run, args=(orders, theirs), name=f"worker-{orders.number}")
        self._process.start()
        self._over = False
        theirs.close()  # so that the pipe ends with the process

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None, "it was started"
        return self._process.pid

    async def word(self) -> Word | None:
        """What it tells next; `None`: it has ended."""
        await _readable(self._told)
        try:
            word: Word = self._told.recv()
        except (EOFError, OSError):
            return None
        return word

    async def ended(self) -> int:
        """Wait for its end; its exit status, negative for a signal."""
        while await self.word() is not None:
            pass
        await asyncio.to_thread(self._process.join)
        self._over = True
        self._told.close()
        return self._process.exitcode or 0

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a process that has ended gets none."""
        if not self._over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.signal(signal.SIGKILL)


async def _readable(connection: "Connection[Word, Word]") -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection.fileno(), _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(connection.fileno())


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
