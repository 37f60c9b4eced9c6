"""Counts of text that was counted before, so that the next turn of a chat costs its new messages only.

A rendered chat is cut at a control token (`CountedModel.boundary`). Tokenizers cut there first, whatever stands on
both sides, and count what is between alone: so the counts of the pieces add up to the count of the whole, exactly, and
whatever the template did. A template that rewrites history, as by leaving out earlier reasoning, makes other pieces,
which are counted anew.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from xxhash import xxh3_128_intdigest

ENTRY_BYTES: Final = 256
"""Memory of one count: its key of 128 bits, its number, and their places in the table (measured: about 210)."""


class Cut(Struct):
    """Texts in pieces: what is known of them, and what has to be encoded."""

    pieces: list[str] = []
    """To be encoded."""
    keys: list[int] = []
    """Theirs."""
    known_tokens: int = 0
    """Tokens of all pieces that are known."""
    new_bytes: int = 0
    """Of the pieces to be encoded."""


PIECES_MAX: Final = 4096
"""Of one text: what lies behind is one piece, or a client could push out everybody's counts by control tokens."""


def cut(text: str, boundary: str | None) -> list[str]:
    """The text in pieces, each of them but perhaps the first beginning with the boundary."""
    if boundary is None:
        return [text]
    first, *rest = text.split(boundary, PIECES_MAX)
    pieces = [boundary + piece for piece in rest]
    return [first, *pieces] if first else pieces


class PieceCounts:
    """Tokens of pieces by a keyed hash of each, the least recently used first to go. Any thread may use it.

    128 bits by a key that nobody knows: that two texts meet is no concern, and no client can make them.
    """

    def __init__(self, bytes_max: int) -> None:
        self._entries_max = bytes_max // ENTRY_BYTES
        self._tokens: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def bytes_held(self) -> int:
        """Memory of all counts."""
        return len(self._tokens) * ENTRY_BYTES

    def look_up(self, pieces: Sequence[str], seed: int) -> Cut:
        """What is known of them; `seed` tells vocabularies apart. Raises `UnicodeEncodeError` on lone surrogates."""
        found = Cut()
        encoded = [piece.encode() for piece in pieces]
        keys = [xxh3_128_intdigest(one, seed) for one in encoded]
        with self._lock:
            tokens = self._tokens
            for key, piece, one in zip(keys, pieces, encoded, strict=True):
                known = tokens.get(key)
                if known is None:
                    found.pieces.append(piece)
                    found.keys.append(key)
                    found.new_bytes += len(one)
                else:
                    tokens.move_to_end(key)
                    found.known_tokens += known
        return found

    def keep(self, keys: Sequence[int], counts: Sequence[int]) -> None:
        """Remember the tokens of pieces."""
        with self._lock:
            for key, tokens in zip(keys, counts, strict=True):
                self._tokens[key] = tokens
                self._tokens.move_to_end(key)
            while len(self._tokens) > self._entries_max:
                self._tokens.popitem(last=False)
