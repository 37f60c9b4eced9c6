"""What one router has been told of nodes' prefix caches on the stream that is open, and what it is to be told next.

A stream begins with everything that a node has: a message with `all`, and others behind it for what does not fit into
one. What changes is told with each report. A router that refuses something, or reads so slowly that too much waits, is
told everything anew.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from extproc.agent.kv.watch import KvReport
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, KvBlocks

NUMBERS_MAX: Final = 16_000
"""In one message, which then has 128 KB: half of what routers read by default."""
WAITING_MAX: Final = 250_000
"""Numbers of changes that wait for a router: over it everything is told anew, as soon as it reads."""
ANEW_S_MIN: Final = 1.0
ANEW_S_MAX: Final = 60.0
"""How soon everything is told anew to a router that refused something: each time in a row twice as late."""


class KvTold:
    """Takes each node's reports, and gives the messages. All that waits is bounded."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._deaf = False
        """The router does not know what this is."""

    def begin(self) -> None:
        """A stream opens: nothing was told on it."""
        self._nodes = {}
        self._deaf = False

    def offer(self, report: KvReport, now_s: float) -> None:
        """Tell this."""
        if self._deaf:
            return
        node = self._nodes.get(report.node_id)
        if node is None:
            if not report.known:
                return
            node = self._nodes[report.node_id] = _Node()
        node.offer(report, now_s)

    def refused(self, acknowledgement: Acknowledgement, now_s: float) -> bool:
        """A message was refused; whether it was one of ours."""
        if not acknowledgement.node_id and acknowledgement.reason.startswith("message:"):
            self._nodes, self._deaf = {}, True
            return False
        node = self._nodes.get(acknowledgement.node_id)
        if node is None or not acknowledgement.reason.startswith("kv_blocks"):
            return False
        node.refused(now_s)
        return True

    def __bool__(self) -> bool:
        """Whether something is to be told."""
        return any(node.waiting for node in self._nodes.values())

    def message(self) -> AgentMessage:
        """What is to be told next; only where something is."""
        node = next(node for node in self._nodes.values() if node.waiting)
        return AgentMessage(kv_blocks=node.next(), quiet=True)


class _Node:
    def __init__(self) -> None:
        self.waiting: deque[KvBlocks] = deque()
        self._waiting_changes = 0
        self._sequence = 0
        self._boot_id: str | None = None
        """Of which something was told; `None`: everything is to be told."""
        self._not_before_s = float("-inf")
        self._pause_s = ANEW_S_MIN

    def offer(self, report: KvReport, now_s: float) -> None:
        if not report.known:
            if self._boot_id is not None:
                self._replace([KvBlocks(node_id=report.node_id, boot_id=self._boot_id, all=True)])
                self._boot_id = None
            return
        if self._boot_id == report.boot_id:
            self.waiting += _messages(report, report.stored, report.removed)
            self._waiting_changes += len(report.stored) + len(report.removed)
        if self._boot_id == report.boot_id and self._waiting_changes <= WAITING_MAX:
            return
        if now_s >= self._not_before_s:
            self._boot_id = report.boot_id
            self._replace(list(_messages(report, report.everything, (), everything=True)))

    def refused(self, now_s: float) -> None:
        self._replace([])
        self._boot_id = None
        self._not_before_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, ANEW_S_MAX)

    def next(self) -> KvBlocks:
        message = self.waiting.popleft()
        if not self.waiting:
            self._waiting_changes = 0
        self._sequence += 1
        message.sequence = self._sequence
        return message

    def _replace(self, messages: list[KvBlocks]) -> None:
        self.waiting = deque(messages)
        self._waiting_changes = 0


def _messages(
    report: KvReport, stored: Sequence[int], removed: Sequence[int], *, everything: bool = False
) -> Iterator[KvBlocks]:
    """What is gone stands before what has come: a router may be short of room."""
    first = everything
    for at in range(0, len(removed), NUMBERS_MAX):
        yield KvBlocks(node_id=report.node_id, boot_id=report.boot_id, removed=removed[at : at + NUMBERS_MAX])
    for at in range(0, len(stored) or int(everything), NUMBERS_MAX):
        numbers = stored[at : at + NUMBERS_MAX]
        yield KvBlocks(node_id=report.node_id, boot_id=report.boot_id, all=first, stored=numbers)
        first = False
