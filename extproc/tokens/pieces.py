"""What is known of text that was counted before, so that the next turn of a chat costs its new messages only.

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

from extproc.kvchain import ID_BYTES

ENTRY_BYTES: Final = 256
"""Memory of one count: its key of 128 bits, its number, and their places in the table (measured: about 210)."""


Known = int | bytes
"""Of a piece: how many tokens it is, or their ids."""


def tokens_in(known: Known) -> int:
    """How many tokens it is."""
    return known if isinstance(known, int) else len(known) // ID_BYTES


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
    found: list[Known | None] = []
    """What is known of each piece, in their order; `None`: it is to be encoded."""


PIECES_MAX: Final = 4096
"""Of one text: what lies behind is one piece, or a client could push out everybody's counts by control tokens."""


def cut(text: str, boundary: str | None) -> list[str]:
    """The text in pieces, each of them but perhaps the first beginning with the boundary."""
    if boundary is None:
        return [text]
    first, *rest = text.split(boundary, PIECES_MAX)
    pieces = [boundary + piece for piece in rest]
    return [first, *pieces] if first else pieces


class KnownPieces:
    """Tokens of pieces by a keyed hash of each, the least recently used first to go. Any thread may use it.

    128 bits by a key that nobody knows: that two texts meet is no concern, and no client can make them.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._tokens: OrderedDict[int, Known] = OrderedDict()
        self._bytes_held = 0
        self._lock = threading.Lock()

    @property
    def bytes_held(self) -> int:
        """Memory of all that is known."""
        return self._bytes_held

    def look_up(self, pieces: Sequence[str], seed: int) -> Cut:
        """What is known of them; `seed` tells vocabularies apart. Raises `UnicodeEncodeError` on lone surrogates."""
        found = Cut()
        encoded = [piece.encode() for piece in pieces]
        keys = [xxh3_128_intdigest(one, seed) for one in encoded]
        with self._lock:
            tokens = self._tokens
            for key, piece, one in zip(keys, pieces, encoded, strict=True):
                known = tokens.get(key)
                found.found.append(known)
                if known is None:
                    found.pieces.append(piece)
                    found.keys.append(key)
                    found.new_bytes += len(one)
                else:
                    tokens.move_to_end(key)
                    found.known_tokens += tokens_in(known)
        return found

    def keep(self, keys: Sequence[int], known: Sequence[Known]) -> None:
        """Remember the tokens of pieces."""
        with self._lock:
            for key, tokens in zip(keys, known, strict=True):
                before = self._tokens.get(key)
                self._bytes_held += _bytes_of(tokens) - (0 if before is None else _bytes_of(before))
                self._tokens[key] = tokens
                self._tokens.move_to_end(key)
            while self._bytes_held > self._bytes_max:
                _, gone = self._tokens.popitem(last=False)
                self._bytes_held -= _bytes_of(gone)


def _bytes_of(known: Known) -> int:
    return ENTRY_BYTES + (0 if isinstance(known, int) else len(known))
