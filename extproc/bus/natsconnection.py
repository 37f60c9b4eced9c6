"""One connection to a NATS server, from its beginning to its end. Imported only where the extra `nats` is installed.

The client's own reconnecting is not used: a new connection has a new client, so that nothing that was published before
is sent after it, and files of secrets and certificates are read anew.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import SlowConsumerError, UnexpectedEOF

from extproc.bus.bus import MESSAGE_BYTES_MAX
from extproc.bus.natstransport import NatsTransport
from extproc.bus.troubles import said

STEP_S_MAX = 3
"""Each of the steps of connecting is given up after so long."""
CLOSE_S_MAX = 0.5
"""What was published last may go out for so long."""
SERVER_PINGS_S = 30
"""Echoes show much sooner that the server is gone."""
PENDING_MESSAGES_MAX = 10_000
PENDING_BYTES_MAX = 16 * MESSAGE_BYTES_MAX
"""Of one subscription, between the client's tasks; more of them never read at once."""
_SENDING_BYTES_MAX = MESSAGE_BYTES_MAX

# What it says there comes to `told` too, without a traceback.
logging.getLogger("nats.aio.client").setLevel(logging.CRITICAL + 1)


class Server(Struct, frozen=True):
    """Where one is, and the name that its certificate must have; `None`: the host in `url`."""

    url: str
    tls_name: str | None = None


class NatsConnection:
    """`told` hears what the server or the client complains of; `slow` is called for each message lost on its way."""

    def __init__(
        self, server: Server, options: dict[str, Any], told: Callable[[str], None], slow: Callable[[], None]
    ) -> None:
        self._server = server
        self._options = options
        self._told = told
        self._slow = slow
        self._opening = True
        self._transport = NatsTransport(tls_only="tls" in options)
        self._client = Client()
        self._client._transport = self._transport  # it takes one only so
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def payload_bytes_max(self) -> int:
        """The server takes no longer messages."""
        return self._client.max_payload

    @property
    def found(self) -> list[Server]:
        """Other servers of its cluster, as it told."""
        name = self._options.get("tls_hostname") or self._server.tls_name or urlsplit(self._server.url).hostname
        return [Server(uri.geturl(), name) for uri in self._client.discovered_servers]

    async def open(self) -> None:
        """Raises whatever the system, TLS or the server has against it."""
        names = {} if self._server.tls_name is None else {"tls_hostname": self._server.tls_name}
        await self._client.connect(
            servers=[self._server.url],
            error_cb=self._complain,
            closed_cb=self._closed,
            name="extproc",
            allow_reconnect=False,
            connect_timeout=STEP_S_MAX,
            ping_interval=SERVER_PINGS_S,
            pending_size=_SENDING_BYTES_MAX,
            **(names | self._options),
        )
        self._opening = False

    async def subscribe(self, subject: str, hear: Callable[[Msg], Awaitable[None]]) -> None:
        """`hear` is called for each message. Raises `nats.errors.Error` when the connection is lost."""
        await self._client.subscribe(
            subject, cb=hear, pending_msgs_limit=PENDING_MESSAGES_MAX, pending_bytes_limit=PENDING_BYTES_MAX
        )

    async def publish(self, subject: str, message: bytes) -> None:
        """Waits where much is not sent yet. Raises `nats.errors.Error` when the connection is lost."""
        await self._client.publish(subject, message)

    async def lost(self) -> str:
        """Returns when it is, with the reason."""
        await self._lost
        return said(self._client.last_error or ConnectionError("closed"))

    def abort(self) -> None:
        """What is not sent yet is lost."""
        self._transport.abort()

    async def close(self, at_once: bool) -> None:
        """Never raises. `at_once`: what is not sent yet is lost."""
        if at_once:
            self._transport.abort()
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._client.close()
        self._transport.abort()

    async def _complain(self, error: Exception) -> None:
        if self._opening:
            raise error  # or it would try this server for ever
        if isinstance(error, SlowConsumerError):
            self._slow()
        elif not isinstance(error, OSError | UnexpectedEOF):  # those end the connection, and are its reason
            self._told(said(error))

    async def _closed(self) -> None:
        if not self._lost.done():
            self._lost.set_result(None)
