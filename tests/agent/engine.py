"""An engine on loopback that answers what a test wants: pages, and misbehaviour."""

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from tests.agent.pages import vllm_lines

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BOMB = zlib.compress(b"x" * 10_000_000)
MODELS = '{"object": "list", "data": [{"id": "m", "max_model_len": 4096}]}'


@dataclass
class Engine:
    """`pages` has a text, a status or a handler for each path; change it at any time."""

    pages: dict[str, str | int | Handler]
    port: int = 0
    asked: list[str] = field(default_factory=list)
    callers: set[object] = field(default_factory=set)
    """Connections that asked for something."""
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, on the port of before if there was one."""
        app = web.Application()
        app.router.add_route("*", "/{page:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def kill(self) -> None:
        """Nobody listens any more, and every connection is cut."""
        assert self._runner is not None
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        assert request.transport is not None
        self.callers.add(request.transport.get_extra_info("peername"))
        page = self.pages.get(request.path, 404)
        if isinstance(page, int):
            return web.Response(status=page)
        if isinstance(page, str):
            return web.Response(text=page)
        return await page(request)


@contextlib.asynccontextmanager
async def vllm_engine() -> AsyncIterator[Engine]:
    """A vLLM that is idle, ready and serves model `m`."""
    sound: dict[str, str | int | Handler] = {"/health": 200, "/metrics": vllm_lines(), "/v1/models": MODELS}
    engine = Engine(sound)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.kill()


async def never(request: web.Request) -> web.StreamResponse:
    """No answer at all."""
    await asyncio.sleep(60)
    return web.Response()


async def endless(request: web.Request) -> web.StreamResponse:
    """A page without end."""
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        while True:
            await response.write(b"x" * 65536)
    return response


async def drip(request: web.Request) -> web.StreamResponse:
    """A page that comes byte by byte, and never all of it."""
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        while True:
            await response.write(b"#")
            await asyncio.sleep(0.01)
    return response


async def cut(request: web.Request) -> web.StreamResponse:
    """A page that breaks off."""
    response = web.StreamResponse(headers={"content-length": "1000"})
    await response.prepare(request)
    await response.write(b"x")
    assert request.transport is not None
    request.transport.abort()
    return response


async def bomb(request: web.Request) -> web.StreamResponse:
    """Compressed without being asked."""
    return web.Response(body=BOMB, headers={"content-encoding": "deflate"})


async def elsewhere(request: web.Request) -> web.StreamResponse:
    """Sends the agent to a path of its own choice."""
    raise web.HTTPFound("/secret")
