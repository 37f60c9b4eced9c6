"""The bus between processes of one machine."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from extproc.bus import handlers, localpeer
from extproc.bus.bus import MESSAGE_BYTES_MAX, NODES
from extproc.bus.localbus import LocalBus
from extproc.bus.localpeer import frame_of
from tests.bus.busing import Ears, reached
from tests.waiting import until


def members(folder: Path, *names: str) -> list[LocalBus]:
    return [LocalBus(folder, name) for name in names]


@asynccontextmanager
async def together(folder: Path, *names: str) -> AsyncIterator[list[Ears]]:
    """Members who all know of each other."""
    buses = members(folder, *names)
    async with reached(*buses) as ears:
        await until(lambda: all(len(set(names) & set(bus.members)) == len(names) - 1 for bus in buses))
        yield ears


async def test_a_message_reaches_all_members_and_its_sender(tmp_path: Path) -> None:
    async with together(tmp_path, "a", "b", "c") as ears:
        nodes = Ears(ears[2].bus, NODES)
        assert all(one.bus.connected for one in ears)
        assert all(one.bus.way_s == 0 for one in ears)
        for number, one in enumerate(ears):
            one.bus.publish("loads", b"%d" % number)
        ears[0].bus.publish(NODES, b"report", "gpu 1.ä")
        for one in ears:
            await until(lambda: len(one.heard) == 3)  # noqa: B023 - it is called here alone
            assert sorted(one.messages) == [b"0", b"1", b"2"]
        await until(lambda: nodes.heard)
        assert nodes.heard == [("gpu 1.ä", b"report")]
        assert ears[0].bus.counts.published == 2
        assert ears[0].bus.counts.published_bytes == 7


async def test_messages_of_one_sender_keep_their_order_and_are_whole(tmp_path: Path) -> None:
    async with together(tmp_path, "a", "b") as (one, other):
        sent = [b"%d" % number + b"x" * (number * 37 % 5000) for number in range(900)]
        for message in sent:
            one.bus.publish("loads", message)
        await until(lambda: len(other.heard) == len(sent))
        assert other.messages == one.messages == sent


async def test_no_message_is_longer_than_all_may_be(tmp_path: Path) -> None:
    async with together(tmp_path, "a", "b") as (one, other):
        one.bus.publish("loads", bytes(MESSAGE_BYTES_MAX + 1))
        one.bus.publish("loads", b"", "\ud800")
        one.bus.publish("loads", bytes(MESSAGE_BYTES_MAX))
        await until(lambda: other.heard)
        assert [len(message) for message in other.messages] == [MESSAGE_BYTES_MAX]
        assert one.bus.counts.dropped_long == 2


async def test_who_starts_anew_under_its_name_is_told_again(tmp_path: Path) -> None:
    async with together(tmp_path, "a", "b") as (one, other):
        await other.bus.close()
        one.bus.publish("loads", b"to nobody else")
        other.bus.publish("loads", b"too late")
        assert other.bus.counts.dropped_unsent == 1
        async with reached(*members(tmp_path, "b")) as (again,):
            again.bus.publish("loads", b"I am new")
            await one.hears(b"I am new")
            # An answer at once reaches it, though nobody has looked for it since.
            one.bus.publish("loads", b"welcome")
            await again.hears(b"welcome")
            assert again.messages == [b"I am new", b"welcome"]


async def test_a_member_that_was_killed_leaves_its_socket_and_can_come_back(tmp_path: Path) -> None:
    code = f"""
import asyncio, pathlib
from extproc.bus.localbus import LocalBus
async def main():
    bus = LocalBus(pathlib.Path({str(tmp_path)!r}), "b")
    await bus.open(lambda: bus.publish("loads", b"here"))
    await asyncio.sleep(60)
