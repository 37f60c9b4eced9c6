"""What the log tells of a node: each change of its state, every absent signal once per reason, and its return."""

from collections.abc import Mapping
from typing import Final

import structlog

from extproc.agent.engines.reading import FIRST_LOOK, NOT_MAPPED, NOT_TOLD, QUIET
from extproc.agent.gpu.usage import NO_GPU
from extproc.core.snapshot import NodeState

NOTHING_WRONG: Final = frozenset({QUIET, FIRST_LOOK, NOT_TOLD, NOT_MAPPED, NO_GPU})
"""Reasons of signals that are absent where nobody could expect them."""

log: structlog.typing.FilteringBoundLogger = structlog.get_logger("agent")


class NodeLog:
    """Knows what was logged of one node."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._state = ""
        self._absent: set[tuple[str, str]] = set()
        self._missed: set[str] = set()
        """Signals that the log says are absent."""

    def changes(self, state: NodeState | None, absent: Mapping[str, str]) -> None:
        """Log what is new. `None`: nothing is reported, since the node has no address."""
        shown = "no address" if state is None else state.value
        if shown != self._state:
            self._state = shown
            tell = log.info if state is NodeState.READY else log.warning
            tell("node state", node_id=self._node_id, state=shown, reason=absent.get("host") or absent.get("ready"))
        if state is not NodeState.READY:
            return  # all of it is absent or reaches nobody, for one reason that is logged
        for name, reason in absent.items():
            if reason in NOTHING_WRONG or name == "ready" or (name, reason) in self._absent:
                continue
            self._absent.add((name, reason))
            self._missed.add(name)
            log.warning("signal absent", node_id=self._node_id, signal=name, reason=reason)

        for name in sorted(self._missed - absent.keys()):
            self._missed.discard(name)
            log.info("signal told again", node_id=self._node_id, signal=name)

    def drain_ended(self) -> None:
        """Log that the engine ended a drain itself."""
        log.info("drain ended", node_id=self._node_id, reason="the engine began anew")
