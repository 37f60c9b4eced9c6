"""A load generator that costs little: prebuilt HTTP/1.1 requests over kept connections, one process.

    python -m bench.load HOST PORT BODY_BYTES CONNECTIONS SECONDS

Prints one JSON line, `bench.clients.load`'s; latencies are those of whole answers.
"""

import json
import sys
from functools import partial

import uvloop

from bench.clients import Client, Seen, load


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


class Whole(Client):
    """Waits for the whole answer, whose length its head tells."""

    def __init__(self, request: bytes, seen: Seen) -> None:
        super().__init__(request, seen)
        self._received = bytearray()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = self._received[:head_end].lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self._received) < head_end + 4 + length:
            return
        self._received.clear()
        self.waited()
        self.answered(head[9:12].decode())


def main() -> None:
    """Load the address of the command line."""
    host, port, body_bytes, connections, seconds = sys.argv[1:]
    request = chat_request(int(body_bytes))
    print(json.dumps(uvloop.run(load(partial(Whole, request), host, int(port), int(connections), float(seconds)))))


if __name__ == "__main__":
    main()
