"""The threads that encode long text, and the bound on what waits for them."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

T = TypeVar("T")

NICENESS: Final = 10
"""Of the threads, so that the event loop does not wait for a core. At 19 a thread may hold Python's lock while other
processes leave it no core: measured, the loop then stood for half a second."""


class Workers:
    """Threads started once, that give way to the event loop; `prepare` is called first in each of them.

    `bytes_max` bounds what is in them or waits for one, as callers weigh it.
    """

    def __init__(self, threads: int, bytes_max: int, prepare: Callable[[], None]) -> None:
        self.bytes_max = bytes_max
        self._threads = ThreadPoolExecutor(
            threads, thread_name_prefix="tokens", initializer=_begin, initargs=(prepare,)
        )
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._started = threading.Barrier(threads)
        for _ in range(threads):
            self._threads.submit(self._started.wait)  # so that each task starts a thread, and no request has to

    @property
    def waiting_bytes(self) -> int:
        """What is in the threads or waits for one."""
        return self._waiting_bytes

    def submit(self, work: Callable[[], T], weight: int) -> "asyncio.Future[T] | None":
        """Start work, on the event loop; `None` where too much waits, or after `close`.

        Cancelling the future drops work that has not begun, with all that it holds. What a thread is at goes on, and
        counts until it is through: a client that hangs up stops no encoding.
        """
        with self._lock:
            if self._waiting_bytes + weight > self.bytes_max:
                return None
            self._waiting_bytes += weight
        job = [work]

        def run() -> T:
            return job.pop()()

        try:
            future = self._threads.submit(run)
        except RuntimeError:  # closed
            self._release(weight)
            return None

        def ended(ended: "Future[T]") -> None:
            if ended.cancelled():
                job.clear()  # the pool's queue keeps what is cancelled until its turn comes
            self._release(weight)

        future.add_done_callback(ended)
        return asyncio.wrap_future(future)

    def close(self) -> None:
        """Drop what waits and let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._started.abort()

    def _release(self, weight: int) -> None:
        with self._lock:
            self._waiting_bytes -= weight


def _begin(prepare: Callable[[], None]) -> None:
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)  # Linux has it for each thread
    prepare()
