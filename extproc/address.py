"""Where a server listens."""

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address, ip_address
from typing import assert_never

_WANTED = "host:port, [ipv6]:port or unix:/path"
PORT_MAX = 65535
WORKER_PORTS_APART = 10
"""Between the ports of one worker and the next."""
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_PORT = re.compile(r"[0-9]{1,5}")
UNIX_PATH_BYTES_MAX = 107  # sun_path of Linux, less its final 0


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host (name, IPv4, or IPv6 without brackets) and a port; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        """As gRPC and people write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it; of names that is known of `localhost` alone."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """An absolute path of a unix socket."""

    path: str

    def __str__(self) -> str:
        """As gRPC and people write it."""
        return f"unix:{self.path}"

    @property
    def is_local(self) -> bool:
        """Only this machine can reach it."""
        return True


Address = TcpAddress | UnixAddress


def parse(text: str) -> Address:
    """Read `host:port`, `[ipv6]:port` or `unix:/path`. Raises `ValueError`, whose message says what is wanted."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/") or "\0" in path or len(path.encode(errors="replace")) > UNIX_PATH_BYTES_MAX:
            msg = f"unix: and an absolute path of at most {UNIX_PATH_BYTES_MAX} bytes"
            raise ValueError(msg)
        return UnixAddress(path)
    host, _, port = text.rpartition(":")
    if not _PORT.fullmatch(port) or int(port) > PORT_MAX:
        raise ValueError(_WANTED)
    if host.startswith("[") and host.endswith("]"):
        try:
            return TcpAddress(str(IPv6Address(host[1:-1])), int(port))
        except AddressValueError:
            raise ValueError(_WANTED) from None
    if not _HOST.fullmatch(host):
        raise ValueError(_WANTED)
    return TcpAddress(host, int(port))


def of_worker(first: Address, number: int) -> Address:
    """Where a worker of `serve` listens for Envoy, worker 0 being at `first`: ports 10 apart, or `.1` behind a path.

    Port 0 stays 0. The port may be over `PORT_MAX`, and the path over `UNIX_PATH_BYTES_MAX`.
    """
    match first:
        case TcpAddress(host, port):
            return TcpAddress(host, port + WORKER_PORTS_APART * number if port else 0)
        case UnixAddress(path):
            return UnixAddress(f"{path}.{number}") if number else first
        case other:
            assert_never(other)
