"""The operators' port against callers who only hold connections, and against web pages."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from extproc import adminport
from extproc.address import Address, TcpAddress, UnixAddress
from extproc.adminport import AdminPort, to_no_web_page
from tests.waiting import until

HALF = b"GET / HTTP/1.1\r\nhost:"
LARGE = bytes(4_000_000)
"""More than the sockets of both sides hold."""


class Served:
    """A port with a page that is there at once, and one that waits."""

    def __init__(self) -> None:
        self.waiting = 0
        self.sent = 0
        self.released = asyncio.Event()
        app = web.Application(middlewares=[to_no_web_page])
        app.add_routes([web.get("/", self.page), web.get("/wait", self.wait), web.get("/large", self.large)])
        app.add_routes([web.get("/sent", self.send), web.get("/late", self.late), web.get("/broken", self.broken)])
        self.port = AdminPort(app, 0.1)
        self.at = TcpAddress("127.0.0.1", 0)

    async def page(self, _: web.Request) -> web.Response:
        return web.Response(text="here")

    async def large(self, _: web.Request) -> web.Response:
        return web.Response(body=LARGE)

    async def send(self, request: web.Request) -> web.StreamResponse:
        """A page that the handler sends itself; its reader leaves before it is whole."""
        response = web.StreamResponse()
        await response.prepare(request)
        self.waiting += 1
        await self.released.wait()
        try:
            while True:
                await response.write(LARGE)
                await asyncio.sleep(0)
        finally:
            self.sent += 1

    async def late(self, request: web.Request) -> web.Response:
        """The same, where the reader leaves before it begins."""
        self.waiting += 1
        await self.released.wait()
        response = web.Response(body=LARGE)
        try:
            while True:
                await asyncio.sleep(0)
                await response.prepare(request)
                await response.write_eof()
                response = web.Response(body=LARGE)
        finally:
            self.sent += 1

    async def broken(self, _: web.Request) -> web.Response:
        raise ConnectionResetError

    async def wait(self, _: web.Request) -> web.Response:
        self.waiting += 1
        await self.released.wait()
        return web.Response(text="done")

    @property
    def url(self) -> str:
        return f"http://{self.at}"


@contextlib.asynccontextmanager
async def served(at: Address | None = None) -> AsyncIterator[Served]:
    one = Served()
    try:
        got = await one.port.open(at or one.at)
        if isinstance(got, TcpAddress):
            one.at = got
        yield one
    finally:
        await one.port.close()


@contextlib.asynccontextmanager
async def crowd(to: Served, count: int, sends: bytes) -> AsyncIterator[list[socket.socket]]:
    """Connections that send this, and read nothing."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as held:
        sockets = []
        for _ in range(count):
            one = held.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.setblocking(False)
            await loop.sock_connect(one, ("127.0.0.1", to.at.port))
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(one, sends)
            sockets.append(one)
        yield sockets


async def ended(one: socket.socket) -> bool:
    """Wait until the other side ends it."""
    try:
        while await asyncio.get_running_loop().sock_recv(one, 65536):
            pass
    except ConnectionError:
        pass
    return True


async def got(to: Served, path: str = "/", **headers: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(to.url + path, headers=headers) as answer:
        await answer.read()
        return answer.status


@pytest.mark.parametrize("sends", [b"", HALF, b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n", b"nonsense\r\n\r\n"])
async def test_who_holds_connections_holds_a_bounded_number_and_nobody_up(
    monkeypatch: pytest.MonkeyPatch, sends: bytes
) -> None:
    monkeypatch.setattr(adminport, "CONNECTIONS_MAX", 8)
    async with served() as to, crowd(to, 24, sends) as held:
        assert await got(to) == 200
        assert to.port.connections_open <= 8
        for one in held[:16]:
            assert await asyncio.wait_for(ended(one), 10), "the oldest give way"
        assert await got(to) == 200


async def test_a_connection_with_an_answer_under_way_gives_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adminport, "CONNECTIONS_MAX", 4)
    async with served() as to:
        waits = [asyncio.create_task(got(to, "/wait")) for _ in range(3)]
        await until(lambda: to.waiting == 3)
        async with crowd(to, 20, HALF):
            assert await got(to) == 200
        waits.append(asyncio.create_task(got(to, "/wait")))
        await until(lambda: to.waiting == 4)
        with pytest.raises(aiohttp.ClientError):
            await got(to)
        assert to.port.connections_open == 4
        to.released.set()
        assert await asyncio.gather(*waits) == [200] * 4
        await until(lambda: to.port.connections_open == 0)
        assert await got(to) == 200


@pytest.mark.parametrize(
    "sends", [b"", HALF, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" + HALF]
)
async def test_a_connection_without_a_whole_request_in_time_is_ended(
    monkeypatch: pytest.MonkeyPatch, sends: bytes
) -> None:
    monkeypatch.setattr(adminport, "IDLE_S", 0.2)
    async with served() as to, crowd(to, 1, sends) as (one,):
        assert await asyncio.wait_for(ended(one), 10)
        await until(lambda: to.port.connections_open == 0)


async def test_a_head_that_comes_byte_by_byte_gets_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adminport, "IDLE_S", 0.3)
    loop = asyncio.get_running_loop()
    async with served() as to, crowd(to, 1, HALF) as (one,):
        ending = asyncio.create_task(ended(one))
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                while not ending.done():
                    await loop.sock_sendall(one, b"x")
                    await asyncio.wait((ending,), timeout=0.02)
            assert await ending


async def test_a_body_that_does_not_come_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adminport, "LINGER_S", 0.1)
    async with served() as to, crowd(to, 1, b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n") as (one,):
        assert await asyncio.wait_for(ended(one), 10)


async def test_the_end_ends_every_connection() -> None:
    async with crowd_after_close() as held:
        for one in held:
            assert await asyncio.wait_for(ended(one), 10)


@contextlib.asynccontextmanager
async def crowd_after_close() -> AsyncIterator[list[socket.socket]]:
    async with contextlib.AsyncExitStack() as clients:
        async with served() as to:
            held = await clients.enter_async_context(crowd(to, 3, HALF))
            await until(lambda: to.port.connections_open == 3)
        with pytest.raises(aiohttp.ClientConnectionError):
            await got(to)
        yield held


async def test_a_unix_socket_is_served_the_same_way(tmp_path: Path) -> None:
    path = str(tmp_path / "admin")
    async with (
        served(UnixAddress(path)),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session,
        session.get("http://admin/") as answer,
    ):
        assert await answer.text() == "here"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
    ],
)
async def test_web_pages_of_other_sites_are_not_answered(headers: dict[str, str], status: int) -> None:
    async with served() as to:
        assert await got(to, **headers) == status


@pytest.mark.parametrize("path", ["/large", "/sent", "/late"])
async def test_a_reader_who_leaves_makes_no_noise(path: str, caplog: pytest.LogCaptureFixture) -> None:
    async with served() as to:
        async with crowd(to, 1, f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode()) as (one,):
            await until(lambda: to.port.connections_open == 1 and (path == "/large" or to.waiting == 1))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
        to.released.set()
        await until(lambda: to.port.connections_open == 0 and (path == "/large" or to.sent == 1))
        assert await got(to) == 200
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == []


async def test_a_handlers_own_broken_connection_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as to:
        assert await got(to, "/broken") == 500
    assert [one.getMessage()[:22] for one in caplog.records] == ["Error handling request"]
