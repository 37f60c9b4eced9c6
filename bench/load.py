"""A load generator that costs little: prebuilt HTTP/1.1 requests over kept connections, one process.

    python -m bench.load HOST PORT BODY_BYTES CONNECTIONS SECONDS

Prints one JSON line: requests, seconds, statuses, and the latencies' p50 and p99 in milliseconds.
"""

import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from typing import cast

import uvloop


def chat_request(body_bytes: int) -> bytes:
    """A chat request whose body has about this size."""
    frame = {"model": "llama", "max_tokens": 16, "messages": [{"role": "user", "content": ""}]}
    frame["messages"] = [{"role": "user", "content": ("word " * body_bytes)[: body_bytes - len(json.dumps(frame))]}]
    body = json.dumps(frame).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """Sends the same request again as soon as its answer is whole."""

    def __init__(self, request: bytes, seen: Counter[str], latencies_s: list[float], until_s: float) -> None:
        self._request = request
        self._seen = seen
        self._latencies_s = latencies_s
        self._until_s = until_s
        self._received = bytearray()
        self._sent_s = 0.0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = self._received[:head_end].lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self._received) < head_end + 4 + length:
            return
        now_s = time.perf_counter()
        self._seen[head[9:12].decode()] += 1
        self._latencies_s.append(now_s - self._sent_s)
        self._received.clear()
        if now_s < self._until_s:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(exc)

    def _send(self) -> None:
        self._sent_s = time.perf_counter()
        self._transport.write(self._request)


async def run(host: str, port: int, body_bytes: int, connections: int, seconds: float) -> dict[str, object]:
    """Load an address for so long."""
    seen: Counter[str] = Counter()
    latencies_s: list[float] = []
    begun_s = time.perf_counter()
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(
            lambda: Connection(chat_request(body_bytes), seen, latencies_s, begun_s + seconds), host, port
        )
        for _ in range(connections)
    ]
    await asyncio.gather(*(connection.ended for _, connection in made))
    cuts = statistics.quantiles(latencies_s, n=100)
    return {
        "requests": sum(seen.values()),
        "seconds": time.perf_counter() - begun_s,
        "statuses": dict(seen),
        "p50_ms": cuts[49] * 1000,
        "p99_ms": cuts[98] * 1000,
    }


def main() -> None:
    """Load the address of the command line."""
    host, port, body_bytes, connections, seconds = sys.argv[1:]
    print(json.dumps(uvloop.run(run(host, int(port), int(body_bytes), int(connections), float(seconds)))))


if __name__ == "__main__":
    main()
