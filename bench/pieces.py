"""An engine that streams its answers piece by piece at a fixed pace, and clients that read them. Both cost little.

    python -m bench.pieces engine
    python -m bench.pieces clients HOST PORT PIECES CONNECTIONS SECONDS

The engine says in its log where it listens. The clients print one JSON line: requests, seconds, statuses, pieces, and
the time to the first piece (p50 and p99, in milliseconds).
"""

import asyncio
import json
import re
import statistics
import sys
import time
from collections import Counter
from typing import cast

import uvloop

PACE_S = 0.005
"""Between two pieces of an answer."""
PIECE = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"llama","choices":[{"index":0,"text":" w",'
)
PIECE += b'"logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)
END = b"0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_WANTED = re.compile(rb"[?&]pieces=(\d+)")
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Answering(asyncio.Protocol):
    """A connection to the engine. `running`: those whose answer is under way, and how many pieces they still get."""

    def __init__(self, running: "dict[Answering, int]") -> None:
        self._running = running
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        length = _LENGTH.search(self._received, 0, head_end)
        if len(self._received) < head_end + 4 + (int(length[1]) if length else 0):
            return
        wanted = _WANTED.search(self._received, 0, head_end)
        self._running[self] = int(wanted[1]) if wanted else 1
        self._received.clear()
        self._transport.write(HEAD)

    def connection_lost(self, _: Exception | None) -> None:
        self._running.pop(self, None)

    def go_on(self) -> None:
        """Write the next piece."""
        left = self._running[self] - 1
        if left:
            self._running[self] = left
            self._transport.write(CHUNK)
        else:
            del self._running[self]
            self._transport.write(CHUNK + END)


async def engine() -> None:
    """Answer until killed."""
    running: dict[Answering, int] = {}
    server = await asyncio.get_running_loop().create_server(lambda: Answering(running), "127.0.0.1", 0)
    print(f"listening on {server.sockets[0].getsockname()[1]}", flush=True)
    while True:
        await asyncio.sleep(PACE_S)
        for answering in list(running):
            answering.go_on()


class Reading(asyncio.Protocol):
    """Sends the same request again as soon as its answer is whole."""

    def __init__(self, request: bytes, seen: Counter[str], firsts_s: list[float], until_s: float) -> None:
        self._request = request
        self._seen = seen
        self._firsts_s = firsts_s
        self._until_s = until_s
        self._tail = b""
        self._status = ""
        self._first = True
        self._sent_s = 0.0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        if not self._status:
            self._status = data[9:12].decode()
        self._seen["pieces"] += data.count(b"\ndata: ")  # a chunk's size comes before it
        if self._first and b"\ndata: " in data:
            self._first = False
            self._firsts_s.append(time.perf_counter() - self._sent_s)
        self._tail = (self._tail + data)[-len(END) :]
        if self._tail != END:
            return
        self._seen[self._status] += 1
        if time.perf_counter() < self._until_s:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(exc)

    def _send(self) -> None:
        self._tail, self._status, self._first = b"", "", True
        self._sent_s = time.perf_counter()
        self._transport.write(self._request)


async def clients(host: str, port: int, pieces: int, connections: int, seconds: float) -> dict[str, object]:
    """Load an address for so long."""
    body = json.dumps({"model": "llama", "prompt": "word " * 200, "max_tokens": pieces, "stream": True}).encode()
    head = f"POST /v1/completions?pieces={pieces} HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n\r\n"
    seen: Counter[str] = Counter()
    firsts_s: list[float] = []
    begun_s = time.perf_counter()
    loop = asyncio.get_running_loop()
    made = []
    for _ in range(connections):
        _, connection = await loop.create_connection(
            lambda: Reading(head.encode() + body, seen, firsts_s, begun_s + seconds), host, port
        )
        made.append(connection)
        await asyncio.sleep(PACE_S)
    await asyncio.gather(*(connection.ended for connection in made))
    pieces_seen = seen.pop("pieces")
    cuts = statistics.quantiles(firsts_s, n=100)
    return {
        "requests": sum(seen.values()),
        "seconds": time.perf_counter() - begun_s,
        "statuses": dict(seen),
        "pieces": pieces_seen,
        "p50_ms": cuts[49] * 1000,
        "p99_ms": cuts[98] * 1000,
    }


def main() -> None:
    """Be what the command line says."""
    match sys.argv[1:]:
        case ["engine"]:
            uvloop.run(engine())
        case ["clients", host, port, pieces, connections, seconds]:
            print(json.dumps(uvloop.run(clients(host, int(port), int(pieces), int(connections), float(seconds)))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
