"""A DNS name behind which there may be several routers."""

from dataclasses import dataclass
from ipaddress import ip_address

from extproc import address
from extproc.address import Address, TcpAddress

PREFIX = "dns:"
_WANTED = "dns:name:port"


@dataclass(frozen=True, slots=True)
class RouterName:
    """Every address of the name is a router, on the same port."""

    host: str
    port: int

    def __str__(self) -> str:
        """As it stands in configurations."""
        return f"{PREFIX}{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it, as far as a name tells."""
        return self.host == "localhost"


Router = Address | RouterName


def parse(text: str) -> Router:
    """Read an address, or `dns:` before a name and a port. Raises `ValueError`, whose message says what is wanted."""
    if not text.startswith(PREFIX):
        return address.parse(text)
    try:
        at = address.parse(text.removeprefix(PREFIX))
    except ValueError:
        raise ValueError(_WANTED) from None
    if not isinstance(at, TcpAddress) or _is_address(at.host):
        raise ValueError(_WANTED)
    return RouterName(at.host, at.port)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
