"""A TCP proxy that delays, stalls or cuts what goes through it, as networks do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

HOST = "127.0.0.1"


class TcpProxy:
    """What is set counts from then on, for connections that there are too."""

    def __init__(self, port: int) -> None:
        self.to_port = port
        self.port = 0
        self.delay_s = 0.0
        """Of each chunk of bytes, each way; their order stays."""
        self.bytes = 0
        """Forwarded, both ways."""
        self.connections = 0
        """How many have come."""
        self._flows = asyncio.Event()
        self._flows.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    @property
    def stalled(self) -> bool:
        """While it is, nothing goes through, and nobody is told: connections come and stay, as behind a firewall."""
        return not self._flows.is_set()

    @stalled.setter
    def stalled(self, stalled: bool) -> None:
        (self._flows.clear if stalled else self._flows.set)()

    def cut(self) -> None:
        """Reset all connections; new ones may come."""
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, ready: asyncio.Event) -> None:
        """Until it is cancelled."""
        server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()
            self.cut()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            to_reader, to_writer = await asyncio.open_connection(HOST, self.to_port)
        except OSError:
            self._open.discard(writer)
            writer.transport.abort()
            return
        self._open.add(to_writer)
        for one, other in ((reader, to_writer), (to_reader, writer)):
            task = asyncio.create_task(self._forward(one, other))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sending = asyncio.create_task(self._send(chunks, writer))
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._flows.wait()  # what nobody takes stays with its sender
                try:
                    chunk = await reader.read(65536)
                except OSError:
                    chunk = b""
                chunks.put_nowait((loop.time() + self.delay_s, chunk))
                if not chunk:
                    break
            await sending
        finally:
            sending.cancel()
            self._open.discard(writer)
            writer.transport.abort()

    async def _send(self, chunks: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while True:
                due_s, chunk = await chunks.get()
                await asyncio.sleep(max(due_s - loop.time(), 0))
                await self._flows.wait()
                if not chunk:
                    return
                writer.write(chunk)
                self.bytes += len(chunk)
                await writer.drain()


@asynccontextmanager
async def tcp_proxy(port: int) -> AsyncIterator[TcpProxy]:
    """One in front of a port of this machine."""
    proxy = TcpProxy(port)
    ready = asyncio.Event()
    task = asyncio.create_task(proxy.serve(ready))
    try:
        await ready.wait()
        yield proxy
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
