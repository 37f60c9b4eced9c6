"""The bus over NATS: one connection at a time, made again and again for ever, and nothing that waits for it.

Messages go out through a bounded queue, and come in through another (`handlers.py`); where either is too slow the
oldest are lost. Whether the server is reached, and how far it is, is shown by what we send to ourselves
(`echo.py`): an open connection alone shows neither.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import structlog

from extproc.bus.bounded import Bounded
from extproc.bus.bus import MESSAGE_BYTES_MAX, NODES, BusCounts, Handler
from extproc.bus.echo import ECHO_S, ECHO_S_MAX, Echo
from extproc.bus.handlers import Handlers
from extproc.bus.natslogin import login_of, options_of
from extproc.bus.settings import NatsSettings
from extproc.bus.subjects import ECHO, subject_of
from extproc.bus.troubles import Troubles, said

if TYPE_CHECKING:  # the extra may be missing
    from nats.aio.msg import Msg

    from extproc.bus.natsconnection import NatsConnection, Server

PAUSE_S_MAX = 2.0
"""Between two attempts to connect, at most."""
PAUSE_S_MIN = 0.05
PAUSE_FIRST_S_MAX = 0.25
"""After a connection that was lost; twice as long after each failure."""
OUT_MESSAGES_MAX = 4096
OUT_BYTES_MAX = 16 * MESSAGE_BYTES_MAX
"""Published and not taken by the connection yet."""
CLOSE_S_MAX = 1.0
"""What was published last may go out for so long."""
SERVERS_KNOWN_MAX = 32
"""Those of the settings and others that a cluster tells of."""
_LOGIN = re.compile("authorization|authentication", re.IGNORECASE)


class NatsBus:
    """A `Bus`; see there."""

    def __init__(
        self, settings: NatsSettings, clock: Callable[[], float], log: structlog.typing.FilteringBoundLogger
    ) -> None:
        self.counts = BusCounts()
        self._settings = settings
        self._clock = clock
        self._handlers = Handlers(self.counts, clock, log)
        self._on_connected: Callable[[], None] = lambda: None
        self._out: Bounded[tuple[str, bytes]] = Bounded(OUT_MESSAGES_MAX, OUT_BYTES_MAX)
        self._echo = Echo()
        self._echo_subject = f"extproc.{settings.fleet}.{ECHO}.{secrets.token_hex(8)}"
        self._message_bytes_max = MESSAGE_BYTES_MAX
        self._connected = False
        self._closing = False
        self._staying: asyncio.Task[None] | None = None
        self._server = ""
        self._troubles = Troubles(clock, log)

    @property
    def connected(self) -> bool:
        """See `Bus`."""
        return self._connected

    @property
    def reason(self) -> str | None:
        """See `Bus`."""
        return self._troubles.reason

    @property
    def refused(self) -> str | None:
        """See `Bus`."""
        return self._troubles.refused

    @property
    def way_s(self) -> float:
        """See `Bus`."""
        return self._echo.way_s(self._clock())

    @property
    def waiting_bytes(self) -> int:
        """Of messages that wait here, to be sent or handled."""
        return self._handlers.waiting_bytes + self._out.bytes

    def publish(self, channel: str, message: bytes, below: str = "") -> None:
        """See `Bus`."""
        subject = subject_of(self._settings.fleet, channel, below)
        if subject is None or len(message) > self._message_bytes_max:
            self.counts.dropped_long += 1
        elif not self._connected:
            self.counts.dropped_unsent += 1
        else:
            self._send(subject, message)

    def listen(self, channel: str, handler: Handler) -> None:
        """See `Bus`."""
        self._handlers.listen(channel, handler)
        self._out.wake()

    async def open(self, on_connected: Callable[[], None]) -> None:
        """See `Bus`."""
        assert self._staying is None, "opened twice"
        self._on_connected = on_connected
        self._staying = asyncio.create_task(self._stay())

    async def close(self) -> None:
        """See `Bus`."""
        self._closing = True
        self._out.wake()
        if (staying := self._staying) is not None:
            if self._connected:
                await asyncio.wait([staying], timeout=CLOSE_S_MAX)
            staying.cancel()
            await asyncio.gather(staying, return_exceptions=True)
        self._handlers.forget()

    def _send(self, subject: str, message: bytes) -> None:
        self.counts.dropped_unsent += self._out.put((subject, message), len(message))

    async def _stay(self) -> None:
        """Connect for ever."""
        servers: list[Server] = []
        failed = 0
        while not self._closing:
            before = self.counts.connections
            try:
                reason = await self._once(servers)
            except Exception as error:  # noqa: BLE001 - of the system, of TLS, of the client and of its parsers
                reason = said(error)
            if _LOGIN.search(reason):
                reason = f"{reason} ({login_of(self._settings)})"
            if self._closing:
                return
            reached = self.counts.connections > before
            self._troubles.failed(self._server, reason, was_reached=reached)
            failed = 0 if reached else failed + 1
            longest_s = min(PAUSE_FIRST_S_MAX * 2 ** min(failed, 10), PAUSE_S_MAX)
            await asyncio.sleep(random.uniform(PAUSE_S_MIN, longest_s))  # noqa: S311 - so that not all come at once

    async def _once(self, servers: list[Server]) -> str:
        """One connection with the first of these servers, which becomes the last; the reason of its end."""
        options = await asyncio.to_thread(options_of, self._settings)  # reads files, imports the client
        if isinstance(options, list):
            return "; ".join(map(str, options))
        from extproc.bus.natsconnection import NatsConnection, Server  # noqa: PLC0415 - the extra may be missing

        if not servers:
            servers += map(Server, random.sample(self._settings.servers, len(self._settings.servers)))
        servers.append(server := servers.pop(0))
        self._server = server.url
        self._troubles.connects()
        connection = NatsConnection(server, options, self._complained, self._slow)
        try:
            await connection.open()
            self._know(servers, connection.found)
            self._message_bytes_max = min(MESSAGE_BYTES_MAX, connection.payload_bytes_max)
            ends = (connection.lost(), self._measure(), self._send_on(connection))
            return await _first_of(*ends, then=lambda: None if self._closing else connection.abort())
        finally:
            self._connected = False
            self._echo = Echo()
            self.counts.dropped_unsent += self._out.clear()
            await connection.close(at_once=not self._closing)

    def _know(self, servers: list[Server], found: list[Server]) -> None:
        """Keep those of the settings, and take those that the cluster has now; not where a secret would go in plain
        text to servers of which the settings say nothing."""
        servers[:] = [server for server in servers if server.url in self._settings.servers]
        if not self._settings.in_plain_text or self._settings.insecure:
            others = [server for server in found if server.url not in self._settings.servers]
            servers += others[: SERVERS_KNOWN_MAX - len(servers)]

    async def _send_on(self, connection: NatsConnection) -> str:
        """Subscribe to all channels, and publish what is to be sent."""
        await connection.subscribe(self._echo_subject, self._hear_echo)
        subscribed: set[str] = set()
        while True:
            for channel in self._handlers.channels:
                if channel not in subscribed:
                    subscribed.add(channel)
                    subject = f"extproc.{self._settings.fleet}.{channel}"
                    all_of_it = f"{subject}.*" if channel == NODES else subject
                    await connection.subscribe(all_of_it, self._hearer(channel, len(subject) + 1))
            while len(self._out):
                subject, message = self._out.take()
                await connection.publish(subject, message)
                if subject != self._echo_subject:
                    self.counts.published += 1
                    self.counts.published_bytes += len(message)
            if self._closing:
                return "closed"
            await self._out.wait()

    async def _measure(self) -> str:
        """Send echoes; returns when one is overdue."""
        echo = self._echo = Echo()
        while True:
            self._send(self._echo_subject, echo.send(self._clock()))
            due_s = self._clock() + ECHO_S
            await asyncio.sleep(ECHO_S)
            now_s = self._clock()
            echo.excuse(now_s - due_s)
            if echo.age_s(now_s) > ECHO_S_MAX:
                return self._troubles.refused or f"nothing comes back for {ECHO_S_MAX:g} s"

    async def _hear_echo(self, message: Msg) -> None:
        if self._echo.hear(message.data, self._clock()) and not self._connected and not self._closing:
            self._connected = True
            self.counts.connections += 1
            self._troubles.reached(self._server)
            self._handlers.guarded(self._on_connected)

    def _hearer(self, channel: str, skipped: int) -> Callable[[Msg], Coroutine[Any, Any, None]]:
        handlers = self._handlers

        async def hear(message: Msg) -> None:
            handlers.hear(channel, message.subject[skipped:], message.data)

        return hear

    def _slow(self) -> None:
        self.counts.dropped_slow += 1

    def _complained(self, reason: str) -> None:
        self._troubles.complained(self._server, reason)


async def _first_of(*ends: Coroutine[Any, Any, str], then: Callable[[], None]) -> str:
    """What the first of these returns; after `then` the others are cancelled."""
    tasks = [asyncio.create_task(end) for end in ends]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task.result() for task in tasks if task.done())
    finally:
        then()
        for task in tasks:
            task.cancel()
        # The client swallows a cancellation while it waits to send: only the connection's end ends that.
        await asyncio.wait(tasks, timeout=CLOSE_S_MAX)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # so that it is not called forgotten
