"""A balancer that is led by what was recorded."""

from extproc.core.balancer import Balancer
from extproc.core.decision import Decision
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.router import Known


class Follower(Balancer):
    """A balancer whose requests go where the journal says, whatever it decides itself."""

    _recorded: str | None = None
    _counted = False

    def follow(self, request: InferenceRequest, policy: RoutingPolicy, now_s: float, node_id: str | None) -> Decision:
        """`route`, but the request is counted at this node, or nowhere: so it was for what was recorded next."""
        self._recorded, self._counted = node_id, False
        decision = self.route(request, policy, now_s)
        if not self._counted and node_id is not None:
            self._reserve(request, node_id, self._known(request, policy), now_s)
        return decision

    def _reserve(self, request: InferenceRequest, node_id: str, known: Known, now_s: float) -> None:
        del node_id
        self._counted = True
        if self._recorded is not None and self._table.get(self._recorded) is not None:
            super()._reserve(request, self._recorded, known, now_s)
