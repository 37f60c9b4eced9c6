"""Whether each worker still answers: one whose event loop stands does not end, nor does it go on by itself.

    answers ──► silent for `ANSWER_S_MAX`: hung ──► answers again
                                               └──► silent for `HUNG_S_MAX`: killed, and so started again

One that refuses the question is about to end, or has: that is seen by whoever waits for its end.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import structlog

from extproc.workers.shares import admin_socket

ASKED_EACH_S: Final = 1.0
"""So long after an answer, or after none, a worker is asked again."""
ANSWER_S_MAX: Final = 2.0
"""One that says nothing for so long hangs."""
HUNG_S_MAX: Final = 30.0
"""One that is silent for so long is killed."""
HUNG_DRAINING_S_MAX: Final = 5.0
"""The same while it shall end."""

_ASKS: Final = b"GET /healthz HTTP/1.1\r\nhost: worker\r\nconnection: close\r\n\r\n"


class Mortal(Protocol):
    """A process."""

    @property
    def pid(self) -> int:
        """Its id."""

    def kill(self) -> None:
        """End it at once, whatever it does."""


class Pulse:
    """Feels that of workers, and tells in the log what it feels."""

    def __init__(
        self,
        folder: Path,
        draining: Callable[[], bool],
        clock: Callable[[], float],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._folder = folder
        self._draining = draining
        self._clock = clock
        self._log = log
        self.hung: set[int] = set()
        """Those that listen and do not answer."""

    async def watch(self, number: int, process: Mortal) -> None:
        """One life of a worker, from when it listens until it is killed, or this is cancelled."""
        at, silent_s = admin_socket(self._folder, number).path, 0.0
        try:
            while silent_s < (HUNG_DRAINING_S_MAX if self._draining() else HUNG_S_MAX):
                asked_s = self._clock()
                if await _is_silent(at):
                    if number not in self.hung:
                        self.hung.add(number)
                        self._log.warning("worker does not answer", worker=number, pid=process.pid)
                elif number in self.hung:
                    self.hung.remove(number)
                    self._log.info("worker answers again", worker=number, pid=process.pid)
                await asyncio.sleep(ASKED_EACH_S)
                # No more than that, however long we stood still ourselves.
                passed_s = min(self._clock() - asked_s, ANSWER_S_MAX + ASKED_EACH_S)
                silent_s = silent_s + passed_s if number in self.hung else 0.0
            self._log.error("worker is killed: it did not answer", worker=number, pid=process.pid, silent_s=silent_s)
            process.kill()
        finally:
            self.hung.discard(number)


async def _is_silent(path: str) -> bool:
    """Whether it takes a question and says nothing."""
    writer = None
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(_ASKS)
            await reader.read(1)
    except (TimeoutError, BlockingIOError):  # the latter: too many wait to be heard
        return True
    except OSError:
        return False
    finally:
        if writer is not None:
            writer.transport.abort()
    return False
