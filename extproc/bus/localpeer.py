"""Messages between processes of one machine, over unix stream sockets: how they are framed, and one way of them.

A frame is its head, then the sender's name or the channel, the token below it, and the message.
"""

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import cast

from extproc.bus.bounded import Bounded
from extproc.bus.bus import MESSAGE_BYTES_MAX
from extproc.bus.subjects import TOKEN_BYTES_MAX

CHANNEL_BYTES_MAX = 64
BACKLOG_MESSAGES_MAX = 8192
BACKLOG_BYTES_MAX = 16 * MESSAGE_BYTES_MAX
"""For a receiver that does not read; beyond it, and what the system holds of about 0.3 MB, the oldest are lost."""
_HEAD = Struct(">IHH")


def frame_of(channel: str, token: str, message: bytes) -> bytes:
    """One message, as it goes over the socket."""
    return b"".join((_HEAD.pack(len(message), len(channel), len(token)), channel.encode(), token.encode(), message))


class Reader(asyncio.Protocol):
    """What another member sends us. Its first frame is its name; whoever writes nonsense is cut off."""

    def __init__(self, named: Callable[[str], None], heard: Callable[[str, str, bytes], None]) -> None:
        self._named = named
        self._heard = heard
        self._is_named = False
        self._buffer = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _HEAD.size:
            message_bytes, channel_bytes, token_bytes = _HEAD.unpack_from(buffer, at)
            if (
                message_bytes > MESSAGE_BYTES_MAX
                or not 0 < channel_bytes <= CHANNEL_BYTES_MAX
                or token_bytes > TOKEN_BYTES_MAX
            ):
                return self._cut()
            channel_at = at + _HEAD.size
            token_at = channel_at + channel_bytes
            message_at = token_at + token_bytes
            end = message_at + message_bytes
            if len(buffer) < end:
                break
            try:
                channel = buffer[channel_at:token_at].decode("ascii")
                token = buffer[token_at:message_at].decode("ascii")
            except UnicodeDecodeError:
                return self._cut()
            if self._is_named:
                self._heard(channel, token, bytes(buffer[message_at:end]))
            else:
                self._is_named = True
                self._named(channel)
            at = end
        del buffer[:at]
        return None

    def _cut(self) -> None:
        self._buffer.clear()
        if self.transport is not None:
            self.transport.abort()


class Peer(asyncio.Protocol):
    """Another member, as we send to it. What it does not take waits here for a while; the oldest are lost."""

    def __init__(self, own_name: str, gone: Callable[[], None]) -> None:
        self._own_name = own_name
        self._gone = gone
        self._backlog: Bounded[bytes] = Bounded(BACKLOG_MESSAGES_MAX, BACKLOG_BYTES_MAX)
        self._takes = False
        self._transport: asyncio.Transport | None = None

    @property
    def waiting_bytes(self) -> int:
        """Of messages that it has not taken."""
        return self._backlog.bytes

    def send(self, frame: bytes) -> int:
        """Now or later; how many old ones were lost for it."""
        if self._takes and self._transport is not None:
            self._transport.write(frame)
            return 0
        return self._backlog.put(frame, len(frame))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(frame_of(self._own_name, "", b""))
        self.resume_writing()

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._takes = False

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._takes = True
        while self._takes and self._transport is not None and len(self._backlog):
            self._transport.write(self._backlog.take())

    def connection_lost(self, _: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._takes = False
        self._gone()

    def close(self) -> None:
        """What the transport has goes out; the backlog is lost."""
        self._takes = False
        if self._transport is not None:
            self._transport.close()
