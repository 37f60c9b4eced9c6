"""What becomes of the nodes, in the log: one line for each that comes, changes or goes."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import structlog

from extproc.core.snapshot import Freshness
from extproc.ops.nodegauges import NodeSample

LINES_MAX = 100
"""Of one kind, at one look. Anyone may tell of nodes on a bus, and of as many as there is room for."""


class NodeLog:
    """Compares the table with how it last looked. What changes back between two looks is not told.

    State: of each node the host, the state and the freshness that were told, whether it is left out or on trial, and
    which of its signals are absent.
    """

    def __init__(self, log: structlog.typing.FilteringBoundLogger) -> None:
        self._log = _FewLines(log)
        self._told: dict[str, tuple[str, str, str]] = {}
        self._out: dict[str, bool] = {}
        """Nodes that are left out for their failures; whether it was told that they are tried again."""
        self._absent: dict[str, frozenset[str]] = {}
        """Signals that were told to be absent, by node."""
        self._any_ready = True

    def look(self, nodes: Collection[NodeSample]) -> None:
        """Tell what has changed."""
        told = {}
        for one in nodes:
            snapshot = one.view.snapshot
            node_id = snapshot.node_id
            now = told[node_id] = (snapshot.host, snapshot.state.value, one.freshness.value)
            if now == self._told.get(node_id):
                continue
            fields = dict(zip(("host", "state", "freshness"), now, strict=True))
            if snapshot.not_ready_reason is not None:
                fields["reason"] = snapshot.not_ready_reason
            if node_id not in self._told:
                self._log.info("node joined", node_id=node_id, **fields)
            elif one.is_ready:
                self._log.info("node ready", node_id=node_id, **fields)
            elif one.freshness is Freshness.FRESH:
                self._log.warning("node not ready", node_id=node_id, **fields)
            else:
                self._log.warning("node silent", node_id=node_id, **fields)
        by_host = {host: node_id for node_id, (host, *_) in told.items()}
        for node_id in self._told.keys() - told.keys():
            host, *_ = self._told[node_id]
            if host in by_host:
                self._log.info("node goes by another name", node_id=node_id, host=host, now=by_host[host])
            else:
                self._log.info("node left", node_id=node_id)
        self._told = told
        self._look_at_failures(nodes)
        self._look_at_signals(nodes)
        any_ready = any(one.is_ready for one in nodes)
        if nodes and not any_ready and self._any_ready:
            self._log.warning("no node is fresh and ready: silent ones are served in turn, others not at all")
        self._any_ready = any_ready or not nodes
        self._log.look_ends()

    def _look_at_failures(self, nodes: Collection[NodeSample]) -> None:
        """Once for each time that a node is out, however often its trials fail: metrics show those."""
        out = {}
        for one in nodes:
            snapshot = one.view.snapshot
            node_id = snapshot.node_id
            if one.out_s is None:
                if node_id in self._out:
                    self._log.info("node back in", node_id=node_id, host=snapshot.host)
                continue
            trial = out[node_id] = self._out.get(node_id, False) or one.out_s <= 0
            if node_id not in self._out:
                seconds = max(0.0, round(one.out_s, 1))
                self._log.warning(
                    "node left out", node_id=node_id, host=snapshot.host, why="failed requests", seconds=seconds
                )
            if trial and not self._out.get(node_id, False):
                self._log.info("node on trial", node_id=node_id, host=snapshot.host)
        self._out = out

    def _look_at_signals(self, nodes: Collection[NodeSample]) -> None:
        """Once for each time that a signal is absent, whatever becomes of the reason.

        Only nodes that are ready tell what their engines lack: of others it stays as it was.
        """
        told = {}
        for one in nodes:
            node_id = one.view.snapshot.node_id
            before = self._absent.get(node_id, frozenset())
            if not one.is_ready:
                told[node_id] = before
                continue
            reasons: dict[str, list[str]] = {}
            for signal, reason in one.view.snapshot.absent:
                if signal not in before:
                    reasons.setdefault(reason, []).append(signal)
            for reason, signals in reasons.items():
                self._log.warning("signals absent", node_id=node_id, signals=signals, reason=reason)
            now = told[node_id] = frozenset(signal for signal, _ in one.view.snapshot.absent)
            if before - now:
                self._log.info("signals told again", node_id=node_id, signals=sorted(before - now))
        self._absent = told


class _FewLines:
    """A log that says how many lines it leaves out."""

    def __init__(self, log: structlog.typing.FilteringBoundLogger) -> None:
        self._log = log
        self._counts: Counter[str] = Counter()

    def info(self, event: str, **values: Any) -> None:
        self._tell(self._log.info, event, values)

    def warning(self, event: str, **values: Any) -> None:
        self._tell(self._log.warning, event, values)

    def look_ends(self) -> None:
        """Say what was left out since the last time."""
        for event, count in self._counts.items():
            if count > LINES_MAX:
                self._log.warning("lines left out", of=event, left_out=count - LINES_MAX)
        self._counts.clear()

    def _tell(self, tell: Callable[..., Any], event: str, values: dict[str, Any]) -> None:
        self._counts[event] += 1
        if self._counts[event] <= LINES_MAX:
            tell(event, **values)
