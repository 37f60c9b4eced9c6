"""Whether workers answer: by real sockets, with one that says nothing, one that refuses, and one that answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from structlog.testing import LogCapture

from extproc.workers import pulse
from extproc.workers.pulse import Pulse
from extproc.workers.shares import admin_socket
from tests.waiting import until

HANGS, AGAIN, KILLED = "worker does not answer", "worker answers again", "worker is killed: it did not answer"


class Worker:
    """Answers while `speaks`."""

    def __init__(self) -> None:
        self.pid = 1
        self.speaks = asyncio.Event()
        self.asked = 0
        self.killed = 0

    def kill(self) -> None:
        self.killed += 1

    async def hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        try:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /healthz ")
            await self.speaks.wait()
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


class Felt:
    def __init__(self, folder: Path) -> None:
        self.worker = Worker()
        self.logged = LogCapture()
        self.draining = False
        log = structlog.wrap_logger(None, processors=[self.logged], wrapper_class=structlog.BoundLogger)
        self.pulse = Pulse(folder, lambda: self.draining, asyncio.get_running_loop().time, log)

    @property
    def events(self) -> list[str]:
        return [entry["event"] for entry in self.logged.entries]


@asynccontextmanager
async def felt(folder: Path) -> AsyncIterator[Felt]:
    one = Felt(folder)
    server = await asyncio.start_unix_server(one.worker.hear, admin_socket(folder, 0).path)
    watching = asyncio.create_task(one.pulse.watch(0, one.worker))
    try:
        yield one
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert one.pulse.hung == set(), "nobody hangs who is not watched"
        one.worker.speaks.set()
        server.close()
        await server.wait_closed()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "ASKED_EACH_S", 0.01)
    monkeypatch.setattr(pulse, "ANSWER_S_MAX", 0.3)


async def test_one_that_answers_is_not_told_of(tmp_path: Path) -> None:
    async with felt(tmp_path) as one:
        one.worker.speaks.set()
        await until(lambda: one.worker.asked > 5)
        assert (one.pulse.hung, one.events, one.worker.killed) == (set(), [], 0)


async def test_one_that_hangs_is_told_once_and_once_more_when_it_answers_again(tmp_path: Path) -> None:
    async with felt(tmp_path) as one:
        await until(lambda: one.worker.asked > 3)
        assert (one.pulse.hung, one.events) == ({0}, [HANGS])
        one.worker.speaks.set()
        await until(lambda: len(one.events) == 2)
        assert (one.pulse.hung, one.events, one.worker.killed) == (set(), [HANGS, AGAIN], 0)


@pytest.mark.parametrize("limit", ["HUNG_S_MAX", "HUNG_DRAINING_S_MAX"])
async def test_one_that_hangs_for_too_long_is_killed(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, limit, 1.0)
    async with felt(tmp_path) as one:
        one.draining = limit == "HUNG_DRAINING_S_MAX"
        await until(lambda: one.worker.killed)
        assert one.events == [HANGS, KILLED]
        assert one.worker.asked == 4, "three silences of 0.31 s are shorter than the limit"


async def test_silences_with_answers_between_do_not_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "HUNG_S_MAX", 1.0)
    async with felt(tmp_path) as one:
        for _ in range(4):
            await until(lambda: one.pulse.hung)
            one.worker.speaks.set()
            await until(lambda: not one.pulse.hung)
            one.worker.speaks.clear()
        assert one.worker.killed == 0


async def test_a_time_in_which_we_stood_still_ourselves_is_no_silence_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "HUNG_S_MAX", 5.0)
    async with felt(tmp_path) as one:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(one.pulse, "_clock", lambda: loop.time() * 1000)  # each look takes minutes of it
        await until(lambda: one.worker.asked > 3)
        assert one.worker.killed == 0


async def test_one_that_refuses_is_ending_and_does_not_hang(tmp_path: Path) -> None:
    one = Felt(tmp_path)
    watching = asyncio.create_task(one.pulse.watch(0, one.worker))
    await asyncio.wait([watching], timeout=0.2)
    watching.cancel()
    assert (one.pulse.hung, one.events) == (set(), [])
