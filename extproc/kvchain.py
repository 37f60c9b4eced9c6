"""The numbers by which a router and its agents speak of what stands in an engine's prefix cache.

A block is the next 16 tokens of a prompt, and its number stands for all tokens up to its end: the xxh3 hash (64 bits)
of its token ids as 32-bit little-endian integers, seeded with the number of the block before it. The first one's seed
is the hash of the LoRA adapter's name, of the empty text for the base model. So equal numbers mean equal beginnings,
whatever block size an engine has and however it hashes.

The numbers are not keyed, since both sides must come to the same ones without a secret between them. Who makes two
prompts with equal numbers on purpose gets his own request sent where its beginning is not: no answer is wrong by that.
"""

import sys
from array import array
from collections.abc import Iterable
from struct import unpack
from typing import Final

from xxhash import xxh3_64_intdigest

BLOCK_TOKENS: Final = 16
ID_BYTES: Final = 4
BLOCK_BYTES: Final = BLOCK_TOKENS * ID_BYTES
TOKEN_BLOCKS_MAX: Final = 16_384
"""262,144 tokens of one prompt: what lies behind is not told apart."""


def root_of(adapter: str = "") -> int:
    """The seed of a prompt's first block."""
    return xxh3_64_intdigest(adapter.encode("utf-8", "surrogatepass"))


def id_bytes(ids: Iterable[int]) -> bytes:
    """Token ids as they are hashed. Raises `OverflowError` for an id that 32 bits do not hold, `TypeError` for none."""
    numbers = array("I", ids)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def numbers_of(tokens: bytes, number: int) -> tuple[int, ...]:
    """The numbers of the whole blocks in `tokens`, behind the block of this number. Takes 0.13 µs for each."""
    count = len(tokens) // BLOCK_BYTES
    # Half the time of slices.
    blocks = unpack(f"{BLOCK_BYTES}s" * count, tokens[: count * BLOCK_BYTES])
    return tuple([number := xxh3_64_intdigest(block, number) for block in blocks])


def token_blocks_of(ids: Iterable[int], adapter: str = "") -> tuple[int, ...]:
    """See `InferenceRequest.token_blocks`. Raises as `id_bytes`. Takes 0.3 µs for each block."""
    return numbers_of(id_bytes(ids)[: TOKEN_BLOCKS_MAX * BLOCK_BYTES], root_of(adapter))
