"""Ways from each process of a machine to all others, as simple as they can be: what `bench.buses` compares."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Protocol

import structlog
import zmq

from extproc.bus.bus import LOADS, MESSAGE_BYTES_MAX, Bus
from extproc.bus.localbus import LocalBus
from extproc.bus.natsbus import NatsBus
from extproc.bus.settings import NatsSettings

Heard = Callable[[bytes], None]


class Candidate(Protocol):
    """What `bench.buses` needs of one."""

    async def open(self, heard: Heard) -> None: ...

    def publish(self, message: bytes) -> None: ...


class Datagrams:
    """A unix datagram socket each; what does not fit into a receiver's queue is lost."""

    def __init__(self, folder: Path, index: int, members: int) -> None:
        self._peers = [str(folder / f"{number}.dgram") for number in range(members) if number != index]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MESSAGE_BYTES_MAX)
        self._socket.bind(str(folder / f"{index}.dgram"))

    async def open(self, heard: Heard) -> None:
        def read() -> None:
            for _ in range(64):
                try:
                    heard(self._socket.recv(MESSAGE_BYTES_MAX))
                except BlockingIOError:
                    return

        asyncio.get_running_loop().add_reader(self._socket, read)

    def publish(self, message: bytes) -> None:
        for peer in self._peers:
            with suppress(OSError):
                self._socket.sendto(message, peer)


class ZeroMq:
    """PUB and SUB sockets over ipc, with the 1,000 messages that ZeroMQ keeps for each receiver."""

    def __init__(self, folder: Path, index: int, members: int) -> None:
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.bind(f"ipc://{folder}/{index}.zmq")
        self._sub = self._context.socket(zmq.SUB)
        self._sub.subscribe(b"")
        for number in range(members):
            if number != index:
                self._sub.connect(f"ipc://{folder}/{number}.zmq")

    async def open(self, heard: Heard) -> None:
        loop = asyncio.get_running_loop()

        def read() -> None:
            for _ in range(64):
                try:
                    heard(self._sub.recv(zmq.NOBLOCK))
                except zmq.Again:
                    return
            loop.call_soon(read)  # its descriptor tells of changes only

        loop.add_reader(self._sub.fileno(), read)
        loop.call_soon(read)

    def publish(self, message: bytes) -> None:
        self._pub.send(message, zmq.NOBLOCK)
        self._sub.getsockopt(zmq.EVENTS)


class Pipes:
    """A pipe to the parent each, which passes everything on; see `relay`."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    async def open(self, heard: Heard) -> None:
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), lambda: heard(self._pipe.recv_bytes()))
        os.set_blocking(self._pipe.fileno(), True)  # half a message would be the end of all others

    def publish(self, message: bytes) -> None:
        self._pipe.send_bytes(message)


class Real:
    """A bus of ours."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def open(self, heard: Heard) -> None:
        connected = asyncio.Event()
        self._bus.listen(LOADS, lambda _, message: heard(message))
        await self._bus.open(connected.set)
        await connected.wait()

    def publish(self, message: bytes) -> None:
        self._bus.publish(LOADS, message)


def candidate(kind: str, folder: Path, index: int, members: int, pipe: Connection, nats: str) -> Candidate:
    """One of `KINDS`, for one of the members."""
    match kind:
        case "datagrams":
            return Datagrams(folder, index, members)
        case "zmq":
            return ZeroMq(folder, index, members)
        case "pipes":
            return Pipes(pipe)
        case "local":
            return Real(LocalBus(folder, str(index)))
        case "nats":
            return Real(NatsBus(NatsSettings(servers=(nats,)), time.monotonic, structlog.get_logger()))
        case _:
            raise ValueError(kind)


KINDS = ("datagrams", "zmq", "pipes", "nats", "local")


def relay(pipes: list[Connection], until: Callable[[], bool]) -> None:
    """The parent's part of `Pipes`: waits for a receiver that does not read, as pipes do."""
    by_descriptor = dict(enumerate(pipes))
    while not until():
        for ready in wait(list(by_descriptor.values()), 0.05):
            assert isinstance(ready, Connection)
            message = ready.recv_bytes()
            for pipe in pipes:
                if pipe is not ready:
                    pipe.send_bytes(message)
