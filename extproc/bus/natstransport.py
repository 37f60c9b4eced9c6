"""The TCP connection below a NATS client. Imported only where the extra `nats` is installed."""

import asyncio
import ssl
import time
from urllib.parse import ParseResult

from nats.aio.transport import Transport
from nats.errors import Error

from extproc.bus.share import Share

READ_BYTES_MAX = 8192
"""At once: the client takes about 2 ms for so much, in the shortest messages."""


class NatsTransport(Transport):
    """As the client's own, but it can be given up at once, and sends nothing in plain text where TLS is wanted.

    The client itself asks for TLS only where the server does, so that whoever stands between could have its password.
    What is read, and parsed by the client, takes no more than a share of the event loop: the rest waits at the server,
    which cuts those off for whom too much waits.
    """

    def __init__(self, tls_only: bool) -> None:
        self._tls_only = tls_only
        self._is_tls = False
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._plain: asyncio.StreamWriter | None = None
        self._share = Share(time.monotonic)
        self._read_s: float | None = None

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Raises `OSError` or `TimeoutError`."""
        async with asyncio.timeout(connect_timeout):
            self._reader, self._writer = await asyncio.open_connection(uri.hostname, uri.port, limit=buffer_size)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """On the connection that there is. Raises `OSError` or `TimeoutError`."""
        assert self._writer is not None
        # Kept: what is collected closes the connection below.
        self._plain = self._writer
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=buffer_size, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        name = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            upgraded = await loop.start_tls(self._plain.transport, protocol, ssl_context, server_hostname=name)
        assert upgraded is not None
        protocol.connection_made(upgraded)  # or it never pauses reading, and takes the end for that of plain TCP
        self._reader, self._writer = reader, asyncio.StreamWriter(upgraded, protocol, reader, loop)
        self._is_tls = True

    def write(self, payload: bytes) -> None:
        """Raises `Error` instead of sending anything in plain text where TLS is wanted."""
        if self._tls_only and not self._is_tls:
            msg = "nats: the server has no TLS"
            raise Error(msg)
        assert self._writer is not None
        self._writer.write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        """As `write`."""
        self.write(b"".join(payload))

    async def read(self, buffer_size: int) -> bytes:
        """What there is, at most so much; empty at the end."""
        assert self._reader is not None
        if self._read_s is not None and (rest_s := self._share.rest_s(time.monotonic() - self._read_s)) > 0:
            await asyncio.sleep(rest_s)
        data = await self._reader.read(min(buffer_size, READ_BYTES_MAX))
        self._read_s = time.monotonic()  # until it is read again the client parses, and nobody else has the loop
        return data

    async def readline(self) -> bytes:
        """Raises `ValueError` for one longer than the buffer."""
        assert self._reader is not None
        return await self._reader.readline()

    async def drain(self) -> None:
        """Until the system has taken most of what was written."""
        assert self._writer is not None
        await self._writer.drain()

    async def wait_closed(self) -> None:
        """Until it is closed."""
        if self._writer is not None:
            await self._writer.wait_closed()

    def close(self) -> None:
        """After what was written has been sent."""
        if self._writer is not None:
            self._writer.close()

    def abort(self) -> None:
        """Now; what was written and not sent is lost."""
        for writer in (self._writer, self._plain):
            if writer is not None:
                writer.transport.abort()

    def at_eof(self) -> bool:
        """Whether the server has closed it and all was read."""
        return self._reader is None or self._reader.at_eof()

    def __bool__(self) -> bool:
        """The client makes one of its own in place of one that is false."""
        return True
