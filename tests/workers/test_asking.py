"""Pages of workers, over their sockets: bounded in time and size."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from extproc.workers.asking import Answer, Asking
from extproc.workers.shares import admin_socket

SIZE = 1000


@asynccontextmanager
async def worker(folder: Path, number: int) -> AsyncIterator[None]:
    async def page(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * int(request.query["size"]), status=int(request.query.get("status", "200")))

    over = asyncio.Event()

    async def never(_: web.Request) -> web.Response:
        await over.wait()
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/page", page), web.get("/never", never)])
    runner = web.AppRunner(app, shutdown_timeout=5)
    await runner.setup()
    await web.UnixSite(runner, admin_socket(folder, number).path).start()
    try:
        yield
    finally:
        over.set()
        await runner.cleanup()


async def test_each_is_asked_and_one_that_is_not_there_is_told(tmp_path: Path) -> None:
    asking = Asking(tmp_path, lambda: {1, 0})
    async with worker(tmp_path, 0):
        told = await asking.all("/page", {"size": "3", "status": "503"})
        assert told == {0: Answer(503, b"xxx"), 1: None}


async def test_a_page_may_be_as_long_as_the_limit_and_no_longer(tmp_path: Path) -> None:
    asking = Asking(tmp_path, lambda: {0}, page_bytes_max=SIZE)
    async with worker(tmp_path, 0):
        assert await asking.one(0, "/page", {"size": str(SIZE)}) == Answer(200, b"x" * SIZE)
        assert await asking.one(0, "/page", {"size": str(SIZE + 1)}) is None


async def test_one_that_does_not_answer_in_time_is_left_out(tmp_path: Path) -> None:
    asking = Asking(tmp_path, lambda: {0}, answer_s_max=0.05)
    async with worker(tmp_path, 0):
        assert await asking.one(0, "/never") is None