asyncio.run(main())
"""
    async with reached(*members(tmp_path, "a")) as (one,):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
        await one.hears(b"here")
        process.kill()
        await process.wait()
        assert (tmp_path / "b.sock").exists()
        one.bus.publish("loads", b"to the dead")
        async with reached(*members(tmp_path, "b")) as (again,):
            again.bus.publish("loads", b"again")
            await one.hears(b"again")
            one.bus.publish("loads", b"well")
            await again.hears(b"well")


async def test_a_member_that_does_not_read_costs_others_nothing_and_hears_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(localpeer, "BACKLOG_BYTES_MAX", 4 * MESSAGE_BYTES_MAX)
    path = tmp_path / "deaf.sock"
    deaf = socket.socket(socket.AF_UNIX)
    deaf.bind(str(path))
    deaf.listen()
    with deaf:
        await _talk(tmp_path, deaf)


async def _talk(folder: Path, deaf: socket.socket) -> None:
    async with together(folder, "a", "b") as (one, other):
        for number in range(100):
            one.bus.publish("loads", b"%3d" % number + bytes(64_000))
            await until(lambda: len(other.heard) > number)  # noqa: B023 - it is called here alone
            assert one.bus.waiting_bytes <= 4 * MESSAGE_BYTES_MAX  # type: ignore[attr-defined]
        lost = one.bus.counts.dropped_unsent
        assert 50 < lost < 100
        # It reads at last: what the system had taken, and the newest.
        read = await asyncio.to_thread(_read, deaf, b" 99" + bytes(64_000))
        assert read.count(frame_of("loads", "", bytes(64_003))[:8]) == 100 - lost
        assert b" 97\0" in read


def _read(deaf: socket.socket, until_there: bytes) -> bytes:
    deaf.settimeout(10)
    while True:
        connection, _ = deaf.accept()
        with connection:
            connection.settimeout(10)
            # Its name comes first; b connects too.
            if not (read := connection.recv(65536)).startswith(frame_of("a", "", b"")):
                continue
            while until_there not in read:
                read += connection.recv(1 << 20)
            return read


async def test_a_slow_handler_loses_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "WAITING_MESSAGES_MAX", 10)
    async with reached(*members(tmp_path, "a")) as (one,):
        for number in range(30):
            one.bus.publish("loads", b"%d" % number)
        await one.hears(b"29")
        assert one.messages == [b"%d" % number for number in range(20, 30)]
        assert one.bus.counts.dropped_slow == 20


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\xff" * 64,
        frame_of("", "", b""),
        frame_of("c" * (localpeer.CHANNEL_BYTES_MAX + 1), "", b""),
        frame_of("a", "", b"") + frame_of("loads", "t" * 1025, b""),
        frame_of("a", "", b"") + frame_of("loads", "", bytes(MESSAGE_BYTES_MAX + 1)),
        frame_of("x", "", b"")[:-1] + b"\xe9",
    ],
)
async def test_who_writes_nonsense_is_cut_off(tmp_path: Path, nonsense: bytes) -> None:
    async with reached(*members(tmp_path, "a")) as (one,):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "a.sock"))
        writer.write(nonsense)
        async with asyncio.timeout(10):
            with suppress(OSError):
                assert await reader.read() == b""
        writer.close()
        assert not one.heard


async def test_names_from_others_lead_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    outside = socket.socket(socket.AF_UNIX)
    outside.bind(str(tmp_path / "b.sock"))
    outside.listen()
    with outside:
        await _named_outside(folder)


async def _named_outside(folder: Path) -> None:
    async with reached(*members(folder, "a")) as (one,):
        _, writer = await asyncio.open_unix_connection(str(folder / "a.sock"))
        writer.write(frame_of("../b", "", b"") + frame_of("loads", "", b"heard") + frame_of("loads", "%", b"not"))
        await one.hears(b"heard")
        assert one.bus.members == []  # type: ignore[attr-defined]
        assert one.messages == [b"heard"]
        writer.close()


async def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    bus = LocalBus(tmp_path / "none", "a")
    with pytest.raises(FileNotFoundError):
        await bus.open(lambda: None)
    assert not bus.connected
    await bus.close()
    with pytest.raises(OSError, match="too long"):
        await LocalBus(tmp_path / ("x" * 120), "a").open(lambda: None)
