"""An engine that streams its answers piece by piece at a fixed pace, and clients that read them. Both cost little.

    python -m bench.pieces engine
    python -m bench.pieces clients HOST PORT PIECES CONNECTIONS SECONDS

The engine says in its log where it listens. The clients print one JSON line: requests, seconds, statuses, pieces, and
the time to the first piece (p50 and p99, in milliseconds).
"""

import asyncio
import json
import re
import sys
from functools import partial
from typing import cast

import uvloop

from bench.clients import Client, Seen, load

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


class Reading(Client):
    """Waits for the first piece, and reads them all."""

    def __init__(self, request: bytes, seen: Seen) -> None:
        super().__init__(request, seen)
        self._tail = b""
        self._status = ""
        self._first = True

    def data_received(self, data: bytes) -> None:
        if not self._status:
            self._status = data[9:12].decode()
        self._seen.pieces += data.count(b"\ndata: ")  # a chunk's size comes before it
        if self._first and b"\ndata: " in data:
            self._first = False
            self.waited()
        self._tail = (self._tail + data)[-len(END) :]
        if self._tail == END:
            status = self._status
            self._tail, self._status, self._first = b"", "", True
            self.answered(status)


def completion_request(pieces: int) -> bytes:
    """Asks for a streamed answer of so many pieces."""
    body = json.dumps({"model": "llama", "prompt": "word " * 200, "max_tokens": pieces, "stream": True}).encode()
    head = f"POST /v1/completions?pieces={pieces} HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def main() -> None:
    """Be what the command line says."""
    match sys.argv[1:]:
        case ["engine"]:
            uvloop.run(engine())
        case ["clients", host, port, pieces, connections, seconds]:
            kind = partial(Reading, completion_request(int(pieces)))
            print(json.dumps(uvloop.run(load(kind, host, int(port), int(connections), float(seconds), PACE_S))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
