"""The time of an engine that hangs or is slow for a while, against the simulation's."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from extproc.sim.fleetplan import FailureKind, NodeFailure


class NodeClock:
    """Two times that grow together, piece by piece: an engine's own, and the simulation's.

    An engine that is five times slower lives through a fifth of the time; one that hangs lives through none. So the
    engine knows nothing of its faults.
    """

    def __init__(self, faults: Iterable[NodeFailure] = ()) -> None:
        self._begins_s = [0.0]
        """When each piece begins, by the simulation's time; before 0 s as after it."""
        self._own_s = [0.0]
        """The same by the engine's."""
        self._paces = [1.0]
        """Seconds of the engine in a second of the simulation."""
        for fault in faults:
            match fault.kind:
                case FailureKind.SLOW:
                    assert fault.factor is not None, "checked where it is read"
                    self._add(fault.at_s, fault.for_s, 1 / fault.factor)
                case FailureKind.HANG:
                    self._add(fault.at_s, fault.for_s, 0.0)
                case FailureKind.ERROR:
                    pass

    def own_s(self, at_s: float) -> float:
        """The engine's time at a moment of the simulation."""
        piece = max(0, bisect_right(self._begins_s, at_s) - 1)
        return self._own_s[piece] + (at_s - self._begins_s[piece]) * self._paces[piece]

    def at_s(self, own_s: float) -> float:
        """When the engine's time comes to this; where it stands still there, the beginning of that."""
        piece = max(0, bisect_left(self._own_s, own_s) - 1)
        return self._begins_s[piece] + (own_s - self._own_s[piece]) / self._paces[piece]

    def pace(self, at_s: float) -> float:
        """How fast the engine is at a moment: 1 is as planned, 0 not at all."""
        return self._paces[max(0, bisect_right(self._begins_s, at_s) - 1)]

    def _add(self, at_s: float, for_s: float, pace: float) -> None:
        for begin_s, new_pace in ((at_s, pace), (at_s + for_s, 1.0)):
            self._own_s.append(self.own_s(begin_s))
            self._begins_s.append(begin_s)
            self._paces.append(new_pace)
