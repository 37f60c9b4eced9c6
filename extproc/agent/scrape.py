"""Fetching an engine's pages: bounded in time and size, whatever the engine does."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp

KEEP_ALIVE_S = 4.0
"""Idle connections are closed before llama.cpp and uvicorn do it, which is after 5 s."""
CONNECTIONS_MAX = 2
"""One is kept for all pages, which are asked for one after the other: a server with a thread for each connection, as
llama.cpp's, has no more of them than that to spare, and none for a new one when clients hold the others. The second
is for a probe."""

Headers = Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The engine answered."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Unanswered:
    """It did not, or with something that is no page."""

    reason: str
    refused: bool = False
    """Nobody listens there: the engine is not running."""
    late: bool = False
    """It may only be busy: servers of engines under load answer late."""


class EnginePages:
    """One engine's HTTP server, over a connection that is kept. An async context manager; it raises for no engine."""

    def __init__(self, url: str, page_bytes_max: int) -> None:
        self._url = url
        self._page_bytes_max = page_bytes_max
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"accept-encoding": "identity"},
            auto_decompress=False,  # a small page must not become a big one
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str, deadline_s: float) -> Answer | Unanswered:
        """One page, complete before `deadline_s` of the loop's clock. Redirects are answers, they are not followed.

        `path` may be a whole URL, for what the engine serves elsewhere.
        """
        return await self._ask("GET", path, deadline_s)

    async def post(self, path: str, body: bytes, deadline_s: float) -> Answer | Unanswered:
        """The answer to a JSON body; its connection is not kept, for pages have one already."""
        return await self._ask(
            "POST", path, deadline_s, body, {"content-type": "application/json", "connection": "close"}
        )

    async def _ask(
        self, method: str, path: str, deadline_s: float, body: bytes | None = None, headers: Headers = None
    ) -> Answer | Unanswered:
        try:
            async with (
                asyncio.timeout_at(deadline_s),
                self._session.request(
                    method,
                    self._url + path if path.startswith("/") else path,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                ) as response,
            ):
                page = bytearray()
                async for chunk in response.content.iter_any():
                    page += chunk
                    if len(page) > self._page_bytes_max:
                        response.close()
                        return Unanswered(f"{path} has over {self._page_bytes_max} bytes")
                return Answer(response.status, page.decode(errors="replace"))
        except TimeoutError:
            return Unanswered(f"{path} does not answer in time", late=True)
        except aiohttp.ClientConnectorDNSError:
            return Unanswered("the engine's host has no address")
        except aiohttp.ClientConnectorError as error:
            return Unanswered(
                "the engine cannot be reached", refused=isinstance(error.os_error, ConnectionRefusedError)
            )
        except (aiohttp.ClientError, OSError, ValueError):
            return Unanswered(f"{path} is no HTTP answer")
