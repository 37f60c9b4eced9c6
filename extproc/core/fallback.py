"""Smooth weighted round robin: who serves when no fresh snapshot can be trusted."""

from collections.abc import Sequence

from extproc.core.snapshot import NodeView


class SmoothWeightedRoundRobin:
    """Turns that follow the weights without runs: 5, 1, 1 gives a a b a c a a.

    Every pick raises each member's credit by its weight; the highest credit is served and pays the sum of the
    weights. While the members stay the same, credits stay within that sum; floats do not overflow. Source: nginx,
    ngx_http_upstream_round_robin.c.

    State: one credit per node, kept while the node is a member of the table.
    """

    def __init__(self) -> None:
        self._credits: dict[str, float] = {}

    def peek(self, members: Sequence[NodeView]) -> NodeView:
        """Whom `pick` would serve."""
        kept = dict(self._credits)
        served = self.pick(members)
        self._credits = kept
        return served

    def pick(self, members: Sequence[NodeView]) -> NodeView:
        """Whose turn it is among at least one member; equal credits go by node id, so order does not matter."""
        credit = self._credits
        total = 0.0
        for member in members:
            node_id, weight = member.snapshot.node_id, member.snapshot.weight
            credit[node_id] = credit.get(node_id, 0.0) + weight
            total += weight
        served = min(members, key=lambda member: (-credit[member.snapshot.node_id], member.snapshot.node_id))
        credit[served.snapshot.node_id] -= total
        return served

    def forget(self, node_id: str) -> None:
        """The node is a member no more."""
        self._credits.pop(node_id, None)
