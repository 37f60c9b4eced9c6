import asyncio
import os
import threading
import weakref
from collections.abc import Iterator

import pytest

from extproc.tokens.workers import NICENESS, Workers
from tests.waiting import until


class Gate:
    """Holds the threads that come to it."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.held = 0

    def pass_through(self) -> str:
        self.held += 1
        assert self.go.wait(20)
        return threading.current_thread().name


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.go.set()


async def test_threads_are_there_prepared_and_of_low_priority_before_the_first_work() -> None:
    prepared: list[int] = []
    workers = Workers(3, 100, lambda: prepared.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
    await until(lambda: len(prepared) == 3)
    assert prepared == [os.getpriority(os.PRIO_PROCESS, 0) + NICENESS] * 3
    workers.close()


async def test_what_waits_is_bounded_and_released(gate: Gate) -> None:
    workers = Workers(1, 100, lambda: None)
    first, second = workers.submit(gate.pass_through, 60), workers.submit(gate.pass_through, 40)
    assert workers.submit(gate.pass_through, 1) is None
    assert workers.waiting_bytes == 100
    assert first is not None
    assert second is not None
    gate.go.set()
    assert (await first).startswith("tokens")
    await second
    await until(lambda: workers.waiting_bytes == 0)
    workers.close()


class Text:
    """Something that work holds."""

    def use(self) -> None:
        pass


async def test_cancelled_work_holds_nothing_while_its_turn_has_not_come(gate: Gate) -> None:
    workers = Workers(1, 100, lambda: None)
    assert workers.submit(gate.pass_through, 10) is not None
    await until(lambda: gate.held == 1)
    text = Text()
    alive = weakref.ref(text)
    waiting = workers.submit(text.use, 50)
    assert waiting is not None
    del text
    waiting.cancel()
    await asyncio.sleep(0)
    await until(lambda: workers.waiting_bytes == 10)
    assert alive() is None
    gate.go.set()
    workers.close()


async def test_what_work_raises_is_raised_to_whoever_waits() -> None:
    def fails() -> None:
        msg = "a fault"
        raise ValueError(msg)

    workers = Workers(1, 100, lambda: None)
    running = workers.submit(fails, 10)
    assert running is not None
    with pytest.raises(ValueError, match="a fault"):
        await running
    assert workers.waiting_bytes == 0
    workers.close()


async def test_a_closed_pool_takes_nothing_and_keeps_no_weight() -> None:
    workers = Workers(2, 100, lambda: None)
    workers.close()
    assert workers.submit(lambda: None, 10) is None
    assert workers.waiting_bytes == 0


async def test_closing_at_once_leaves_no_thread_waiting() -> None:
    before = threading.active_count()
    for _ in range(20):
        Workers(3, 100, lambda: None).close()
    await until(lambda: threading.active_count() <= before)
