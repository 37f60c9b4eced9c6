"""How far the bus is, by what we send to ourselves through it, on the way that messages go."""

import secrets
from collections import deque

ECHO_S = 0.5
"""So often one is sent."""
ECHO_S_MAX = 3.0
"""One that is not back by then means that the bus cannot be reached."""


class Echo:
    """Of one connection: which are out, and how long the last one took."""

    def __init__(self) -> None:
        self._out: deque[tuple[bytes, float]] = deque()
        self._took_s = 0.0

    def send(self, now_s: float) -> bytes:
        """The next one. Nobody can guess it: others may write where we listen."""
        echo = secrets.token_bytes(8)
        self._out.append((echo, now_s))
        return echo

    def hear(self, echo: bytes, now_s: float) -> bool:
        """Whether it is one of ours that was still out. Those sent before it are lost."""
        for index, (sent, sent_s) in enumerate(self._out):
            if sent == echo:
                self._took_s = max(now_s - sent_s, 0.0)
                for _ in range(index + 1):
                    self._out.popleft()
                return True
        return False

    def excuse(self, late_s: float) -> None:
        """The event loop was held up for so long: those that are out may be back and not read yet."""
        self._out = deque((echo, sent_s + late_s) for echo, sent_s in self._out)

    def age_s(self, now_s: float) -> float:
        """Of the oldest that is still out; 0: none is."""
        return max(now_s - self._out[0][1], 0.0) if self._out else 0.0

    def way_s(self, now_s: float) -> float:
        """Half of what the last one took, or of how long one is out already, whichever is more."""
        return max(self._took_s, self.age_s(now_s)) / 2
