"""How long a message to a router and its acknowledgement take together."""

from collections import deque

MEASUREMENTS = 16
"""So many of the latest ones count."""
ASKED_AT_ONCE = 4
"""Until so many were measured each message is to be acknowledged."""
ASK_INTERVAL_S = 10.0
"""After that one in this time: an acknowledgement costs a router as much as a report."""

Key = tuple[str, int]
"""Which message is meant: its node and sequence, as the acknowledgement repeats them."""


class RoundTrip:
    """One stream's round trip, measured in passing: the smallest of the latest `MEASUREMENTS`.

    The smallest, because all that goes wrong on the way only adds: a router that reads slowly, so that messages wait
    in buffers, a loop of ours or theirs that is late, a lost packet. A mean would keep the marks of a stall long
    after it; what is there every time, the smallest has too. One message at a time is timed, so a router that
    acknowledges nothing costs no memory; acknowledgements of others, of which a router may send any number, are not
    mistaken for its own. The stream's first message is not timed: it waits for the connection.
    """

    def __init__(self) -> None:
        self._begun = False
        self._asked_s = float("-inf")
        self._timed: tuple[Key, float] | None = None
        """Which message is under way, and since when."""
        self._measured_s: deque[float] = deque(maxlen=MEASUREMENTS)

    @property
    def seconds(self) -> float:
        """0 until it was measured."""
        return min(self._measured_s, default=0.0)

    def send(self, key: Key, now_s: float) -> bool:
        """A message is about to be sent; whether it shall be acknowledged. Time stands still or goes on."""
        if not self._begun:
            self._begun = True
            return True
        due = len(self._measured_s) < ASKED_AT_ONCE or now_s - self._asked_s >= ASK_INTERVAL_S
        if self._timed is not None or not due:
            return False
        self._timed, self._asked_s = (key, now_s), now_s
        return True

    def acknowledge(self, key: Key, now_s: float) -> None:
        """An acknowledgement came; any other than that of the timed message is harmless."""
        if self._timed is not None and self._timed[0] == key:
            self._measured_s.append(now_s - self._timed[1])
            self._timed = None
