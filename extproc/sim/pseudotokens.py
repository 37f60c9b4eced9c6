"""Text as an emulated engine sees it: four bytes are a token, and what it answers is a fixed function of what it reads.

Each piece of a prompt (a message's role, its text, a tool) is filled up to whole tokens by itself, as a chat template's
control tokens separate them for a real tokenizer. So prompts that begin alike share their first blocks, and the next
turn of a conversation also shares the blocks of the answer before it.
"""

from collections.abc import Sequence
from hashlib import blake2b

from extproc.sim.kv import BLOCK_SIZE_TOKENS

TOKEN_BYTES = 4
_BLOCK_BYTES = BLOCK_SIZE_TOKENS * TOKEN_BYTES
_MEDIA_TOKENS = 16

_WORDS = (
    b"the and for not you all can had her was one our out day get has him his how man new now old see two way who boy"
)
_PIECES = tuple(word + b" " for word in _WORDS.split())
"""What answers are made of: one token each."""


def piece(text: str) -> bytes:
    """A text as whole tokens."""
    raw = text.encode()
    return raw + b"\0" * (-len(raw) % TOKEN_BYTES)


def token_ids(ids: Sequence[int]) -> bytes:
    """A prompt given as token ids: one token each."""
    return b"".join((one & 0xFFFF_FFFF).to_bytes(TOKEN_BYTES, "little") for one in ids)


def media(encoded: bytes) -> bytes:
    """An image or another part that is no text: 16 tokens that depend on all of it."""
    return blake2b(encoded, digest_size=_MEDIA_TOKENS * TOKEN_BYTES).digest()


def count(prompt: bytes) -> int:
    """Tokens of a prompt; at least 1, as every template begins with something."""
    return max(1, len(prompt) // TOKEN_BYTES)


def seed(prompt: bytes, index: int) -> int:
    """What the `index`-th answer to a prompt depends on; 64 bits."""
    return int.from_bytes(blake2b(prompt, digest_size=8, salt=index.to_bytes(8, "little")).digest(), "little")


def answer(seed_of_answer: int, tokens: int) -> list[bytes]:
    """An answer, token by token."""
    state = seed_of_answer
    pieces = []
    for _ in range(tokens):
        # Knuth's MMIX generator: the high bits are good enough to choose words.
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFF_FFFF_FFFF_FFFF
        pieces.append(_PIECES[(state >> 33) % len(_PIECES)])
    return pieces


def block_keys(tokens: bytes) -> list[int]:
    """One key for each full block: a hash of the block and of all before it."""
    keys = []
    link = b""
    for end in range(_BLOCK_BYTES, len(tokens) + 1, _BLOCK_BYTES):
        link = blake2b(tokens[end - _BLOCK_BYTES : end], digest_size=16, key=link).digest()
        keys.append(int.from_bytes(link, "little"))
    return keys
