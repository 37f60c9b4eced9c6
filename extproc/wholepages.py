"""Pages that take time and memory: few at once, each sent whole, and none kept for a reader who does not read."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from aiohttp import web

PAGE_SEND_S = 10.0
"""A reader who has not taken a page by then is dropped. Prometheus itself waits so long."""
BUSY_RETRY_AFTER_S = 1
"""When to ask again where there were too many pages."""
JSON_TYPE = "application/json"


class WholePages:
    """State: how many are being made or sent."""

    def __init__(self) -> None:
        self._under_way = 0

    async def sent(
        self, request: web.Request, make: Callable[[], Awaitable[web.Response]], at_once_max: int
    ) -> web.StreamResponse:
        """Make a page and send it, or say that there are too many."""
        if self._under_way >= at_once_max:
            busy = f"{at_once_max} pages are being made or read, which is all that may be at once; try again"
            return json_page({"error": busy}, status=503, headers={"retry-after": str(BUSY_RETRY_AFTER_S)})
        self._under_way += 1
        try:
            response = await make()
            try:
                async with asyncio.timeout(PAGE_SEND_S):
                    await response.prepare(request)
                    await response.write_eof()
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
            return response
        finally:
            self._under_way -= 1


def encoded(content: object) -> bytes:
    """As JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def json_page(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """The same as an answer."""
    return web.Response(body=encoded(content), status=status, headers={"content-type": JSON_TYPE, **(headers or {})})
