"""What all lines of a journal have in common: their form, and how they hold hashes."""

import struct
from typing import Final

from msgspec import Struct

BLOCK_BYTES: Final = 8
"""One hash of a prompt's block, little-endian; JSON has them in Base64."""


class LineForm(Struct, frozen=True, tag_field="call", omit_defaults=True, forbid_unknown_fields=True):
    """A JSON object, told apart by `call`."""


def packed(blocks: tuple[int, ...]) -> bytes:
    """A prompt's blocks as bytes. Raises `struct.error` for what has more than 64 bits."""
    return struct.pack(f"<{len(blocks)}Q", *blocks) if blocks else b""


def unpacked(blocks: bytes) -> tuple[int, ...]:
    """The same back. Raises `struct.error` for a length that is not a multiple of `BLOCK_BYTES`."""
    return struct.unpack(f"<{len(blocks) // BLOCK_BYTES}Q", blocks)
