"""Where each worker listens for Envoy, and whether nothing else has that place."""

from collections.abc import Iterator

from extproc.address import PORT_MAX, UNIX_PATH_BYTES_MAX, Address, TcpAddress, UnixAddress, of_worker
from extproc.config import Config
from extproc.core.settings import Fault

_OTHERS = ("agents", "admin", "scaler")
_EVERY = frozenset({"0.0.0.0", "::"})  # noqa: S104 - what others may listen at; nothing is bound here


def of(config: Config) -> list[Address]:
    """The address of each worker, as far as it is known before they listen: port 0 is any."""
    return [of_worker(config.listen.extproc, number) for number in range(config.workers)]


def faults_of(config: Config) -> list[Fault]:
    """Workers' addresses that cannot be, or that another port of the configuration has."""
    found = of(config)[1:]
    return [*_impossible(found), *_taken(config, found)]


def _impossible(found: list[Address]) -> Iterator[Fault]:
    for number, at in enumerate(found, 1):
        if isinstance(at, TcpAddress) and at.port > PORT_MAX:
            yield Fault("workers", f"a port up to {PORT_MAX} for worker {number}", str(at.port))
        if isinstance(at, UnixAddress) and len(at.path.encode()) > UNIX_PATH_BYTES_MAX:
            yield Fault("workers", f"a path of at most {UNIX_PATH_BYTES_MAX} bytes for worker {number}", str(at))


def _taken(config: Config, found: list[Address]) -> Iterator[Fault]:
    for number, at in enumerate(found, 1):
        for name in _OTHERS:
            other: Address | None = getattr(config.listen, name)
            if other is not None and _meet(at, other):
                yield Fault(f"listen.{name}", f"an address of its own, not that of worker {number}", str(other))


def _meet(one: Address, other: Address) -> bool:
    match one, other:
        case TcpAddress(host, port), TcpAddress(other_host, other_port):
            return port == other_port and port != 0 and (host == other_host or bool(_EVERY & {host, other_host}))
        case _:
            return one == other
