"""Asking workers for their pages, over their private sockets."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import aiohttp
from msgspec import Struct

from extproc.sizes import MIB
from extproc.workers.shares import admin_socket

ANSWER_S_MAX: Final = 2.0
"""A worker that has not told a whole page by then is left out of it."""
PAGE_BYTES_MAX: Final = 64 * MIB
"""So is one whose page is longer: those of 10,000 nodes have 30 MiB."""
_PART_BYTES: Final = 256 * 1024


class Answer(Struct, frozen=True):
    """A worker's page."""

    status: int
    body: bytes


class Asking:
    """Asks those workers that `listening` names."""

    def __init__(
        self,
        folder: Path,
        listening: Callable[[], Collection[int]],
        *,
        answer_s_max: float = ANSWER_S_MAX,
        page_bytes_max: int = PAGE_BYTES_MAX,
    ) -> None:
        self._folder = folder
        self._listening = listening
        self._answer_s_max = answer_s_max
        self._page_bytes_max = page_bytes_max

    @property
    def numbers(self) -> list[int]:
        """The workers that serve."""
        return sorted(self._listening())

    async def all(self, path: str, query: Mapping[str, str] | None = None) -> dict[int, Answer | None]:
        """A page of each; `None`: it did not answer in time, or with too much."""
        numbers = self.numbers
        answers = await asyncio.gather(*(self.one(number, path, query) for number in numbers))
        return dict(zip(numbers, answers, strict=True))

    async def one(self, number: int, path: str, query: Mapping[str, str] | None = None) -> Answer | None:
        """That of one."""
        # A connection for each page: there are few, and a worker that was started again has another socket.
        connector = aiohttp.UnixConnector(admin_socket(self._folder, number).path, force_close=True)
        timeout = aiohttp.ClientTimeout(total=self._answer_s_max)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.get(f"http://worker{path}", params=query) as response,
            ):
                body = bytearray()
                async for part in response.content.iter_chunked(_PART_BYTES):
                    body += part
                    if len(body) > self._page_bytes_max:
                        return None
                return Answer(response.status, bytes(body))
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
