"""Who reads the pages, and what one who does not can cost."""

import asyncio
import socket
import threading
from contextlib import ExitStack

import pytest

from extproc import wholepages
from extproc.core.forecast import ModelForecast
from extproc.core.snapshot import ServedModel
from extproc.ops import admin
from extproc.ops.nodegauges import NodeSample
from tests.ops.pages import Admin, Client, page
from tests.waiting import until

LARGE_BYTES = 16 * 1024 * 1024
"""More than the sockets of both sides hold."""
PAGES = ("/nodes", "/nodes?node=a", "/metrics", "/decisions")


@pytest.fixture
def large(of: Admin) -> Admin:
    """A fleet whose /nodes is a large page."""
    of.report("a", models=(ServedModel("m" * LARGE_BYTES),))
    return of


async def begun(client: Client) -> socket.socket:
    """A connection on which /nodes has begun to come; nobody reads on."""
    loop = asyncio.get_running_loop()
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.setblocking(False)
    await loop.sock_connect(reader, (client.host, client.port))
    await loop.sock_sendall(reader, b"GET /nodes HTTP/1.1\r\nhost: admin\r\n\r\n")
    assert await loop.sock_recv(reader, 12) == b"HTTP/1.1 200"
    return reader


async def rest(reader: socket.socket) -> int:
    """How many bytes still come, until the connection ends."""
    loop, count = asyncio.get_running_loop(), 0
    try:
        while data := await loop.sock_recv(reader, 1 << 20):
            count += len(data)
    except ConnectionResetError:
        pass
    return count


async def status(client: Client, path: str) -> int:
    async with client.get(path) as response:
        await response.read()
        return response.status


async def test_more_pages_than_are_held_at_once_are_refused_with_the_reason(large: Admin, client: Client) -> None:
    with ExitStack() as readers:
        for _ in range(admin.PAGES_MAX - 1):
            readers.enter_context(await begun(client))
        assert [await status(client, path) for path in PAGES] == [200] * len(PAGES), "there is room for one"
        last = readers.enter_context(await begun(client))
        for path in PAGES:
            async with client.get(path) as response:
                assert (response.status, response.headers["retry-after"]) == (503, str(wholepages.BUSY_RETRY_AFTER_S))
                error = (await response.json())["error"]
                assert error == "8 pages are being made or read, which is all that may be at once; try again"
        assert [await status(client, path) for path in ("/", "/healthz", "/readyz")] == [200] * 3, "probes hold nothing"
        last.close()

        async def has_room() -> bool:
            return await status(client, "/decisions") == 200

        await until(has_room)


async def test_a_reader_who_does_not_read_is_dropped_in_time(
    large: Admin, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "PAGES_MAX", 1)
    monkeypatch.setattr(wholepages, "PAGE_SEND_S", 0.2)
    with await begun(client) as reader:

        async def has_room() -> bool:
            return await status(client, "/decisions") == 200

        await until(has_room)
        assert await rest(reader) < LARGE_BYTES


async def test_a_reader_who_goes_away_in_the_middle_is_no_fault(
    large: Admin, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admin, "PAGES_MAX", 1)
    (await begun(client)).close()

    async def has_room() -> bool:
        return await status(client, "/decisions") == 200

    await until(has_room)
    assert caplog.records == []


async def test_a_reader_who_reads_gets_all_of_a_large_page(large: Admin, client: Client) -> None:
    (node,) = (await page(client, "/nodes"))["nodes"]
    assert len(node["models"][0]["name"]) == LARGE_BYTES
    assert await status(client, "/nodes") == 200


async def test_one_page_is_made_at_a_time_and_all_of_so_many_are_served(
    of: Admin, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, pairs = threading.Barrier(2), 0
    page_of = of.metrics.page

    def watched(nodes: list[NodeSample], forecasts: tuple[ModelForecast, ...]) -> bytes:
        nonlocal pairs
        try:
            together.wait(0.02)
            pairs += 1
        except threading.BrokenBarrierError:
            together.reset()
        return page_of(nodes, forecasts)

    monkeypatch.setattr(of.metrics, "page", watched)
    assert await asyncio.gather(*(status(client, "/metrics") for _ in range(admin.PAGES_MAX))) == [200] * 8
    assert pairs == 0


async def test_a_page_that_cannot_be_made_gives_its_place_back(
    of: Admin, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: list[NodeSample]) -> bytes:
        raise RuntimeError

    monkeypatch.setattr(admin, "PAGES_MAX", 1)
    with monkeypatch.context() as broken:
        broken.setattr(of.metrics, "page", fails)
        assert [await status(client, "/metrics") for _ in range(2)] == [500, 500]
    assert await status(client, "/metrics") == 200
