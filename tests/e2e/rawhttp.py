"""Clients that do what HTTP libraries do not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from extproc.fleet import Envoy


@asynccontextmanager
async def trap() -> AsyncIterator[dict[str, str]]:
    """The header of a client that names a destination of its own. Fails at the end if anybody went there."""
    connections = 0

    def caught(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    server = await asyncio.start_server(caught, "127.0.0.1", 0)
    try:
        yield {"x-envoy-original-dst-host": f"127.0.0.1:{server.sockets[0].getsockname()[1]}"}
    finally:
        server.close()
        await server.wait_closed()
    assert connections == 0, "a client's own destination was heard"


def head(content_length: int) -> bytes:
    return f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {content_length}\r\n\r\n".encode()


async def connect(envoy: Envoy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = envoy.url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def response_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    return int(lines[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


async def announce(envoy: Envoy, content_length: int, wait_s: float | None = None) -> tuple[int, dict[str, str], bytes]:
    """Send the head of a request and none of its body; the answer, or 0 where none comes while one waits."""
    reader, writer = await connect(envoy)
    try:
        writer.write(head(content_length))
        async with asyncio.timeout(wait_s):
            return await response_of(reader)
    except TimeoutError:
        return 0, {}, b""
    finally:
        writer.transport.abort()
