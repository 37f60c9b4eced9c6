"""How long a message to a router and its acknowledgement take together."""

from collections import deque

MEASUREMENTS = 16
"""So many of the latest ones count."""


class RoundTrip:
    """One stream's round trip, measured in passing: the smallest of the latest `MEASUREMENTS`.

    The smallest, because all that goes wrong on the way only adds: a router that reads slowly, so that messages wait
    in buffers, a loop of ours or theirs that is late, a lost packet. A mean would keep the marks of a stall long
    after it; what is there every time, the smallest has too. Acknowledgements come in the messages' order, so counting
    both is enough to match them; one message at a time is timed, so a router that acknowledges nothing costs no memory.
    The stream's first message is not timed: it waits for the connection.
    """

    def __init__(self) -> None:
        self._sent = 0
        self._acknowledged = 0
        self._timed: tuple[int, float] | None = None
        """Which message is under way, and since when."""
        self._measured_s: deque[float] = deque(maxlen=MEASUREMENTS)

    @property
    def seconds(self) -> float:
        """0 until it was measured."""
        return min(self._measured_s, default=0.0)

    def send(self, now_s: float) -> None:
        """A message is about to be sent. Time stands still or goes on between calls."""
        self._sent += 1
        if self._timed is None and self._sent > 1:
            self._timed = (self._sent, now_s)

    def acknowledge(self, now_s: float) -> None:
        """An acknowledgement came; one too many is harmless."""
        self._acknowledged += 1
        if self._timed is not None and self._acknowledged >= self._timed[0]:
            self._measured_s.append(now_s - self._timed[1])
            self._timed = None
