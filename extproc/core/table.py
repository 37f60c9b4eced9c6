"""The snapshot table: every node we know, by its latest snapshot."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import assert_never

from extproc.core.filters import freshness
from extproc.core.loads import renewed, view_of
from extproc.core.settings import NodeLimits
from extproc.core.snapshot import (
    NO_LOAD,
    Applied,
    Freshness,
    Ignored,
    Learned,
    NodeLeft,
    NodeReported,
    NodeState,
    NodeView,
    NotAllowed,
    Observation,
    OwnLoad,
    Snapshot,
)
from extproc.core.staticnodes import StaticNodes
from extproc.core.staticsettings import StaticNode

EARLIER_BOOTS_MAX = 64
"""Boots of a node that are remembered."""
SEQUENCE_JUMP_MAX = 1_000_000
"""A report of a fresh node is at most so many after the one before: nobody makes more meanwhile."""
MODELS_LEFT_MAX = 4096
"""Models of departed nodes that are remembered."""


class SnapshotTable:
    """Takes what agents say and keeps one view per node, ready to be read by a decision.

    Membership outlives freshness: a node whose agent fell silent stays a member for `member_s`, so that the
    fallback has somewhere to go. Model lists outlive it too: a snapshot that knows none keeps the last.
    Within a boot sequences only rise while the node is fresh; a new boot id starts them again, and the boots before it
    are not heard any more while the new one is fresh: so agents that share a node id by mistake do not take turns. Nor
    is a boot that was never heard of, where its sample is older than the one that is known: it comes late.
    One host is one node, for Envoy knows nodes by their hosts: while one is fresh, no other takes its host.
    Static nodes are members from the beginning; see `StaticNodes`.
    """

    def __init__(self, limits: NodeLimits, static: Iterable[StaticNode] = ()) -> None:
        self._limits = limits
        self._static = StaticNodes(static)
        self._views: dict[str, NodeView] = dict(self._static.views)
        self._node_at: dict[str, str] = {view.snapshot.host: node_id for node_id, view in self._views.items()}
        self._told = 0
        """Members of which agents told."""
        self._earlier_boots: dict[str, tuple[str, ...]] = {}
        self.models_left: dict[str, float] = {}
        """Models of nodes that left within `member_s`, and when; the latest last, a bounded number."""

    def __len__(self) -> int:
        return len(self._views)

    def views(self) -> Collection[NodeView]:
        """Every member; do not hold it over an `apply`."""
        return self._views.values()

    def get(self, node_id: str) -> NodeView | None:
        """One member."""
        return self._views.get(node_id)

    def apply(self, event: NodeReported | NodeLeft, now_s: float) -> Observation:
        """Take one event; what is old, repeated or too much is answered with the reason and changes nothing."""
        match event:
            case NodeReported(snapshot):
                return self._report(snapshot, now_s)
            case NodeLeft(node_id, boot_id):
                known = self._views.get(node_id)
                if known is None or known.is_static or known.snapshot.boot_id != boot_id:
                    return Ignored("goodbye of a boot that is not known")
                self._remove(node_id, now_s, static_back_at_s=now_s + self._limits.member_s)
                return Applied()
            case _:
                assert_never(event)

    def at(self, host: str) -> str | None:
        """The node that is reached there."""
        return self._node_at.get(host)

    def renew(self, node_id: str, own: OwnLoad, learned: Learned) -> None:
        """Show a node's load and what was learned of it as they are now; nothing for a node that is no member."""
        view = self._views.get(node_id)
        if view is not None:
            self._views[node_id] = renewed(view, own, learned)

    def prune(self, now_s: float) -> list[str]:
        """Forget nodes without a word for `member_s`; their ids."""
        until_s = now_s - self._limits.member_s
        gone = [id_ for id_, view in self._views.items() if view.sampled_at_s <= until_s and not view.is_static]
        self.models_left = {model: left_s for model, left_s in self.models_left.items() if left_s > until_s}
        for node_id in gone:
            self._remove(node_id, now_s, static_back_at_s=now_s)
        return gone

    def bring_back(self, now_s: float) -> list[NodeView]:
        """Make those static nodes members again for which nobody speaks any more; call it after `prune`."""
        back = self._static.back(now_s)
        for view in back:
            self._views[view.snapshot.node_id] = view
            self._node_at[view.snapshot.host] = view.snapshot.node_id
        return back

    def _report(self, snapshot: Snapshot, now_s: float) -> Observation:
        limits = self._limits
        if snapshot.sample_age_s > limits.stale_s:
            return NotAllowed(f"sample is {snapshot.sample_age_s:.1f} s old, wanted at most {limits.stale_s:g} s")
        known = self._views.get(snapshot.node_id)
        holder = self._views.get(self._node_at.get(snapshot.host, snapshot.node_id))
        if holder is not None and holder.snapshot.node_id != snapshot.node_id and self._is_heard(holder, now_s):
            return NotAllowed(f"host: wanted one that no other node has, got that of {holder.snapshot.node_id}")
        spoken_for = self._static.of(snapshot.node_id, snapshot.host)
        if known is None or known.is_static:
            if self._told >= limits.nodes_max:
                return NotAllowed(f"the table is full, nodes_max is {limits.nodes_max}")
            self._told += 1
            if snapshot.models is None:
                snapshot = replace(snapshot, models=self._static.models_at(snapshot.host))
        elif known.snapshot.boot_id == snapshot.boot_id:
            if (against := self._out_of_order(snapshot, known, now_s)) is not None:
                return against
            if snapshot.models is None:
                snapshot = replace(snapshot, models=known.snapshot.models)
        else:
            earlier = self._earlier_boots.get(snapshot.node_id, ())
            if snapshot.boot_id in earlier and self._is_heard(known, now_s):
                return Ignored("a snapshot of an earlier boot")
            if _sampled_at_s(snapshot, now_s) < known.sampled_at_s:
                return Ignored("a sample from before that of the boot which is known")
            self._earlier_boots[snapshot.node_id] = (*earlier, known.snapshot.boot_id)[-EARLIER_BOOTS_MAX:]
            if snapshot.models is None and known.snapshot.host == snapshot.host:
                snapshot = replace(snapshot, models=known.snapshot.models)
        displaced = self._displace(snapshot.node_id, spoken_for, now_s)
        self._views[snapshot.node_id] = self._view(snapshot, known, now_s)
        if known is not None and known.snapshot.host != snapshot.host:
            self._free(known.snapshot)
        self._node_at[snapshot.host] = snapshot.node_id
        return Applied(displaced)

    def _out_of_order(self, snapshot: Snapshot, known: NodeView, now_s: float) -> Ignored | NotAllowed | None:
        """Why a report of the same boot is not the next one; `None`: it is.

        One that jumps far was made up: once taken it would be that boot's last word. Whatever was made up and taken
        all the same, a node that is not fresh any more begins again where its agent goes on. So whoever captured a
        report can make a dead node look alive by it, for as long as it is repeated. It gains nothing: who may speak for
        a node can as well make up its next report. What repeats by itself (the latest report on a new stream, or by
        the second way) has the same sequence, or comes while the node is fresh.
        """
        before, sequence = known.snapshot.sequence, snapshot.sequence
        is_heard = self._is_heard(known, now_s)
        if is_heard and sequence > before + SEQUENCE_JUMP_MAX:
            return NotAllowed(f"sequence: wanted at most {SEQUENCE_JUMP_MAX} more than {before}, got {sequence}")
        goes_on = not is_heard and sequence != before and _sampled_at_s(snapshot, now_s) > known.sampled_at_s
        return None if sequence > before or goes_on else Ignored(f"sequence {sequence} after {before}")

    def _is_heard(self, view: NodeView, now_s: float) -> bool:
        """Whether an agent told of it lately; of a static node none ever did."""
        return freshness(now_s - view.sampled_at_s, self._limits) is Freshness.FRESH

    def _displace(self, node_id: str, spoken_for: frozenset[str], now_s: float) -> tuple[str, ...]:
        """The static nodes that a reported one takes the place of, by other ids; they are members no more."""
        self._static.reported(node_id, spoken_for, now_s)
        others = sorted(spoken_for - {node_id})
        displaced = tuple(one for one in others if one in self._views and self._views[one].is_static)
        for one in displaced:
            self._free(self._views.pop(one).snapshot)
        return displaced

    @staticmethod
    def _view(snapshot: Snapshot, known: NodeView | None, now_s: float) -> NodeView:
        sampled_at_s = _sampled_at_s(snapshot, now_s)
        ready_since_s = now_s
        if known is None:
            return view_of(snapshot, sampled_at_s, ready_since_s, NO_LOAD, Learned())
        one = known.snapshot
        if one.boot_id == snapshot.boot_id and one.state is NodeState.READY:
            ready_since_s = known.ready_since_s
        return view_of(snapshot, sampled_at_s, ready_since_s, known.own, known.learned, known)

    def _free(self, snapshot: Snapshot) -> None:
        if self._node_at.get(snapshot.host) == snapshot.node_id:
            del self._node_at[snapshot.host]

    def _remove(self, node_id: str, now_s: float, *, static_back_at_s: float) -> None:
        gone = self._views.pop(node_id)
        self._told -= 1
        self._static.gone(node_id, static_back_at_s)
        self._earlier_boots.pop(node_id, None)
        self._free(gone.snapshot)
        for model in gone.context_lengths or ():
            self.models_left.pop(model, None)
            self.models_left[model] = now_s
        while len(self.models_left) > MODELS_LEFT_MAX:
            del self.models_left[next(iter(self.models_left))]


def _sampled_at_s(snapshot: Snapshot, now_s: float) -> float:
    return now_s - snapshot.sample_age_s - snapshot.round_trip_s / 2
