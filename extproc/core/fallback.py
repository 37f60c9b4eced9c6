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
        credit = self._credits

        def order(member: NodeView) -> tuple[float, str]:
            node_id = member.snapshot.node_id
            return -(credit.get(node_id, 0.0) + member.snapshot.weight), node_id

        return min(members, key=order)

    def pick(self, members: Sequence[NodeView]) -> NodeView:
        """Whose turn it is among at least one member; equal credits go by node id, so order does not matter."""
        served = self.peek(members)
        self.take(members, served.snapshot.node_id)
        return served

    def take(self, members: Sequence[NodeView], node_id: str) -> None:
        """Give this node the turn of these members, whosever it is."""
        credit = self._credits
        total = 0.0
        for member in members:
            snapshot = member.snapshot
            credit[snapshot.node_id] = credit.get(snapshot.node_id, 0.0) + snapshot.weight
            total += snapshot.weight
        credit[node_id] = credit.get(node_id, 0.0) - total

    def forget(self, node_id: str) -> None:
        """The node is a member no more."""
        self._credits.pop(node_id, None)
