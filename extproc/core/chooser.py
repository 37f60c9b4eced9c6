"""From what is known of the nodes to a verdict on a request; nothing is counted here but turns."""

from collections.abc import Collection

from msgspec import Struct

from extproc.core import filters
from extproc.core.decision import Chosen, Outcome, Refusal, Refused, Unknown
from extproc.core.fleetstate import FleetState
from extproc.core.phase import expected_output_tokens
from extproc.core.policy import RoutingPolicy
from extproc.core.refusals import not_in_subset
from extproc.core.request import NOWHERE, InferenceRequest
from extproc.core.room import may_hold
from extproc.core.router import FallBack, Known, Standing, Verdict, decide, fall_back
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeState, NodeView

TURNS_COUNTED_MAX = 1024
"""Policies, each with each model, whose requests are counted for `round-robin`; then counting begins anew."""


class Found(Struct, frozen=True):
    """What can become of a request now."""

    request: InferenceRequest
    """For the model that it would go to, which may be its fallback."""
    verdict: Verdict
    known: Known
    tokens: int
    """Of its prompt and of the answers that are expected, at least 1."""
    allowed_tokens: int
    """The same with the answers as long as the client allows, where it says so."""


class Chooser:
    """Asks the router with all that it has to know, and knows how much can be known yet."""

    def __init__(self, settings: BalancerSettings, fleet: FleetState, started_s: float) -> None:
        self._settings = settings
        self._fleet = fleet
        self._turns: dict[tuple[str, str], int] = {}
        """Of each policy for each model: other models have other nodes."""
        self._first_choice_s = started_s + 2 * settings.nodes.report_interval_s
        self._settled_s = max(self._first_choice_s, started_s + settings.nodes.settle_s)

    def find(self, request: InferenceRequest, policy: RoutingPolicy, standing: Standing, now_s: float) -> Found:
        """Where it can go now; to its fallback model where its own is overloaded and that one is not."""
        found = self._find(request, policy, standing, now_s)
        fallback = None if request.model_fixed else policy.fallback_models.get(request.model)
        outcome = found.verdict.outcome
        if fallback is None or not isinstance(outcome, Refused) or outcome.refusal is not Refusal.OVERLOADED:
            return found
        other = self._find(request.for_model(fallback), policy, standing, now_s)
        return other if self._holds(other) else found

    def _holds(self, found: Found) -> bool:
        """Whether it goes somewhere, as far as is known where it is not too long: it was counted for another model."""
        outcome = found.verdict.outcome
        if isinstance(outcome, Chosen):
            view = self._fleet.table.get(outcome.node_id)
            return view is not None and may_hold(view, found.request)
        return isinstance(outcome, FallBack)

    def find_uninspected(
        self, subset: tuple[str, ...] | None, others_max: int, now_s: float
    ) -> Chosen | Refused | Unknown | FallBack:
        """Where what is no inference request can go now."""
        nodes, settings = self._fleet.views(), self._settings
        if subset != NOWHERE and (now_s < self._first_choice_s or not nodes):
            return self._at_first(nodes, subset, others_max, now_s)
        allowed = nodes if subset is None else filters.in_subset(nodes, subset)
        if not allowed:
            return not_in_subset(settings)
        out_until_s = self._fleet.out_until_s
        if ready := filters.ready(allowed, now_s, settings.nodes):
            return FallBack(filters.not_out(ready, out_until_s, now_s), others_max)
        return fall_back(allowed, out_until_s, others_max, settings, now_s)

    def settled(self, outcome: Outcome, subset: tuple[str, ...] | None, now_s: float) -> Outcome:
        """Soon after the start some agents are still on their way: then only full nodes are a reason to refuse.

        Or that it may go nowhere at all.
        """
        if now_s >= self._settled_s or not isinstance(outcome, Refused) or outcome.refusal is Refusal.OVERLOADED:
            return outcome
        if subset == NOWHERE:
            return outcome
        return Unknown(f"started less than {self._settings.nodes.settle_s:g} s ago, and no known node serves it")

    def known(self, request: InferenceRequest, policy: RoutingPolicy) -> Known:
        """What a decision about it rests on beside the nodes."""
        fleet = self._fleet
        cached = fleet.cached(request)
        return Known(
            self._turns.get((policy.name, request.model), 0),
            fleet.table.models_left,
            cached.tokens,
            cached.told,
            fleet.out_until_s,
            fleet.answers.expected(request.model),
            fleet.learned.prefill_tokens_per_s,
            fleet.learned.decode_s_per_token,
            fleet.rates_known,
        )

    def took_turn(self, policy: RoutingPolicy, model: str) -> None:
        """A request of this policy was sent to a node of this model."""
        turn = (policy.name, model)
        if len(self._turns) >= TURNS_COUNTED_MAX and turn not in self._turns:
            self._turns.clear()
        self._turns[turn] = self._turns.get(turn, 0) + 1

    def _find(self, request: InferenceRequest, policy: RoutingPolicy, standing: Standing, now_s: float) -> Found:
        known = self.known(request, policy)
        if request.subset == NOWHERE:
            verdict = Verdict(not_in_subset(self._settings))
        elif now_s < self._first_choice_s:
            able = filters.long_enough(filters.serving(self._fleet.views(), request.model), request)
            verdict = Verdict(self._at_first(able, request.subset, policy.others_max, now_s))
        else:
            verdict = decide(request, self._fleet.views(), policy, self._settings, known, now_s, standing)
        return Found(request, verdict, known, tokens_of(request, known), allowed_tokens_of(request, known))

    def _at_first(
        self, nodes: Collection[NodeView], subset: tuple[str, ...] | None, others_max: int, now_s: float
    ) -> Unknown | FallBack:
        """Before anybody can be chosen: static nodes are served in turn, and with them who is ready by now, so that the
        first to report does not get all. Without any, Envoy's cluster serves."""
        if not self._settings.static_nodes:
            return self._too_early()
        allowed = nodes if subset is None else filters.in_subset(nodes, subset)
        ready = [node for node in allowed if node.snapshot.state is NodeState.READY]
        members = filters.not_out(ready, self._fleet.out_until_s, now_s)
        return FallBack(members, others_max) if members else self._too_early()

    def _too_early(self) -> Unknown:
        if not self._fleet.views():
            return Unknown("no node has reported yet")
        return Unknown("started less than two report intervals ago")


def tokens_of(request: InferenceRequest, known: Known) -> int:
    """What it costs its tenant: its prompt's and those of the answers that are expected, at least 1."""
    return max(1, request.prompt.tokens + expected_output_tokens(request, known.output_tokens) * request.sequences)


def allowed_tokens_of(request: InferenceRequest, known: Known) -> int:
    """What it may cost, as a quota counts: the answers as long as the client allows, else as they are expected."""
    if request.output_tokens_max is None:
        return tokens_of(request, known)
    return max(1, request.prompt.tokens + request.output_tokens_max * request.sequences)
