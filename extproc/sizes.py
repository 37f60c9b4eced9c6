"""Numbers of bytes as they stand in configurations: `32MiB`, or a plain number."""

import re
from typing import Annotated

from pydantic import BeforeValidator

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB}
_SIZE = re.compile(r"([0-9]{1,15})(KiB|MiB|GiB)")


def _size(value: object) -> object:
    if isinstance(value, str):
        if (match := _SIZE.fullmatch(value)) is None:
            msg = "bytes as a number, or with KiB, MiB or GiB as in 32MiB"
            raise ValueError(msg)
        return int(match[1]) * _UNITS[match[2]]
    return value


Size = Annotated[int, BeforeValidator(_size)]
