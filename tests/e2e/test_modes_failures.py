"""`serve` dies, hangs or drains, in every body mode: what becomes of answers, of uploads and of new requests.

| | full-duplex | others |
|---|---|---|
| killed: answers that run | are cut | go on |
| killed: uploads | 500 | go on (1) |
| killed: new requests | 500, known nodes once (2) | known nodes |
| hangs: answers that run | go on | go on |
| hangs: uploads | hang as long | go on after `message_timeout` (1) |
| hangs: new requests | hang as long, known nodes once (2) | known nodes after `message_timeout` |
| drains: answers that run | go on | go on |
| drains: uploads | are decided | are decided |
| drains: new requests | 500, known nodes once (2) | known nodes |

(1) In streamed and buffered-partial Envoy 1.40 sends what has gone on already once more where the route has retries, so
that the node gets a broken body. What is rendered has them there for override-host alone; `retried` has them too.
(2) Envoy's health checks have seen it.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack

import aiohttp
import pytest
import pytest_asyncio

from extproc.render.description import BodyMode
from tests.e2e.listeners import DESTINATIONS, MODES, Json, Listening, cannot_fail_open, describe
from tests.e2e.modenodes import Node
from tests.e2e.modes import Came, Running, completion, running
from tests.e2e.rawmodes import connected, head_of, response_of, rest_of, send_head
from tests.e2e.scripted import PIECE, Streaming
from tests.waiting import until

MESSAGE_TIMEOUT_S = 2.0
SENT = 100_000
"""Bytes of an upload before what happens."""
RETRIED: dict[str, BodyMode] = {"streamed.retried": "streamed", "buffered-partial.retried": "buffered-partial"}
"""Listeners with retries that are not rendered."""
RENDERED = [
    (mode, f"{mode}.{destination}")
    for mode in MODES
    for destination in DESTINATIONS
    if destination == "override-host" or not cannot_fail_open(mode)
]
NAMES = [*RENDERED, *((mode, name) for name, mode in RETRIED.items())]
DUPLEX = [name for mode, name in NAMES if mode == "full-duplex"]
OTHERS = [name for mode, name in NAMES if mode != "full-duplex"]
TWICE = {*RETRIED, "streamed.override-host", "buffered-partial.override-host"}
"""Of these Envoy sends what has gone on already once more."""


def listeners(nodes: Mapping[str, Node]) -> dict[str, Listening]:
    made = {
        f"{mode}.{destination}": Listening(describe(mode, destination, nodes, message_timeout_s=MESSAGE_TIMEOUT_S))
        for mode in MODES
        for destination in DESTINATIONS
        if (mode, f"{mode}.{destination}") in RENDERED
    }
    return made | {
        name: Listening(describe(mode, "override-host", nodes, message_timeout_s=MESSAGE_TIMEOUT_S), retries)
        for name, mode in RETRIED.items()
    }


def retries(manager: Json) -> None:
    (host,) = manager["route_config"]["virtual_hosts"]
    host["retry_policy"] = {"retry_on": "reset", "num_retries": 1}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def whole(client: aiohttp.ClientSession, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with running(client, tmp_path_factory.mktemp("failing"), listeners) as found:
        yield found


class Answering:
    """An answer that has begun at each listener."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._stack = AsyncExitStack()
        self._readers: dict[str, asyncio.StreamReader] = {}
        self._streamings: list[Streaming] = []

    async def __aenter__(self) -> "Answering":
        body = completion("a", stream=True)
        for _, name in NAMES:
            streaming = Streaming()
            async with self._running.behaving("a", streaming):
                reader, writer = await self._stack.enter_async_context(connected(self._running.urls[name]))
                send_head(writer, "a", len(body))
                writer.write(body)
                assert (await head_of(reader))[0] == 200
            self._readers[name] = reader
            self._streamings.append(streaming)
        self._running.got()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def end(self) -> dict[str, bool]:
        """Go on and end; which came whole."""
        for streaming in self._streamings:
            streaming.go()
            streaming.end()
        rests = await asyncio.gather(*(rest_of(reader) for reader in self._readers.values()))
        return {name: rest == (PIECE, True) for name, rest in zip(self._readers, rests, strict=True)}


