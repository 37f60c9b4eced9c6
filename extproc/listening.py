"""Taking an address for a server, or saying in one line why that cannot be.

gRPC's own error for a taken port names no reason, and with SO_REUSEPORT, its default, there is none: two servers
would share the port and each get half of the requests.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from extproc.address import Address, TcpAddress, UnixAddress

BACKLOG = 128
"""Connections that may wait to be accepted."""
GRPC_OPTIONS: list[tuple[str, int]] = [
    ("grpc.so_reuseport", 0),
    # A peer that vanished without a word would keep its streams, and what they hold, for hours. gRPC 1.85 was seen to
    # wait for the ping's own timeout, a minute, whatever `keepalive_timeout_ms` says.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
]
"""Options of every gRPC server of ours."""


class ListenError(Exception):
    """An address cannot be listened at. The message is the address and the reason."""


async def grpc_port(server: grpc.aio.Server, at: Address, credentials: grpc.ServerCredentials | None = None) -> Address:
    """Let a gRPC server listen, with TLS if there are credentials; the address it got, with its port instead of 0."""
    await asyncio.to_thread(_claim, at)
    try:
        with _sockets_for_our_group():
            if credentials is None:
                port = server.add_insecure_port(str(at))
            else:
                port = server.add_secure_port(str(at), credentials)
    except RuntimeError as error:
        raise ListenError(f"{at}: {error}") from None
    return TcpAddress(at.host, port) if isinstance(at, TcpAddress) else at


async def stream_port(protocol: Callable[[], asyncio.Protocol], at: Address) -> tuple[asyncio.Server, Address]:
    """Listen, with a protocol for each connection; the address it got."""
    await asyncio.to_thread(_claim, at)
    loop = asyncio.get_running_loop()
    try:
        match at:
            case TcpAddress(host, port):
                server = await loop.create_server(protocol, host, port, backlog=BACKLOG)
                return server, TcpAddress(host, server.sockets[0].getsockname()[1])
            case UnixAddress(path):
                with _sockets_for_our_group():
                    return await loop.create_unix_server(protocol, path, backlog=BACKLOG), at
    except OSError as error:
        raise ListenError(f"{at}: {error.strerror}") from None


@contextlib.contextmanager
def _sockets_for_our_group() -> Iterator[None]:
    """Unix sockets bound in here are for our user and group (0660), whatever the umask was: who may connect to one can
    do all that its port can do."""
    before = os.umask(0o117)
    try:
        yield
    finally:
        os.umask(before)


def _claim(at: Address) -> None:
    """Raise `ListenError` where the address is somebody's or cannot be ours."""
    try:
        match at:
            case TcpAddress(host, port):
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
                for family, kind, _, _, place in found:
                    with socket.socket(family, kind) as probe:
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind(place)
            case UnixAddress(path):
                _claim_path(Path(path))
    except OSError as error:
        raise ListenError(f"{at}: {error.strerror}") from None


def _claim_path(path: Path) -> None:
    # A socket that nobody answers at was left by an earlier run, and the servers replace it. Anything else stays.
    if not path.exists():
        path.touch()  # raises what keeps a file from being there
        path.unlink()
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            if path.is_socket():
                return
            raise OSError(0, "not a socket") from None
    raise OSError(0, "Address already in use")
