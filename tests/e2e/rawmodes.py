"""A client that sends a request's parts when a test says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that breaks at the end."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


def send_head(writer: asyncio.StreamWriter, model: str, length: int | None, **headers: str) -> None:
    """Of a completion by this model; without a length its body comes in chunks."""
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = ("POST /v1/completions HTTP/1.1", "host: x", f"x-model: {model}", framing, *lines)
    writer.write("\r\n".join((*head, "", "")).encode())


def send_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    """A piece of a body, or without data its end."""
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


async def head_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """An answer's status and headers."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:] if line)


async def response_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """An answer that announces its length."""
    status, headers = await head_of(reader)
    return status, headers, await reader.readexactly(int(headers["content-length"]))


async def rest_of(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """The body of an answer in chunks, and whether it came to its end."""
    body = bytearray()
    try:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
    except (asyncio.IncompleteReadError, ConnectionError):
        return bytes(body), False
    return bytes(body), True
