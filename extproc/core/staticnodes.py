"""Static nodes: who speaks for each, and when it is a member."""

from collections.abc import Iterable, Mapping
from math import inf

from extproc.core.loads import view_of
from extproc.core.snapshot import NEVER, NO_LOAD, Learned, NodeState, NodeView, ServedModel, Snapshot
from extproc.core.staticsettings import StaticNode

NO_BOOT = ""
"""The boot of a node that no agent told; those of agents are never empty."""


class StaticNodes:
    """Which of the configuration's nodes are members, besides those that agents tell.

        member ──an agent reports its host or id──► spoken for ──► its agent's node moves or is forgotten ──► member
                                                        └──► goodbye ──► gone for `member_s` ──► member

    An agent that says goodbye means it: its engine ends, or is to be left alone. One that fell silent says nothing of
    its engine, which was there before it. While anybody speaks for a static node, the agent's word is all that counts.

    State: of each static node that is no member, the agents' nodes that speak for it, or since when it may come back.
    """

    def __init__(self, nodes: Iterable[StaticNode]) -> None:
        self._views = {one.node_id: _view(one) for one in nodes}
        self._at = {view.snapshot.host: node_id for node_id, view in self._views.items()}
        self._speakers: dict[str, set[str]] = {}
        """The agents' nodes that speak for each static one."""
        self._spoken_for: dict[str, frozenset[str]] = {}
        """The static nodes for which each agents' node speaks."""
        self._back_at_s: dict[str, float] = {}
        """Static nodes for which nobody speaks any more, and when they are members again."""

    @property
    def views(self) -> Mapping[str, NodeView]:
        """All of them, as they are while nobody speaks for them."""
        return self._views

    def of(self, node_id: str, host: str) -> frozenset[str]:
        """Those for which an agent's node of this id at this host speaks: at most two."""
        if not self._views:
            return frozenset()
        at = self._at.get(host)
        return frozenset(one for one in (node_id if node_id in self._views else None, at) if one is not None)

    def models_at(self, host: str) -> tuple[ServedModel, ...] | None:
        """What the configuration says that is served there."""
        node_id = self._at.get(host)
        return None if node_id is None else self._views[node_id].snapshot.models

    def reported(self, node_id: str, spoken_for: frozenset[str], now_s: float) -> None:
        """An agent's node speaks for these from now on, and for no others."""
        before = self._spoken_for.get(node_id, frozenset())
        if spoken_for == before:
            return
        self._let_go(node_id, before - spoken_for, now_s)
        for static_id in spoken_for:
            self._speakers.setdefault(static_id, set()).add(node_id)
            self._back_at_s.pop(static_id, None)
        if spoken_for:
            self._spoken_for[node_id] = spoken_for
        else:
            del self._spoken_for[node_id]

    def gone(self, node_id: str, back_at_s: float) -> None:
        """An agent's node is no member any more; what it spoke for may come back then."""
        self._let_go(node_id, self._spoken_for.pop(node_id, frozenset()), back_at_s)

    def back(self, now_s: float) -> list[NodeView]:
        """Those that are members again; each is told once."""
        ids = [static_id for static_id, at_s in self._back_at_s.items() if at_s <= now_s]
        for static_id in ids:
            del self._back_at_s[static_id]
        return [self._views[static_id] for static_id in ids]

    def _let_go(self, node_id: str, static_ids: Iterable[str], back_at_s: float) -> None:
        for static_id in static_ids:
            speakers = self._speakers[static_id]
            speakers.discard(node_id)
            if not speakers:
                del self._speakers[static_id]
                self._back_at_s[static_id] = back_at_s


def _view(node: StaticNode) -> NodeView:
    models = node.models
    snapshot = Snapshot(
        node_id=node.node_id,
        host=node.host,
        boot_id=NO_BOOT,
        sequence=0,
        sample_age_s=0.0,
        state=NodeState.READY,
        models=None if models is None else tuple(ServedModel(m.name, None, m.context_length_tokens) for m in models),
        weight=node.weight,
    )
    return view_of(snapshot, NEVER, -inf, NO_LOAD, Learned())
