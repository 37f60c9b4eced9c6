"""The bus over a real NATS server, which comes, goes and comes back."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from extproc.bus import natsbus
from extproc.bus.bus import MESSAGE_BYTES_MAX, NODES, ROUTERS
from tests.bus.busing import Ears, Told, nats_bus, reached
from tests.natsserver import NatsServer, nats_server
from tests.tcpproxy import tcp_proxy
from tests.waiting import until


async def test_a_message_reaches_all_who_listen_and_its_sender() -> None:
    async with nats_server() as server, reached(nats_bus(server.url), nats_bus(server.url)) as (one, other):
        nodes = Ears(other.bus, NODES)
        one.bus.publish("loads", b"first")
        await one.hears(b"first")
        await other.hears(b"first")
        assert one.bus.connected
        assert 0 < one.bus.way_s < 1
        # One who listens while the bus is open hears from then on.
        while not nodes.heard:
            one.bus.publish(NODES, b"report", "gpu 1.a")
            await asyncio.sleep(0.01)
        assert nodes.heard[0] == ("gpu 1.a", b"report")
        assert one.heard == [("", b"first")]
        counts = one.bus.counts
        assert counts.published_bytes == 5 + 6 * (counts.published - 1)
        assert (counts.received, counts.received_bytes) == (1, 5)


async def test_messages_of_one_sender_keep_their_order() -> None:
    async with nats_server() as server, reached(nats_bus(server.url)) as (one,):
        sent = [b"%d" % number for number in range(2000)]
        for message in sent:
            one.bus.publish("loads", message)
        await one.hears(sent[-1])
        assert one.messages == sent


async def test_fleets_do_not_hear_each_other() -> None:
    async with nats_server() as server:
        buses = [nats_bus(server.url, fleet=fleet) for fleet in ("a", "b", "a")]
        async with reached(*buses) as (a, b, again):
            b.bus.publish("loads", b"of b")
            a.bus.publish("loads", b"of a")
            await again.hears(b"of a")
            await b.hears(b"of b")
            assert (again.messages, b.messages) == ([b"of a"], [b"of b"])


async def test_a_server_that_is_not_there_at_the_start_is_waited_for() -> None:
    async with nats_server() as server:
        await server.kill()
        told = Told()
        bus = nats_bus(server.url, told=told)
        ears = Ears(bus)
        await bus.open(ears.connect)
        await until(lambda: told.events("bus not reached"))
        bus.publish("loads", b"lost")
        assert bus.counts.dropped_unsent == 1
        assert not bus.connected
        await server.start()
        await until(lambda: ears.reached)
        bus.publish("loads", b"now")
        await ears.hears(b"now")
        assert ears.messages == [b"now"]
        assert told.lines == ["bus not reached", "bus reached"]
        await bus.close()


async def test_after_a_killed_server_is_back_nothing_old_is_sent() -> None:
    async with nats_server() as server:
        told = Told()
        async with reached(nats_bus(server.url, told=told), nats_bus(server.url)) as (one, other):
            await server.kill()
            one.bus.publish("loads", b"perhaps on its way to the dead")
            await until(lambda: not one.bus.connected and not other.bus.connected)
            one.bus.publish("loads", b"never")
            await server.restart()
            await until(lambda: one.reached == 2 and other.reached == 2)
            one.bus.publish("loads", b"new")
            await other.hears(b"new")
            assert other.messages == [b"new"]
            assert one.bus.counts.dropped_unsent >= 1
            assert told.lines.count("bus lost") == 1
            assert told.lines.count("bus reached") == 2
            assert told.lines.count("bus not reached") <= 1


@asynccontextmanager
async def _cluster(more: str = "") -> AsyncIterator[tuple[NatsServer, NatsServer]]:
    config = f"{more}\ncluster {{{{ name: one, listen: 127.0.0.1:-1, routes: [{{}}] }}}}"
    async with nats_server(config.format("")) as first:
        listens = re.compile(rb"Listening for route connections on (127.0.0.1:\d+)\n")
        await until(lambda: listens.search(first.log))
        async with nats_server(config.format(f"nats://{listens.findall(first.log)[0].decode()}")) as second:
            await until(lambda: b"Route connection created" in first.log)
            yield first, second


async def test_a_cluster_tells_of_its_other_servers() -> None:
    """And when the only one that we were told of dies, another is found."""
    async with _cluster() as (first, second):
        told = Told()
        async with reached(nats_bus(first.url, told=told)) as (one,):
            await first.kill()
            await until(lambda: one.reached == 2)
            assert told.events("bus reached")[-1]["server"] == second.url
            one.bus.publish("loads", b"here")
            await one.hears(b"here")


@pytest.mark.parametrize("insecure", [False, True])
async def test_no_secret_goes_in_plain_text_to_a_server_that_only_another_names(tmp_path: Path, insecure: bool) -> None:
    """Who answers at our address could name any."""
    (tmp_path / "secret").write_text("s3cret")
    async with _cluster("authorization: {{ token: s3cret }}") as (first, _), tcp_proxy(first.port) as proxy:
        bus = nats_bus(proxy.url, token_file=str(tmp_path / "secret"), insecure=insecure)
        async with reached(bus) as (one,):
            await first.kill()
            if insecure:
                await until(lambda: one.reached == 2)
            else:
                await until(lambda: proxy.connections >= 4)
                assert one.reached == 1
                assert bus.way_s == 0  # of no connection


async def test_a_handler_that_raises_is_logged_once_and_others_hear() -> None:
    async with nats_server() as server:
        told = Told()
        bus = nats_bus(server.url, told=told)

        def broken(below: str, message: bytes) -> None:
            raise ValueError(message)

        bus.listen("loads", broken)
        async with reached(bus) as (one,):
            for number in range(100):
                bus.publish("loads", b"%d" % number)
            await one.hears(b"99")
            assert bus.counts.faults == 100
            assert len(told.events("bus message not handled")) == 1


async def test_messages_that_nobody_could_have_meant_are_not_handled() -> None:
    """Others may write to any subject of the fleet, and up to what the server takes."""
    import nats

    async with nats_server() as server, reached(nats_bus(server.url)) as (one,):
        nodes = Ears(one.bus, NODES)
        stranger = await nats.connect(server.url)
        await stranger.publish("extproc.default.loads", b"x" * (MESSAGE_BYTES_MAX + 1))
        await stranger.publish("extproc.default.loads", b"x", headers={"a": "b"})
        await stranger.publish("extproc.default.loads.%FF", b"no text")
        await stranger.publish("extproc.default.loads.a.b", b"deeper")
        await stranger.publish("extproc.default.echo.%s" % ("0" * 16), b"")
        await stranger.publish(one.bus._echo_subject, b"\xff" * 100)  # type: ignore[attr-defined]
        await stranger.publish("extproc.default.loads", b"")
        await stranger.flush()
        await until(lambda: len(one.heard) == 2)
        assert one.heard == [("", b"x"), ("", b"")]
        assert one.bus.counts.dropped_long == 1
        assert not nodes.heard
        assert one.bus.connected
        await stranger.close()


async def test_a_message_too_long_for_the_bus_is_not_published() -> None:
    async with nats_server("max_payload: 1000") as server, reached(nats_bus(server.url)) as (one,):
        one.bus.publish("loads", b"x" * 1001)
        one.bus.publish("loads", b"x" * 1000)
        await until(lambda: one.heard)
        assert one.bus.counts.dropped_long == 1
        assert one.bus.counts.published == 1
        assert one.reached == 1
    async with nats_server() as server, reached(nats_bus(server.url)) as (one,):
        one.bus.publish("loads", b"x" * (MESSAGE_BYTES_MAX + 1))
        one.bus.publish("loads", b"x" * MESSAGE_BYTES_MAX)
        one.bus.publish("nodes", b"", "\ud800")
        await until(lambda: one.heard)
        assert (one.bus.counts.dropped_long, one.bus.counts.published) == (2, 1)


async def test_what_was_published_just_before_the_end_still_goes_out() -> None:
    async with nats_server() as server, reached(nats_bus(server.url)) as (one,):
        leaving = nats_bus(server.url)
        async with reached(leaving):
            leaving.publish("loads", b"bye" * 1000)
        await one.hears(b"bye" * 1000)
        leaving.publish("loads", b"late")
        assert leaving.counts.dropped_unsent == 1
        assert not leaving.connected


async def test_a_bus_closes_at_once_where_there_is_no_server() -> None:
    async with nats_server() as server:
        bus = nats_bus(server.url)
        await server.kill()
        await bus.open(lambda: None)
        async with asyncio.timeout(1):
            await bus.close()
        await bus.close()


async def test_a_burst_larger_than_the_way_out_loses_its_oldest() -> None:
    async with nats_server() as server, reached(nats_bus(server.url)) as (one,):
        for _ in range(natsbus.OUT_MESSAGES_MAX + 10):
            one.bus.publish(ROUTERS, b"nobody")
        assert one.bus.counts.dropped_unsent in (10, 11)  # an echo may have been there
        one.bus.publish("loads", b"last")
        await one.hears(b"last")