class Uploading:
    """A body at each listener, of its own length, of which a part has been sent and shown."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._stack = AsyncExitStack()
        self._streams: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self.bodies = {name: completion("b", 3 * SENT + 100 * number) for number, (_, name) in enumerate(NAMES)}

    async def __aenter__(self) -> "Uploading":
        for _, name in NAMES:
            reader, writer = await self._stack.enter_async_context(connected(self._running.urls[name]))
            self._streams[name] = reader, writer
            send_head(writer, "b", len(self.bodies[name]))
            writer.write(self.bodies[name][:SENT])
            await writer.drain()
        await until(self._come)
        return self

    async def _come(self) -> bool:
        """Serve has a stream for each, beside those of the answers, and Envoy has read what was sent."""
        streams_open, *_ = await self._running.held()
        read = [await self._running.stat(f"http.{name}.downstream_cx_rx_bytes_total") for _, name in NAMES]
        return streams_open == 2 * len(NAMES) and min(read) > SENT

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def is_of(self, name: str, size: int) -> bool:
        """Whether so many bytes are its own, or with what had been sent twice."""
        return size - len(self.bodies[name]) in (0, SENT)

    async def end(self, name: str) -> tuple[int, str | None]:
        """Send the rest; status and the node that serve chose."""
        reader, writer = self._streams[name]
        writer.write(self.bodies[name][SENT:])
        status, headers, _ = await response_of(reader)
        return status, headers.get("x-extproc-node")


async def ask_all(running: Running, names: list[str]) -> dict[str, Came]:
    answers = await asyncio.gather(*(running.ask(name, "b") for name in names))
    return dict(zip(names, answers, strict=True))


async def is_seen(running: Running) -> bool:
    """Whether Envoy's health checks have found serve away."""
    return await running.stat("cluster.extproc.membership_healthy") == 0


async def assert_known_nodes_serve(running: Running) -> None:
    await until(lambda: is_seen(running))
    answers = await ask_all(running, [name for _, name in NAMES])
    assert {(one.status, one.node) for one in answers.values()} == {(200, None)}, answers
    running.got()


async def test_serve_is_killed(whole: Running) -> None:
    async with Answering(whole) as answering, Uploading(whole) as uploading:
        await whole.fleet.kill(whole.serve.child)
        asked = await ask_all(whole, [name for _, name in NAMES])
        assert {asked[name].status for name in DUPLEX} == {500} or await is_seen(whole)
        assert {one.code for one in asked.values() if one.status == 500} <= {"gateway_error"}
        assert {(asked[name].status, asked[name].node) for name in OTHERS} == {(200, None)}
        assert await answering.end() == {name: name not in DUPLEX for _, name in NAMES}
        whole.got()
        for mode, name in NAMES:
            status, _ = await uploading.end(name)
            sizes = [one.size for one in whole.got()]
            if mode == "full-duplex":
                assert (status, sizes) == (500, []), name
            else:
                twice = SENT if name in TWICE else 0
                assert (status, sizes) == (200, [len(uploading.bodies[name]) + twice]), name
    await assert_known_nodes_serve(whole)
    await whole.start_serve_again()
    await whole.at_rest()


async def test_serve_hangs(whole: Running) -> None:
    async with Answering(whole) as answering, Uploading(whole) as uploading:
        whole.serve.child.signal(signal.SIGSTOP)
        try:
            waiting = {name: asyncio.create_task(whole.ask(name, "b")) for name in DUPLEX}
            asked = await ask_all(whole, OTHERS)
            assert {(one.status, one.node) for one in asked.values()} == {(200, None)}
            assert all(await answering.end())
            whole.got()
            ended = await asyncio.gather(*(uploading.end(name) for name in OTHERS))
            assert {status for status, _ in ended} == {200}
            sizes = [one.size for one in whole.got()]
            for name in OTHERS:
                (size,) = (one for one in sizes if uploading.is_of(name, one))
                # Whether a part goes on twice depends on what serve had acknowledged.
                assert size == len(uploading.bodies[name]) or name in TWICE, name
            await assert_known_nodes_serve(whole)
            assert not any(task.done() for task in waiting.values())
        finally:
            whole.serve.child.signal(signal.SIGCONT)
        assert {(one.status, one.node) for one in await asyncio.gather(*waiting.values())} == {(200, "b")}
        whole.got()
        for name in DUPLEX:
            assert await uploading.end(name) == (200, "b")
            assert [(one.node, one.size) for one in whole.got()] == [("b", len(uploading.bodies[name]))]
    await whole.choosing()
    await whole.at_rest()


async def test_serve_drains(whole: Running) -> None:
    async with Answering(whole) as answering, Uploading(whole) as uploading:
        stopping = asyncio.create_task(whole.fleet.stop(whole.serve.child))
        await whole.serve.child.logged('"draining"', within_s=10)

        async def refused() -> bool:
            return (await whole.ask(OTHERS[0], "b")).node is None

        await until(refused)
        assert {one.status for one in (await ask_all(whole, DUPLEX)).values()} == {500} or await is_seen(whole)
        whole.got()
        *names, last = [*DUPLEX, *OTHERS[::-1]]  # while one is undecided serve is there
        for name in names:
            status, node = await uploading.end(name)
            assert (status, node) == (200, "b"), name
            (got,) = whole.got()
            assert (got.node, got.size) == ("b", len(uploading.bodies[name])), name
        assert all((await answering.end()).values())
        assert not stopping.done()
        assert (await uploading.end(last))[0] == 200
        assert await stopping == 0
    await assert_known_nodes_serve(whole)
    await whole.start_serve_again()
    await whole.at_rest()
