"""Types of what stands in configurations: addresses, networks, paths and patterns."""

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, ValidationInfo

from extproc import address
from extproc.address import Address, TcpAddress, UnixAddress

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m)?")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
_SIZE = re.compile(r"([0-9]{1,15})(KiB|MiB|GiB)")


def _address(value: object) -> Address:
    return value if isinstance(value, TcpAddress | UnixAddress) else address.parse(str(value))


def seconds(text: str) -> float:
    """Seconds out of a text as `500ms`, `1s`, `2m` or `0.5`. Raises `ValueError` with what was wanted."""
    if (match := _DURATION.fullmatch(text)) is None:
        msg = "seconds as a number, or with ms, s or m as in 500ms"
        raise ValueError(msg)
    return float(match[1]) * _UNITS_S[match[2]]


def _networks(value: object) -> object:
    if not isinstance(value, list | tuple):
        msg = "a list of networks as 10.0.0.0/8"
        raise ValueError(msg)
    networks = []
    for one in value:
        try:
            networks.append(ip_network(one if isinstance(one, str | IPv4Network | IPv6Network) else str(one)))
        except ValueError:
            msg = f"networks as 10.0.0.0/8 or fc00::/7, without host bits; not {str(one)[:60]!r}"
            raise ValueError(msg) from None
    return tuple(networks)


def path(value: object, info: ValidationInfo) -> object:
    """A path that starts at the folder of the file it stands in: a configuration can be moved with its files."""
    folder: Path = (info.context or {}).get("folder", Path())
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        msg = "a path"
        raise ValueError(msg)
    return folder / value


AnyAddress = Annotated[TcpAddress | UnixAddress, PlainValidator(_address)]
Networks = Annotated[tuple[IPv4Network | IPv6Network, ...], BeforeValidator(_networks)]
FilePath = Annotated[Path, BeforeValidator(path)]
Pattern = Annotated[str, Field(min_length=1, max_length=256)]

SETTINGS = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
"""Of every section: unknown keys are faults."""
