"""Clients that cost little: each sends its one request again as soon as the answer is whole, over a kept connection."""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast


@dataclass(slots=True)
class Seen:
    """What all clients of one run saw."""

    until_s: float
    """When, by `time.perf_counter`, no further request is sent."""
    statuses: Counter[str] = field(default_factory=Counter)
    pieces: int = 0
    """Of answers that are streamed."""
    latencies_s: list[float] = field(default_factory=list)
    """Until what the client waits for: the whole answer, or its first piece."""


class Client(asyncio.Protocol):
    """One connection. A kind of client reads answers in `data_received`, and calls `answered` at the end of each."""

    def __init__(self, request: bytes, seen: Seen) -> None:
        self._request = request
        self._seen = seen
        self._sent_s = 0.0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(exc)

    def waited(self) -> None:
        """What was waited for is there."""
        self._seen.latencies_s.append(time.perf_counter() - self._sent_s)

    def answered(self, status: str) -> None:
        """The answer is whole."""
        self._seen.statuses[status] += 1
        if time.perf_counter() < self._seen.until_s:
            self._send()
        else:
            self._transport.close()

    def _send(self) -> None:
        self._sent_s = time.perf_counter()
        self._transport.write(self._request)


async def load(
    kind: Callable[[Seen], Client], host: str, port: int, connections: int, seconds: float, apart_s: float = 0.0
) -> dict[str, object]:
    """Load an address for so long, with connections that begin so far apart.

    Gives requests, seconds, statuses, pieces, and the latencies' p50 and p99 in milliseconds.
    """
    begun_s = time.perf_counter()
    seen = Seen(begun_s + seconds)
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(connections):
        _, client = await loop.create_connection(lambda: kind(seen), host, port)
        clients.append(client)
        await asyncio.sleep(apart_s)
    await asyncio.gather(*(client.ended for client in clients))
    cuts = statistics.quantiles(seen.latencies_s, n=100)
    return {
        "requests": seen.statuses.total(),
        "seconds": time.perf_counter() - begun_s,
        "statuses": dict(seen.statuses),
        "pieces": seen.pieces,
        "p50_ms": cuts[49] * 1000,
        "p99_ms": cuts[98] * 1000,
    }
