"""The bus between the workers of one machine: a unix socket each, in a folder that is theirs alone.

Each connects to all others, whom it finds by looking into the folder, and by their connecting to it.
"""

import asyncio
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from extproc.bus.bus import MESSAGE_BYTES_MAX, BusCounts, Handler
from extproc.bus.handlers import Handlers
from extproc.bus.localpeer import Peer, Reader, frame_of
from extproc.bus.subjects import token_of

LOOK_S = 0.2
"""So often the folder is looked at."""
MEMBERS_MAX = 256
"""Others in one folder; further ones are not told."""
CONNECT_S_MAX = 1.0
_SUFFIX = ".sock"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class LocalBus:
    """A `Bus`; see there. `folder` is there and nobody else's; `name` is that of no other living member."""

    def __init__(
        self,
        folder: Path,
        name: str,
        clock: Callable[[], float] | None = None,
        log: structlog.typing.FilteringBoundLogger | None = None,
    ) -> None:
        assert _NAME.fullmatch(name), name
        self.counts = BusCounts()
        self._folder = folder
        self._name = name
        self._handlers = Handlers(self.counts, clock or time.monotonic, log or structlog.get_logger())
        self._peers: dict[str, Peer] = {}
        self._readers: set[Reader] = set()
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._called: set[str] = set()
        """Those who were met again while we tried to connect to them."""
        self._looking: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None

    @property
    def connected(self) -> bool:
        """Always, between `open` and `close`."""
        return self._server is not None

    @property
    def reason(self) -> None:
        """There is none."""
        return None

    @property
    def refused(self) -> None:
        """Nothing is."""
        return None

    @property
    def way_s(self) -> float:
        """As good as nothing."""
        return 0.0

    @property
    def waiting_bytes(self) -> int:
        """Of messages that wait here, to be sent or handled."""
        return self._handlers.waiting_bytes + sum(peer.waiting_bytes for peer in self._peers.values())

    @property
    def members(self) -> list[str]:
        """The others to whom we send."""
        return sorted(self._peers)

    def publish(self, channel: str, message: bytes, below: str = "") -> None:
        """See `Bus`."""
        token = token_of(below) if below else ""
        if token is None or len(message) > MESSAGE_BYTES_MAX:
            self.counts.dropped_long += 1
            return
        if self._server is None:
            self.counts.dropped_unsent += 1
            return
        self.counts.published += 1
        self.counts.published_bytes += len(message)
        self._handlers.hear(channel, token, message)
        if self._peers:
            frame = frame_of(channel, token, message)
            for peer in self._peers.values():
                self.counts.dropped_unsent += peer.send(frame)

    def listen(self, channel: str, handler: Handler) -> None:
        """See `Bus`."""
        self._handlers.listen(channel, handler)

    async def open(self, on_connected: Callable[[], None]) -> None:
        """See `Bus`. Raises `OSError` where the folder is not there or its path is too long for a socket."""
        assert self._server is None, "opened twice"
        path = self._path(self._name)
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(path))
            self._server = await asyncio.get_running_loop().create_unix_server(self._reader, sock=listening)
        except BaseException:
            listening.close()
            raise
        self._look()
        await asyncio.gather(*self._connecting.values())
        self._looking = asyncio.create_task(self._keep_looking())
        self.counts.connections += 1
        self._handlers.guarded(on_connected)

    async def close(self) -> None:
        """See `Bus`."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        with suppress(OSError):
            self._path(self._name).unlink()
        tasks = [*self._connecting.values()] + ([] if self._looking is None else [self._looking])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in list(self._peers.values()):
            peer.close()
        for reader in self._readers:
            if reader.transport is not None:
                reader.transport.close()
        self._handlers.forget()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"

    def _reader(self) -> Reader:
        reader = Reader(self._meet, self._hear)
        self._readers = {one for one in self._readers if one.transport is None or not one.transport.is_closing()}
        self._readers.add(reader)
        return reader

    def _hear(self, channel: str, token: str, message: bytes) -> None:
        if self._server is not None:
            self._handlers.hear(channel, token, message)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()

    def _look(self) -> None:
        """Meet those in the folder."""
        with suppress(OSError):
            for path in self._folder.iterdir():
                if path.suffix == _SUFFIX:
                    self._meet(path.stem)

    def _meet(self, name: str) -> None:
        """Connect to a member, unless we are: what is published from now on is kept for it until then."""
        if name in self._connecting:
            self._called.add(name)
        known = name == self._name or name in self._peers or not _NAME.fullmatch(name)
        if known or self._server is None or len(self._peers) >= MEMBERS_MAX:
            return
        peer = Peer(self._name, lambda: self._part(name, peer))
        self._peers[name] = peer
        task = self._connecting[name] = asyncio.create_task(self._connect(name, peer))
        task.add_done_callback(lambda _: self._connecting.pop(name, None))

    async def _connect(self, name: str, peer: Peer) -> None:
        while True:
            self._called.discard(name)
            try:
                async with asyncio.timeout(CONNECT_S_MAX):
                    await asyncio.get_running_loop().create_unix_connection(lambda: peer, str(self._path(name)))
            except (OSError, TimeoutError):  # it has ended and left its socket, or does not listen yet
                if name in self._called:  # but has begun again meanwhile
                    continue
                self._part(name, peer)
            return

    def _part(self, name: str, peer: Peer) -> None:
        if self._peers.get(name) is peer:
            del self._peers[name]
