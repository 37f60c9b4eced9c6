"""The HTTP port of an operator's pages: few connections, none for long without a request, and none for web pages.

It stands in the same process as what matters. Whoever can connect must not be able to use up that process's files, nor
the places of those who want to know how it is.
"""

import asyncio
from typing import cast

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from extproc import listening
from extproc.address import Address

CONNECTIONS_MAX = 64
"""Open at a time. For one more, the oldest is ended that no answer is being made for; if there is none, the new one."""
IDLE_S = 10.0
"""A connection has so long for the whole head of its next request."""
LINGER_S = 1.0
"""And so long for the rest of a body, which nobody reads, after the answer."""
_ELSEWHERE = frozenset({"cross-site", "same-site"})
"""What browsers say in `sec-fetch-site` where another site's page asks."""
_OF_A_PAGE = msgspec.json.encode({"fault": "web pages of other sites are not answered"}) + b"\n"


@web.middleware
async def to_no_web_page(request: web.Request, handler: Handler) -> web.StreamResponse:
    """403 for what a browser sends for a web page of another site: that may be anybody's."""
    if hdrs.ORIGIN in request.headers or request.headers.get("sec-fetch-site") in _ELSEWHERE:
        return web.Response(body=_OF_A_PAGE, status=403, content_type="application/json")
    return await handler(request)


class AdminPort:
    """Serves an application. `close_s`: how long the answers under way may take at the end."""

    def __init__(self, app: web.Application, close_s: float) -> None:
        app.middlewares.append(self._answer)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=close_s, keepalive_timeout=IDLE_S, lingering_time=LINGER_S
        )
        self._listening: asyncio.Server | None = None
        self._open: dict[_Connection, None] = {}
        self._answered: set[object] = set()
        """The handlers, aiohttp's, of connections that an answer is being made for."""

    async def open(self, at: Address) -> Address:
        """Listen, and answer from now on; the address it got. Raises `listening.ListenError`."""
        await self._runner.setup()
        self._listening, got = await listening.stream_port(lambda: _Connection(self), at)
        return got

    async def close(self) -> None:
        """Listen no more, and end every connection."""
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()

    @property
    def connections_open(self) -> int:
        """Never more than `CONNECTIONS_MAX`."""
        return len(self._open)

    def came(self, connection: "_Connection") -> web.RequestHandler | None:
        """Who shall read from a new connection; `None`: nobody, it is one too many, or we are closing."""
        server = self._runner.server
        if len(self._open) >= CONNECTIONS_MAX:
            idle = next((one for one in self._open if one.handler not in self._answered), None)
            if idle is None:
                return None
            self.went(idle)
            idle.end()
        if server is None:
            return None
        self._open[connection] = None
        return server()

    def went(self, connection: "_Connection") -> None:
        """It is over."""
        self._open.pop(connection, None)

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._answered.add(request.protocol)
        try:
            return await handler(request)
        except ConnectionResetError:
            # A reader who left amid a page that a handler sends by itself: no fault of ours.
            if request.transport is not None and not request.transport.is_closing():
                raise
            return web.Response()  # goes nowhere
        finally:
            self._answered.discard(request.protocol)


class _Connection(asyncio.Protocol):
    """Passes everything on to aiohttp's protocol, if there is room for the connection."""

    def __init__(self, port: AdminPort) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self.handler: web.RequestHandler | None = None
        """`None`: there is no room for the connection."""

    def end(self) -> None:
        """At once; what was written and not read is lost."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.handler = self._port.came(self)
        if self.handler is None:
            self._transport.abort()
        else:
            self.handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._port.went(self)
        if self.handler is not None:
            self.handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.handler is not None:
            self.handler.data_received(data)

    def eof_received(self) -> None:
        if self.handler is not None:
            self.handler.eof_received()

    def pause_writing(self) -> None:
        if self.handler is not None:
            self.handler.pause_writing()

    def resume_writing(self) -> None:
        if self.handler is not None:
            self.handler.resume_writing()
