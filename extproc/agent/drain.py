"""Whether a node takes nothing new, and whether its engine has finished what it had."""

from extproc.agent.watch import Sighting
from extproc.core.snapshot import NodeState

EMPTY_LOOKS = 2
"""So many looks in a row must show no request: one may still be on its way that was sent before routers heard."""


class Drain:
    """One node's. Off at first.

    on --(EMPTY_LOOKS looks without requests, or nobody listens there any more)--> on, and empty
    on, not held --(the engine began anew, and is ready)--> off: whoever drained wanted it to stop, and it has

    An engine whose requests are not told is never empty, unless it never was ready: then nobody sent any.
    """

    def __init__(self) -> None:
        self.on = False
        self.held = False
        """Whether only `end` ends it."""
        self._since_s = 0.0
        self._looks = 0
        self._generation: int | None = None
        self._began_anew = False
        self._was_ready = False
        self._gone = False

    @property
    def is_empty(self) -> bool:
        """Whether it drains and has no requests."""
        return self.on and (self._looks >= EMPTY_LOOKS or self._gone or not self._was_ready)

    def begin(self, now_s: float, *, hold: bool = False) -> None:
        """It takes nothing new from now on. `hold`: even after the engine began anew, also if it is on already."""
        self.held = self.held or hold
        if not self.on:
            self.on, self._since_s, self._looks, self._began_anew = True, now_s, 0, False

    def end(self) -> None:
        """It takes requests again."""
        self.on = self.held = False

    def saw(self, sighting: Sighting, began_s: float) -> bool:
        """Take a look that began then. Whether it ended the drain."""
        self._was_ready = self._was_ready or sighting.state is NodeState.READY
        self._gone = sighting.gone
        before, self._generation = self._generation, sighting.generation
        if self.on and not self.held and began_s >= self._since_s:
            self._began_anew = self._began_anew or self._gone or before not in (None, sighting.generation)
            if self._began_anew and sighting.state is NodeState.READY:
                self.end()
                return True
        if self.on and began_s >= self._since_s:
            reading = sighting.reading
            rests = reading.requests_running == 0 and reading.requests_waiting == 0
            self._looks = self._looks + 1 if rests and sighting.sampled_at_s >= began_s else 0
        return False
