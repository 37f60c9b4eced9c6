"""A balancer that is led by what was recorded."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from extproc.core.admission import WAITABLE
from extproc.core.admissionqueue import Waiting
from extproc.core.balancer import Balancer
from extproc.core.chooser import Found, allowed_tokens_of, tokens_of
from extproc.core.decided import serve
from extproc.core.decision import Decision, Outcome, Queued, Refused, Unknown
from extproc.core.nodeledger import Reservation
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.router import Known, Standing, Verdict
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeView
from extproc.journal.lines import Admitted, Decided, Drained
from extproc.replay.led import Lead, Leaving, LedAdmission, LedQuotas, LedRoundRobin

OtherPolicy = Callable[[RoutingPolicy], RoutingPolicy]
"""The policy that stands in for a recorded one."""
Goes = Callable[[InferenceRequest, Reservation, Decided, NodeView], None]
"""Told of each request that goes to a member: what is counted there, how it was decided, and the node before that."""


class Again(NamedTuple):
    """What is decided again about one who waited."""

    own: Decision | None
    """`None`: deciding raised, about it or another of the same call."""
    would_be: Decision | None
    """With another policy; `None`: none was given."""


class Follower(Balancer):
    """A balancer that decides for itself, and whose state is as if it had decided what was recorded.

    Deciding changes nothing here: what `Balancer` does for a decision of its own is done for the recorded one. The
    state is the same in all but one case: where the fallback was recorded and it would not fall back itself, it does
    not know among whom that node had its turn, and no credits move.
    """

    def __init__(self, settings: BalancerSettings, started_s: float, goes: Goes | None = None) -> None:
        super().__init__(settings, started_s)
        self._told_who_goes = goes
        self._round_robin = self._led = LedRoundRobin()
        self._round_robin_uninspected = self._led_uninspected = LedRoundRobin()
        self._admission = self._led_admission = LedAdmission(settings)
        self._quotas = self._led_quotas = LedQuotas(settings.quotas, settings.quota_buckets_max)
        self._own: dict[str, Decision] = {}
        """What was decided in this call, of each request the first: who would have gone is not turned away."""

    def follow(
        self, request: InferenceRequest, policy: RoutingPolicy, now_s: float, recorded: Decided | None
    ) -> Decision:
        """`route`, but the request goes where it was recorded to go, waits where it did, or neither.

        Raises what deciding raises.
        """
        sent = _sent(request, recorded)
        known = self._chooser.known(sent, policy)
        self._led.served = self._fallback(recorded)
        try:
            with self._deciding():
                decision = self.route(request, policy, now_s)
        finally:
            if recorded is not None and recorded.queued is not None:
                until_s = recorded.queued.until_s
                self._led_admission.waited(request, policy, tokens_of(sent, known), until_s, now_s)
            if recorded is not None and (recorded.queued or self._goes(sent, policy, known, recorded, now_s)):
                tokens = self._quotas.price(request, allowed_tokens_of(sent, known))
                self._quotas.take(request.request_id, request.tenant, request.model, tokens, now_s)
        self._decisions.append(decision)
        return decision

    def follow_admitted(self, lines: Sequence[Admitted], now_s: float, other: OtherPolicy | None) -> list[Again]:
        """`admit`, but those wait no longer of whom that was recorded, and go where they went. All of them wait now.

        It is decided again about each, in the recorded order: it would go, be turned away, or still wait.
        """
        recorded = {line.request_id: line.decided for line in lines}
        turned_away = {line.request_id: None for line in lines if line.turned_away}
        leaving = Leaving(deque(one for one in recorded if one not in turned_away), turned_away)
        waited = {request_id: self._waiting(request_id) for request_id in recorded}
        would_be: dict[str, Decision] = {}

        def ask(waiting: Waiting, standing: Standing) -> None:
            request_id = waiting.request.request_id
            if other is not None:
                with suppress(Exception):  # a hostile request may break any policy
                    would_be[request_id] = self._would_go(waiting, other(waiting.policy), standing, now_s)
            self._led.served = self._fallback(recorded[request_id])

        def went(waiting: Waiting) -> None:
            decided = recorded[waiting.request.request_id]
            sent = _sent(waiting.request, decided)
            self._goes(sent, waiting.policy, self._chooser.known(sent, waiting.policy), decided, now_s)

        self._led_admission.led_by(Lead(leaving, ask, went))
        own = self._decided(self.admit, waited.values(), now_s)
        for request_id in leaving.went:  # it was not its turn
            self._admission.queue.remove(request_id)
            went(waited[request_id])
        for request_id in leaving.turned_away:
            self._admission.queue.remove(request_id)
        for request_id, decided in recorded.items():
            if decided.refused is not None:
                self._quotas.cancel(request_id)
        return [Again(one, None if other is None else would_be.get(request_id, one)) for request_id, one in own.items()]

    def follow_drained(self, line: Drained) -> Again:
        """`drain`, but it turns away only this one, who waits now."""
        self._led_admission.led_by(Lead(Leaving(deque(), {line.request_id: None})))
        own = self._decided(self.drain, [self._waiting(line.request_id)], line.now_s)[line.request_id]
        self._admission.queue.remove(line.request_id)
        self._quotas.cancel(line.request_id)
        return Again(own, own)

    def follow_rehearsed(self, request: InferenceRequest, policy: RoutingPolicy, now_s: float) -> Decision:
        """`rehearse`, by the state that was recorded."""
        with self._deciding():
            decision = self.rehearse(request, policy, now_s)
        self._decisions.append(decision)
        return decision

    def follow_uninspected(
        self,
        request_id: str,
        trace_id: str,
        now_s: float,
        recorded: Decided | None,
        policy: RoutingPolicy | None = None,
        subset: tuple[str, ...] | None = None,
    ) -> Decision:
        """`route_uninspected`, but the turn is the recorded node's."""
        self._led_uninspected.served = self._fallback(recorded)
        return self.route_uninspected(request_id, trace_id, now_s, policy, subset)

    def is_open(self, request_id: str) -> bool:
        """Whether a request of this id waits, or was sent somewhere and is not over; no other can have it."""
        return self.waits(request_id) or self._fleet.ledger.get(request_id) is not None

    def waits(self, request_id: str) -> bool:
        """Whether a request of this id waits."""
        return self._admission.queue.get(request_id) is not None

    def tenant_of(self, request_id: str) -> str | None:
        """Of one who waits; `None`: it does not."""
        waiting = self._admission.queue.get(request_id)
        return None if waiting is None else waiting.request.tenant

    def drop_expired(self, now_s: float) -> None:
        """Let nobody wait whose time is up. For where lines are missing: what became of them is not known."""
        self._led_admission.drop_expired(now_s)

    def _waiting(self, request_id: str) -> Waiting:
        waiting = self._admission.queue.get(request_id)
        assert waiting is not None, "who waits no longer has waited"
        return waiting

    def _decided(
        self, decide: Callable[[float], list[Decision]], waited: Iterable[Waiting], now_s: float
    ) -> dict[str, Decision | None]:
        """What is decided about these in one call; of whom nothing is, they would still wait."""
        raised = False
        try:
            with self._deciding():
                decide(now_s)
        except Exception:  # noqa: BLE001 - compared like any other outcome
            raised = True
        decisions: dict[str, Decision | None] = {}
        for one in waited:
            decision = self._own.get(one.request.request_id)
            if decision is None and not raised:
                still = Queued("there is no room for it yet, or it is not its turn", one.until_s)
                found = Found(one.request, Verdict(Unknown("")), Known(), one.tokens, one.tokens)
                decision = self._decision(found, one.policy, still, now_s, one.since_s)
            if decision is not None:
                self._decisions.append(decision)
            decisions[one.request.request_id] = decision
        return decisions

    def _would_go(self, waiting: Waiting, policy: RoutingPolicy, standing: Standing, now_s: float) -> Decision:
        """What would become of one whose turn it is, if it had this policy. Nothing is counted."""
        found = self._chooser.find(waiting.request, policy, standing, now_s)
        request = waiting.request
        outcome: Outcome = serve(found.verdict.outcome, self._round_robin.peek, request.request_id)
        outcome = self._chooser.settled(outcome, request.subset, now_s)
        if isinstance(outcome, Refused) and outcome.refusal in WAITABLE and now_s < waiting.until_s:
            outcome = Queued(outcome.message, waiting.until_s)
        return self._decision(found, policy, outcome, now_s, waiting.since_s)

    def _goes(
        self, request: InferenceRequest, policy: RoutingPolicy, known: Known, recorded: Decided, now_s: float
    ) -> bool:
        """Whether it was recorded to go to a node that is a member; there it goes."""
        chosen = recorded.chosen
        view = None if chosen is None else self._fleet.table.get(chosen.node_id)
        if chosen is None or view is None:
            return False
        found = Found(request, Verdict(chosen), known, tokens_of(request, known), allowed_tokens_of(request, known))
        super()._take(found, policy, chosen.node_id, now_s)
        reservation = self._fleet.ledger.get(request.request_id)
        if self._told_who_goes is not None and reservation is not None:
            self._told_who_goes(request, reservation, recorded, view)
        return True

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """What is decided meanwhile uses nothing of any quota, and gives nothing back."""
        self._own.clear()
        self._led_quotas.deciding = True
        try:
            yield
        finally:
            self._led_quotas.deciding = False

    def _take(self, found: Found, policy: RoutingPolicy, node_id: str, now_s: float) -> None:
        """Nothing: requests go where they went."""

    def _kept(self, decision: Decision) -> Decision:
        """Not yet: it is kept when what was recorded is done."""
        self._own.setdefault(decision.request_id, decision)
        return decision

    def _fallback(self, recorded: Decided | None) -> str | None:
        """The member that was recorded as the fallback's choice."""
        if recorded is None or recorded.chosen is None or not recorded.chosen.fallback:
            return None
        node_id = recorded.chosen.node_id
        return None if self._fleet.table.get(node_id) is None else node_id


def _sent(request: InferenceRequest, recorded: Decided | None) -> InferenceRequest:
    """The request for the model that it was recorded to go to."""
    if recorded is None or recorded.model is None or recorded.model == request.model:
        return request
    return request.for_model(recorded.model)
