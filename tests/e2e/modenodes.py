"""Nodes that keep what comes, as Envoy sends it: a body's bytes, how its end was told, and its trailers."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from extproc.address import TcpAddress
from extproc.fleet import ANY_PORT
from tests.e2e.scripted import GOOD, Behaviour

MIB = 1024 * 1024


@dataclass
class Got:
    """A request as a node got it."""

    node: str
    method: str
    path: str
    headers: dict[str, str]
    digest: str = ""
    size: int = 0
    trailers: dict[str, str] = field(default_factory=dict)

    @property
    def framing(self) -> str:
        """How its body's end was told: by its length, in chunks, or not."""
        if "content-length" in self.headers:
            return f"length {self.headers['content-length']}"
        return self.headers.get("transfer-encoding", "none")


@dataclass
class Node:
    """An engine that keeps what it gets, and answers as a test says."""

    name: str
    got: list[Got] = field(default_factory=list)
    behaviour: Behaviour = GOOD
    keeps_bodies: bool = False
    bodies: list[bytes] = field(default_factory=list)
    address: TcpAddress = ANY_PORT
    server: asyncio.Server | None = None

    async def listen(self, address: TcpAddress = ANY_PORT) -> None:
        self.server = await asyncio.start_server(self._serve, address.host, address.port, limit=MIB)
        self.address = TcpAddress("127.0.0.1", self.server.sockets[0].getsockname()[1])

    async def leave(self) -> None:
        """Nobody listens there any more."""
        assert self.server is not None
        self.server.close()
        await self.server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = first.split(" ")
            got = Got(self.name, method, path, _fields(lines))
            digest = hashlib.sha256()
            body = bytearray()
            async for piece in _pieces(reader, got):
                digest.update(piece)
                got.size += len(piece)
                if self.keeps_bodies:
                    body += piece
            got.digest = digest.hexdigest()
            self.got.append(got)
            self.bodies.append(bytes(body))
            await self.behaviour(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # Envoy has let go
        finally:
            writer.close()


def _fields(lines: Sequence[str]) -> dict[str, str]:
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}


async def _pieces(reader: asyncio.StreamReader, got: Got) -> AsyncIterator[bytes]:
    left = int(got.headers.get("content-length", "0"))
    while left and (piece := await reader.read(min(left, MIB))):
        left -= len(piece)
        yield piece
    if left:
        raise asyncio.IncompleteReadError(b"", left)
    if got.headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        lines = []
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            lines.append(line.decode().strip())
        got.trailers = _fields(lines)
