"""Fetching an engine's pages: bounded in time and size, whatever the engine does."""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp

KEEP_ALIVE_S = 4.0
"""Idle connections are closed before llama.cpp does it, which is after 5 s."""
CONNECTIONS_MAX = 4
_CHUNK_BYTES = 64 * 1024


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
    """One engine's HTTP server, over kept-alive connections. An async context manager; `get` raises for no engine."""

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
        try:
            async with (
                asyncio.timeout_at(deadline_s),
                self._session.get(
                    self._url + path if path.startswith("/") else path, allow_redirects=False
                ) as response,
            ):
                page = bytearray()
                async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                    page += chunk
                    if len(page) > self._page_bytes_max:
                        response.close()
                        return Unanswered(f"{path} has over {self._page_bytes_max} bytes")
                return Answer(response.status, page.decode(errors="replace"))
        except TimeoutError:
            return Unanswered(f"{path} does not answer in time", late=True)
        except aiohttp.ClientConnectorError as error:
            return Unanswered(
                "the engine cannot be reached", refused=isinstance(error.os_error, ConnectionRefusedError)
            )
        except (aiohttp.ClientError, OSError, ValueError):
            return Unanswered(f"{path} is no HTTP answer")
