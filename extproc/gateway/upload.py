"""One request's body as it comes: gathered, and held against what all bodies may fill."""

import enum

from extproc.config import ServeLimits
from extproc.gateway.budget import BodyBudget, BodyShare


class Overflow(enum.Enum):
    """Why a body is not taken."""

    TOO_LARGE = enum.auto()
    """It is longer than any may be."""
    NO_ROOM = enum.auto()
    """The bodies of other requests fill the memory that is there."""


class Upload:
    """The body of one request. `drop` must be called in the end; it may be called again."""

    __slots__ = ("_chunks", "_limits", "_share", "bytes_come")

    def __init__(self, budget: BodyBudget, limits: ServeLimits) -> None:
        self._share = BodyShare(budget)
        self._limits = limits
        self._chunks: list[bytes] = []
        self.bytes_come = 0

    def announced(self, amount: int, *, comes: bool = True) -> Overflow | None:
        """What the headers say of its length: what is too much is refused before Envoy buffers it.

        What never `comes` here takes no room.
        """
        if amount > self._limits.body_bytes_max:
            return Overflow.TOO_LARGE
        if comes and amount >= self._limits.body_claim_bytes_min and not self._share.claim(amount):
            return Overflow.NO_ROOM
        return None

    def add(self, piece: bytes) -> Overflow | None:
        """The next piece."""
        self.bytes_come += len(piece)
        if self.bytes_come > self._limits.body_bytes_max:
            return Overflow.TOO_LARGE
        if not self._share.hold(len(piece)):
            return Overflow.NO_ROOM
        self._chunks.append(piece)
        return None

    def whole(self) -> bytes:
        """All that has come, in one."""
        if len(self._chunks) != 1:
            self._chunks = [b"".join(self._chunks)]
        return self._chunks[0]

    def forget(self) -> None:
        """Its bytes are not needed here any more; Envoy still holds them, so they count until `drop`."""
        self._chunks.clear()

    def drop(self) -> None:
        """Nobody holds it any more, or it will not come."""
        self._chunks.clear()
        self._share.give_back()
