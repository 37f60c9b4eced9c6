"""Which reports a router needs on its stream although they are published on a bus, where it should have them from.

Nobody acknowledges what is published, and that a router is heard there does not say that it hears us: it may listen to
another fleet, or the server may not let us speak. But a stream tells: a report that comes on it `BUS_FIRST_S` after it
was published, and of which the router says that it is old, came by the bus. Of such nodes the stream sends no more
than one report in `IDLE_LINK_S`, which asks again; and what they become, as draining, of which nothing may be lost.
That ends when the router is not heard any more, or says that it misses a node.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from extproc.agent.wire import Report
from extproc.core.snapshot import NodeState
from extproc.pb.nodes_pb2 import Acknowledgement

IDLE_LINK_S = 60.0
"""A third of a router's patience with silent streams, `SILENCE_S_MAX`."""
BUS_FIRST_S = 0.2
"""So long a report waits for the bus. A way that takes longer is the worse one."""
ROUTER_CHARS_MAX = 64
"""Of a router's name."""


class Standby:
    """The streams to one router, one after the other."""

    def __init__(self, is_heard: Callable[[str], bool], clock: Callable[[], float]) -> None:
        """`is_heard`: whether the bus works, and this router spoke there lately."""
        self._is_heard = is_heard
        self._clock = clock
        self._router = ""
        self._told: dict[str, _Told] = {}
        self._known_s: dict[str, float] = {}
        """Nodes of which the router has reports by the bus, and since when that is known."""
        self._held: set[str] = set()
        """Those of whose latest report the stream was spared."""

    @property
    def is_second(self) -> bool:
        """Whether what is to be sent shall wait for the bus."""
        return bool(self._router) and self._is_heard(self._router)

    @property
    def rests(self) -> bool:
        """Whether the stream is spared anything."""
        return bool(self._known_s) and self.is_second

    def begin(self, latest: Mapping[str, Report]) -> None:
        """A stream opens, to a router that may be another: all nodes' latest reports go out on it."""
        self._router = ""
        self._known_s.clear()
        self._held.clear()
        for report in latest.values():
            self._note(report)

    def needs(self, report: Report) -> bool:
        """Whether a new report shall go out."""
        node_id = report.snapshot.node_id
        told, known_s = self._told.get(node_id), self._known_s.get(node_id)
        same = told is not None and told.what == _what(report)
        if same and known_s is not None and self.is_second:
            if self._clock() - known_s < IDLE_LINK_S:
                self._held.add(node_id)
                return False
            del self._known_s[node_id]
        self._note(report)
        return True

    def missed(self) -> set[str]:
        """Nodes whose latest reports shall go out after all, once the router cannot be relied on to have them."""
        if not self.is_second:
            self._known_s.clear()
        missed = self._held - self._known_s.keys()
        self._held -= missed
        return missed

    def acknowledged(self, acknowledgement: Acknowledgement, now_s: float) -> None:
        """What the router said of a message on the stream."""
        self._router = acknowledgement.router[:ROUTER_CHARS_MAX]
        node_id = acknowledgement.node_id
        told = self._told.get(node_id)
        if told is None:
            return
        if acknowledgement.verdict in (Acknowledgement.VERDICT_REFUSED, Acknowledgement.VERDICT_MISSED):
            self._known_s.pop(node_id, None)
        elif acknowledgement.verdict == Acknowledgement.VERDICT_IGNORED and told.once == acknowledgement.sequence:
            self._known_s[node_id] = now_s

    def _note(self, report: Report) -> None:
        """It goes out, as soon as the router takes it."""
        snapshot = report.snapshot
        before = self._told.get(snapshot.node_id)
        key = (snapshot.boot_id, snapshot.sequence)
        again = before is not None and before.key == key
        self._told[snapshot.node_id] = _Told(key, _what(report), None if again else snapshot.sequence)
        self._held.discard(snapshot.node_id)


class _Told(Struct, frozen=True):
    """The latest report of a node that was to go out."""

    key: tuple[str, int]
    what: tuple[str, NodeState]
    once: int | None
    """Its sequence, unless it went out before: then the router may know it from us."""


def _what(report: Report) -> tuple[str, NodeState]:
    """What has to come by every way as soon as it changes."""
    return report.snapshot.boot_id, report.snapshot.state
