"""Real text that does not come twice: Python's own library, its source and what it says of itself, with rare words.

Libraries remember how they split words, so a benchmark of the same text again and again would measure that memory.
"""

import random
import sysconfig
from pathlib import Path
from typing import Final

from extproc.prompt import Chat, Message

KB: Final = 1000
_RARE_EVERY_BYTES: Final = 250
_ENDINGS: Final = (".py", ".txt", ".rst", ".html")
_SYLLABLES: Final = ("ba", "cho", "dri", "fe", "gul", "ki", "lo", "mna", "ou", "pre", "qua", "sti", "tz", "vor", "zy")


class FreshText:
    """Slices of the text, one behind the other. When all was taken it goes on from an odd place with other words."""

    def __init__(self, seed: int = 0) -> None:
        self._data = _standard_library()
        self._at = seed * 1_000_003 % len(self._data)
        # The same text in every run.
        self._chance = random.Random(seed)
        self._words = 0

    def take(self, size: int) -> str:
        """Text of `size` bytes, or the few less that a character at an edge takes."""
        made, left = [], size
        while left > 0:
            word = self._rare_word()[:left]
            part = self._next(min(left, _RARE_EVERY_BYTES) - len(word))
            made += [word, part]
            left -= len(word) + len(part)
        return b"".join(made).decode(errors="ignore")

    def chat(self, messages: int, size: int) -> Chat:
        """A conversation of so many messages and bytes of text, the user's first and last (`messages` is odd)."""
        return said([self.take(size // messages) for _ in range(messages)])

    def _rare_word(self) -> bytes:
        self._words += 1
        return f" {''.join(self._chance.choices(_SYLLABLES, k=4))}{self._words} ".encode()

    def _next(self, size: int) -> bytes:
        size = max(0, size)
        part = self._data[self._at : self._at + size]
        self._at += size
        if self._at >= len(self._data):
            self._at = self._chance.randrange(1, 100_000) | 1
        return part


def said(contents: list[str]) -> Chat:
    """The user's and the assistant's words in turn."""
    roles = ("user", "assistant")
    return Chat(tuple(Message(role=roles[turn % 2], content=content) for turn, content in enumerate(contents)))


def _standard_library() -> bytes:
    """About 30 MB; 13 where Python comes without its tests. Prose is the help texts and what stands in the source."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = (path for path in sorted(folder.rglob("*")) if path.suffix in _ENDINGS and path.is_file())
    return b"\n".join(path.read_bytes() for path in files if "site-packages" not in path.parts)
