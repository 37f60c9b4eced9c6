"""NATS behind a network that delays, stalls or cuts, and handlers that are too slow."""

import asyncio
import time

import pytest

from extproc.bus import echo, handlers, natsbus
from extproc.bus.bus import MESSAGE_BYTES_MAX
from tests.bus.busing import Told, nats_bus, reached
from tests.natsserver import nats_server
from tests.tcpproxy import tcp_proxy
from tests.waiting import until


async def test_a_delayed_path_shows_before_its_first_echo_is_back() -> None:
    async with nats_server() as server, tcp_proxy(server.port) as proxy, reached(nats_bus(proxy.url)) as (one,):
        await until(lambda: one.bus.way_s < 0.05)
        proxy.delay_s = 0.3
        began_s = time.monotonic()
        await until(lambda: one.bus.way_s > 0.25)
        assert time.monotonic() - began_s < echo.ECHO_S + 0.6 + 0.3
        await until(lambda: 0.28 < one.bus.way_s < 0.4)
        one.bus.publish("loads", b"late")
        await one.hears(b"late")
        proxy.delay_s = 0.0
        await until(lambda: one.bus.way_s < 0.05)
        assert one.reached == 1


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds takes tenths of them."""
    monkeypatch.setattr(natsbus, "ECHO_S", 0.05)
    monkeypatch.setattr(natsbus, "ECHO_S_MAX", 0.3)


@pytest.mark.usefixtures("impatient")
async def test_a_stalled_path_is_noticed_and_what_was_said_meanwhile_is_never_heard() -> None:
    told = Told()
    async with (
        nats_server() as server,
        tcp_proxy(server.port) as proxy,
        reached(nats_bus(proxy.url, told=told), nats_bus(server.url)) as (one, other),
    ):
        proxy.stalled = True
        began_s = time.monotonic()
        one.bus.publish("loads", b"on its way")
        await until(lambda: not one.bus.connected)
        assert 0.2 < time.monotonic() - began_s < 2
        one.bus.publish("loads", b"unsent")
        assert one.bus.counts.dropped_unsent == 1
        assert told.events("bus lost")[0]["reason"] == "nothing comes back for 0.3 s"
        # New connections do not help as long as it stalls.
        await until(lambda: proxy.connections > 1)
        assert one.reached == 1
        proxy.stalled = False
        await until(lambda: one.reached == 2)
        one.bus.publish("loads", b"new")
        await other.hears(b"new")
        assert b"unsent" not in other.messages


async def test_a_cut_connection_is_made_again() -> None:
    async with nats_server() as server, tcp_proxy(server.port) as proxy, reached(nats_bus(proxy.url)) as (one,):
        proxy.cut()
        await until(lambda: one.reached == 2)
        one.bus.publish("loads", b"again")
        await one.hears(b"again")


@pytest.mark.usefixtures("impatient")
async def test_a_loop_that_was_held_up_takes_no_path_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natsbus, "ECHO_S_MAX", 0.6)
    async with nats_server() as server, tcp_proxy(server.port) as proxy, reached(nats_bus(proxy.url)) as (one,):
        proxy.delay_s = 0.1
        await until(lambda: one.bus.way_s > 0.09)  # so some echo is always out
        time.sleep(1.2)  # noqa: ASYNC251 - the fault that is meant
        one.bus.publish("loads", b"on")
        await one.hears(b"on")
        assert one.reached == 1
        assert one.bus.counts.connections == 1


async def test_a_slow_handler_loses_the_oldest_and_never_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_max = 2 * MESSAGE_BYTES_MAX
    monkeypatch.setattr(handlers, "WAITING_BYTES_MAX", bytes_max)
    async with nats_server() as server, reached(nats_bus(server.url), nats_bus(server.url)) as (one, slow):
        most = 0

        def slowly(_: str, __: bytes) -> None:
            nonlocal most
            time.sleep(0.02)
            most = max(most, slow.bus.waiting_bytes)  # type: ignore[attr-defined]

        slow.bus.listen("loads", slowly)
        count = 100
        for number in range(count):
            one.bus.publish("loads", b"%d " % number + bytes(32_000))
        await until(lambda: slow.messages and slow.messages[-1].startswith(b"99 "), 30)
        assert bytes_max / 2 < most <= bytes_max
        assert slow.bus.counts.dropped_slow > count / 2
        assert slow.bus.counts.received == count
        assert len(slow.heard) == count - slow.bus.counts.dropped_slow
        # What is heard is in order, and the last of it is all there.
        numbers = [int(heard.split()[0]) for heard in slow.messages]
        assert numbers == sorted(numbers)
        assert numbers[-5:] == list(range(count - 5, count))
        assert slow.reached == 1


@pytest.mark.usefixtures("impatient")
async def test_a_path_that_takes_nothing_holds_no_more_than_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natsbus, "ECHO_S_MAX", 1.0)
    async with nats_server() as server, tcp_proxy(server.port) as proxy, reached(nats_bus(proxy.url)) as (one,):
        proxy.stalled = True
        for number in range(400):  # more than the system takes, too
            one.bus.publish("nobody", bytes(MESSAGE_BYTES_MAX))
            assert one.bus.waiting_bytes <= natsbus.OUT_BYTES_MAX  # type: ignore[attr-defined]
            if number % 10 == 9:
                await asyncio.sleep(0.005)
        assert one.bus.waiting_bytes > natsbus.OUT_BYTES_MAX / 2  # type: ignore[attr-defined]
        await until(lambda: not one.bus.connected)
        assert one.bus.waiting_bytes == 0  # type: ignore[attr-defined]
        assert one.bus.counts.dropped_unsent > 300
        proxy.stalled = False
        await until(lambda: one.reached == 2)
        one.bus.publish("loads", b"again")
        await one.hears(b"again")
