"""A balancer that is led by what was recorded."""

from collections.abc import Sequence

from extproc.core.balancer import Balancer
from extproc.core.decided import decision_of, serve
from extproc.core.decision import Decision
from extproc.core.fallback import SmoothWeightedRoundRobin
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeView
from extproc.journal.lines import Decided


class Follower(Balancer):
    """A balancer that decides for itself, and whose state is as if it had decided what was recorded.

    That holds for all but one case: where the fallback was recorded and it would not fall back itself, it does not know
    among whom that node had its turn, and no credits move.
    """

    def __init__(self, settings: BalancerSettings, started_s: float) -> None:
        super().__init__(settings, started_s)
        self._round_robin = self._led = _Led()
        self._round_robin_uninspected = self._led_uninspected = _Led()

    def follow(
        self, request: InferenceRequest, policy: RoutingPolicy, now_s: float, recorded: Decided | None
    ) -> Decision:
        """`route`, but the request is counted where it was recorded, or nowhere. Raises what deciding raises."""
        known = self._known(request, policy)
        self._led.served = self._fallback(recorded)
        try:
            verdict = self._decide(request, policy, known, now_s)
            outcome = self._settled(serve(verdict.outcome, self._round_robin), now_s)
        finally:
            if recorded is not None and recorded.node_id is not None and self._table.get(recorded.node_id) is not None:
                self._take(request, policy, recorded.node_id, known, now_s)
        decision = decision_of(request, policy, verdict, outcome, now_s)
        self._decisions.append(decision)
        return decision

    def follow_uninspected(self, request_id: str, trace_id: str, now_s: float, recorded: Decided | None) -> Decision:
        """`route_uninspected`, but the turn is the recorded node's."""
        self._led_uninspected.served = self._fallback(recorded)
        return self.route_uninspected(request_id, trace_id, now_s)

    def is_open(self, request_id: str) -> bool:
        """Whether a request of this id was sent somewhere and is not over; a further one cannot be followed."""
        return self._ledger.get(request_id) is not None

    def _fallback(self, recorded: Decided | None) -> str | None:
        """The member that was recorded as the fallback's choice."""
        if recorded is None or recorded.chosen is None or not recorded.chosen.fallback:
            return None
        node_id = recorded.chosen.node_id
        return None if self._table.get(node_id) is None else node_id


class _Led(SmoothWeightedRoundRobin):
    """Says whose turn it would be, and gives the turn to whom it was given."""

    served: str | None = None
    """`None`: nobody took a turn."""

    def pick(self, members: Sequence[NodeView]) -> NodeView:
        picked = self.peek(members)
        if self.served is not None:
            self.take(members, self.served)
        return picked
