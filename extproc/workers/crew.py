"""The workers of a supervisor: started, watched, and started again when they end."""

import asyncio
import secrets
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import structlog

from extproc.address import Address
from extproc.config import Config
from extproc.core.settings import Fault
from extproc.ops import logs
from extproc.workers import addresses
from extproc.workers.process import WorkerProcess
from extproc.workers.pulse import Pulse
from extproc.workers.shares import config_of
from extproc.workers.worker import Listens, Orders, Refused, Word

PAUSE_S_MIN: Final = 0.1
"""A worker that ended is started again after so long; after twice as long each time that it lived shorter than
`LIVED_S`, up to `PAUSE_S_MAX`."""
PAUSE_S_MAX: Final = 5.0
LIVED_S: Final = 10.0
SEED_BITS: Final = 64


class Watcher(Protocol):
    """Who is told that workers come and go."""

    def up(self, number: int) -> None:
        """It listens."""

    async def down(self, number: int) -> None:
        """It has ended."""


class RefusedError(Exception):
    """A worker cannot start at all, for these reasons."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults


class Crew:
    """All workers of one configuration. Each that ends is started again, until `stop`."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        watcher: Watcher,
        clock: Callable[[], float],
        log: structlog.typing.FilteringBoundLogger,
        log_format: logs.LogFormat,
        log_level: str,
    ) -> None:
        self._config = config
        self._folder = folder
        self._watcher = watcher
        self._clock = clock
        self._log = log
        self._log_format = log_format
        self._log_level = log_level
        self._prefix_seed = secrets.randbits(SEED_BITS)
        self._at: list[Address] = addresses.of(config)
        self._processes: dict[int, WorkerProcess] = {}
        self._lives: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._pulse = Pulse(folder, self._stopping.is_set, clock, log)
        self.listening: set[int] = set()
        """Those that serve now, or hang."""
        self.restarts = 0
        """Of all workers, since the start."""

    @property
    def hung(self) -> set[int]:
        """Those of `listening` that do not answer."""
        return self._pulse.hung & self.listening

    @property
    def pids(self) -> dict[int, int]:
        """Of each worker that is not being waited for."""
        return {number: one.pid for number, one in sorted(self._processes.items())}

    async def start(self) -> list[Address]:
        """Start all, and wait until they listen; where. Raises `RefusedError`; then none is left."""
        started = [asyncio.get_running_loop().create_future() for _ in self._at]
        for number, one in enumerate(started):
            self._lives.append(asyncio.create_task(self._live(number, one)))
        try:
            await asyncio.gather(*started)
        except BaseException:
            self.kill()
            await self.stop(0)
            for one in started:
                if not one.cancel() and not one.cancelled():
                    one.exception()  # the first of them is told
            raise
        return list(self._at)

    async def stop(self, within_s: float) -> None:
        """Let all drain, and end those that take longer."""
        self._stopping.set()
        for one in self._processes.values():
            one.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within_s):
                await asyncio.shield(self._all_ended())
        except TimeoutError:
            self.kill()
            await self._all_ended()

    def kill(self) -> None:
        """End all at once."""
        self._stopping.set()
        for one in self._processes.values():
            one.kill()

    async def _all_ended(self) -> None:
        await asyncio.gather(*self._lives)

    async def _live(self, number: int, started: "asyncio.Future[None]") -> None:
        """A worker's lives, one after the other."""
        pause_s = PAUSE_S_MIN
        while True:
            began_s = self._clock()
            self._processes[number] = process = WorkerProcess(self._orders(number))
            word = await process.word()
            feeling = None
            if isinstance(word, Listens):
                self._at[number] = word.extproc
                self.listening.add(number)
                self._watcher.up(number)
                if started.done():
                    self._log.info("worker is there again", worker=number, pid=process.pid, extproc=str(word.extproc))
                else:
                    started.set_result(None)
                feeling = asyncio.create_task(self._pulse.watch(number, process))
            status = await process.ended()
            if feeling is not None:
                feeling.cancel()
            del self._processes[number]
            self.listening.discard(number)
            await self._watcher.down(number)
            if self._stopping.is_set():
                if not started.done():
                    started.cancel()
                return
            if not started.done():
                started.set_exception(RefusedError(self._faults_of(word, number, status)))
                return
            if self._clock() - began_s >= LIVED_S:
                pause_s = PAUSE_S_MIN
            faults = [str(one) for one in word.faults] if isinstance(word, Refused) else []
            self._log.error("worker has ended", worker=number, status=status, again_in_s=pause_s, faults=faults)
            if await self._stopped_within(pause_s):
                return
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            self.restarts += 1

    def _orders(self, number: int) -> Orders:
        config = config_of(self._config, number, self._at[number], self._folder)
        return Orders(number, config, self._folder, self._prefix_seed, self._log_format, self._log_level)

    def _faults_of(self, word: Word | None, number: int, status: int) -> list[Fault]:
        if not isinstance(word, Refused):
            got = f"worker {number} ended with status {status}; see the log"
            return [Fault("workers", "processes that start", got)]
        at = str(self._at[number])
        return [
            replace(one, path="listen.extproc", wanted=f"{one.wanted} by worker {number}")
            if one.path == "listen" and one.got.startswith(at)
            else one
            for one in word.faults
        ]

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True
