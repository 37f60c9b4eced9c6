"""A relay before a NATS server that delivers late, twice and out of order: it reads the protocol towards clients.

Only messages are treated so: `MSG subject sid [reply] bytes`, and `HMSG` with its headers. All else passes as it comes,
or a client would take the server for dead.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

_MESSAGE = re.compile(rb"H?MSG .* (\d+)\r\n")


@dataclass
class BadBus:
    """Change how it treats messages at any time; those under way keep what they were given."""

    to_port: int
    delay_s: tuple[float, float] = (0.0, 0.0)
    """Each message is late by chance between these: so they overtake each other."""
    twice: float = 0.0
    """The part of messages that come twice, each of them late by its own chance."""
    lost: float = 0.0
    """The part that never comes."""
    port: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(8))
    messages: int = 0
    overtaken: int = 0
    """Messages that were let go before one that had come earlier."""
    repeated: int = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection."""
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.to_port)
        except OSError:
            writer.transport.abort()
            return
        tasks = {
            asyncio.create_task(_pipe(reader, server_writer)),
            asyncio.create_task(self._deliver(server_reader, writer)),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for one in (writer, server_writer):
                one.transport.abort()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        newest = 0

        def let_go(number: int, frame: bytes) -> None:
            nonlocal newest
            self.overtaken += number < newest
            newest = max(newest, number)
            if not writer.is_closing():
                writer.write(frame)

        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while line := await reader.readline():
                message = _MESSAGE.fullmatch(line)
                if message is None:
                    writer.write(line)
                    continue
                frame = line + await reader.readexactly(int(message[1]) + 2)
                self.messages += 1
                if self.chance.random() < self.lost:
                    continue
                again = self.chance.random() < self.twice
                self.repeated += again
                for _ in range(1 + again):
                    late_s = self.chance.uniform(*self.delay_s)
                    if late_s:
                        loop.call_later(late_s, let_go, self.messages, frame)
                    else:
                        let_go(self.messages, frame)


@asynccontextmanager
async def bad_bus(to_port: int) -> AsyncIterator[BadBus]:
    """One before the server at this port of loopback; it is a sound one until it is told otherwise."""
    bus = BadBus(to_port)
    open_now: set[asyncio.Task[None]] = set()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(bus.serve(reader, writer))
        open_now.add(task)
        task.add_done_callback(open_now.discard)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    bus.port = server.sockets[0].getsockname()[1]
    try:
        yield bus
    finally:
        server.close()
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while some := await reader.read(65536):
            writer.write(some)
            await writer.drain()
