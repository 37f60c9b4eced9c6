"""An engine's publisher of KV events, over real ZeroMQ, with its replay endpoint."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import zmq
import zmq.asyncio
from msgspec.msgpack import encode

END = b"\xff" * 8


def stored(number: int, behind: int | None = None) -> list[Any]:
    return ["BlockStored", [number], behind, [number] * 16, 16]


def removed(number: int) -> list[Any]:
    return ["BlockRemoved", [number]]


CLEARED = ["AllBlocksCleared"]


class Publisher:
    """It knows when somebody subscribes, which vLLM's does not care about."""

    def __init__(self, context: zmq.asyncio.Context, topic: bytes) -> None:
        self.events = context.socket(zmq.XPUB)
        self.events.linger = 0
        self.replays = context.socket(zmq.ROUTER)
        self.replays.linger = 0
        self.kept: list[tuple[int, bytes]] = []
        self.asked: list[int] = []
        self._sequence = 0
        self._topic = topic

    async def subscribed(self) -> None:
        async with asyncio.timeout(10):
            while (await self.events.recv())[:1] != b"\x01":  # 0: somebody is gone
                pass

    async def publish(self, *events: Any) -> None:
        number, payload = self.miss(*events)
        await self.raw(self._topic, number.to_bytes(8, "big"), payload)

    def miss(self, *events: Any) -> tuple[int, bytes]:
        """What is published while nobody hears."""
        message = self._sequence, encode([0.0, list(events), 0])
        self.kept.append(message)
        self._sequence += 1
        return message

    async def raw(self, *frames: bytes) -> None:
        await self.events.send_multipart(frames)

    def begin_anew(self) -> None:
        self._sequence, self.kept = 0, []

    async def replay(self) -> None:
        """Answer as vLLM does."""
        while True:
            client, empty, number = await self.replays.recv_multipart()
            self.asked.append(first := int.from_bytes(number, "big"))
            for sequence, payload in self.kept:
                if sequence >= first:
                    await self.replays.send_multipart([client, empty, sequence.to_bytes(8, "big"), payload])
            await self.replays.send_multipart([client, empty, END, b""])


@contextlib.asynccontextmanager
async def publishing(topic: bytes = b"") -> AsyncIterator[Publisher]:
    """A publisher that is bound nowhere yet, and answers at its replay endpoint."""
    context = zmq.asyncio.Context()
    publisher = Publisher(context, topic)
    answering = asyncio.create_task(publisher.replay())
    try:
        yield publisher
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        context.destroy(linger=0)


def bound(socket: zmq.asyncio.Socket) -> str:
    """At a free port of loopback."""
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    return f"tcp://127.0.0.1:{port}"
