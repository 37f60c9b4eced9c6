"""What comes for one model at each time of day."""

from array import array
from typing import Final

SLOT_S: Final = 300
SLOTS: Final = 86_400 // SLOT_S
NEW_SHARE: Final = 0.3
"""How much the latest day counts against all before it."""


class Seasons:
    """The mean rates of sequences and prompt tokens in each slot of the day, known once a whole day was seen.

    The day is that of the clock which `now_s` is of, wherever it begins. Workdays and weekends are one.
    State: two numbers for each slot, and those of the slot that runs.
    """

    __slots__ = ("_began", "_now", "_sequences", "_slot", "_tokens")

    def __init__(self, now_s: float) -> None:
        self._sequences, self._tokens = (array("d", bytes(8 * SLOTS)) for _ in range(2))
        self._slot = self._began = int(now_s // SLOT_S)
        self._now = (0.0, 0.0)
        """Sums of the slot that runs."""

    def add(self, sequences: float, tokens: float, now_s: float) -> None:
        """A request came."""
        self._advance(int(now_s // SLOT_S))
        self._now = (self._now[0] + sequences, self._now[1] + tokens)

    def at(self, at_s: float, now_s: float) -> tuple[float, float] | None:
        """Sequences and tokens in a second that are usual at a time from now on, by the slot that it is in.

        `None` before a day is over, or after one without a request. Not smoothed: what begins on the hour begins then.
        """
        now = int(now_s // SLOT_S)
        if now - self._began <= SLOTS or now - self._slot > SLOTS:
            return None
        place = int(at_s // SLOT_S) % SLOTS
        return self._sequences[place], self._tokens[place]

    def _advance(self, slot: int) -> None:
        if slot <= self._slot:
            return
        self._learn(self._slot, *self._now)
        # Those between in which nothing came; more than a day of them say it more than once.
        for empty in range(max(self._slot + 1, slot - SLOTS), slot):
            self._learn(empty, 0.0, 0.0)
        self._slot, self._now = slot, (0.0, 0.0)

    def _learn(self, slot: int, sequences: float, tokens: float) -> None:
        share = NEW_SHARE if slot - self._began > SLOTS else 1.0
        place = slot % SLOTS
        self._sequences[place] += share * (sequences / SLOT_S - self._sequences[place])
        self._tokens[place] += share * (tokens / SLOT_S - self._tokens[place])
