"""Processes that compute for this one and never outlive it, however it ends."""

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
"""What ends this process without a word; Ctrl-C raises `KeyboardInterrupt` in any case."""


@contextmanager
def of(processes: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of so many, at least 1.

    Whatever the body raises ends them at once, in the midst of their work. Meanwhile `SIGTERM` and `SIGHUP` raise
    `SystemExit` with the status that a shell would tell, 128 and the signal's number.
    """
    before = set(active_children())
    # A fresh interpreter for each process: what is forked in the midst of threads may hang.
    with _signals_raise(), ProcessPoolExecutor(processes, get_context("spawn"), _begin) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(active_children()) - before:
                child.terminate()
            raise


def _begin() -> None:
    """Run in each process first. A terminal's Ctrl-C reaches it too: its parent says when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """As by SIGKILL, of which a parent cannot tell."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _signals_raise() -> Iterator[None]:
    if current_thread() is not main_thread():  # which alone may say what signals do
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:  # else somebody else's, or ignored, as by nohup
            signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, handler)


def _end(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one does not wait
    sys.exit(128 + number)
