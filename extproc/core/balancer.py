"""The centre: owns all that a decision rests on, and is what everything drives.

    agents ──observe──►┐                       ┌──► Decision: Chosen | Queued | Refused | Unknown
    gateway ──route───►│ Balancer ───decide───►│
    gateway ──finish──►│  fleet state, queue,  └──► the ledger or the queue, in the same step
    answers ─answered─►│  quotas, fallback
    clock ────tick────►│
    room ────admit────►└──────────────────────────► decisions about those who waited

It is pure: time comes in as `now_s` (seconds on one monotonic clock), nothing is awaited, read or written. So
choosing and counting are one step, and the same calls give the same decisions, in `serve`, in a simulation and when a
journal is replayed.
"""

from itertools import islice

from msgspec import structs

from extproc.core.admission import WAITABLE
from extproc.core.admissionqueue import Lane, Waiting
from extproc.core.balancerpeers import BalancerPeers
from extproc.core.chooser import Found
from extproc.core.decided import Turn, decision_of, serve, uninspected
from extproc.core.decision import OBSERVED, Chosen, Decision, Outcome, Queued, Refused
from extproc.core.filters import is_listed
from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.refusals import rate_limited, turned_away
from extproc.core.request import InferenceRequest
from extproc.core.router import FallBack, Known, Verdict
from extproc.core.snapshot import Applied, KvBlocksTold, NodeEvent, NodeReported, Observation

ADMITTED_AT_ONCE_MAX = 16
"""Of those who wait, so many go in one call: each takes a decision, and others shall come between."""


class Balancer(BalancerPeers):
    """Decides where requests go. One object, one thread."""

    def observe(self, event: NodeEvent, now_s: float) -> Observation:
        """Take what an agent said. What the table ignores or refuses changes nothing."""
        observation = self._fleet.observe(event, now_s)
        if isinstance(observation, Applied) and not isinstance(event, KvBlocksTold):
            if isinstance(event, NodeReported):
                view = self._fleet.table.get(event.snapshot.node_id)
                assert view is not None, "it has just reported"
                for node_id in observation.displaced:
                    self._forget(node_id)
                self._forecast.observed(view, now_s)
                self._admission.serves(view.snapshot.node_id, view.snapshot.host, view.context_lengths)
            else:
                self._forget(event.node_id)
            self._end_lost(now_s)
            self._may_have_room()
        return observation

    def route(self, request: InferenceRequest, policy: RoutingPolicy, now_s: float) -> Decision:
        """Choose a node for an inference request and count the request there, or let it wait. Raises for no input."""
        found = self._found(request, policy, now_s)
        outcome = self._outcome(request, found, self._round_robin.pick, now_s)
        self._expect_more(request, found, outcome, now_s)
        match outcome:
            case Chosen(node_id=node_id):
                self._take(found, policy, node_id, now_s)
                self._use(request, found, now_s)
            case Queued(until_s=until_s):
                self._admission.wait(request, policy, found.tokens, until_s, now_s)
                self._use(request, found, now_s)
        if isinstance(outcome, Chosen) or self._admission.queue.overtakes(request.request_id):
            self._may_have_room()  # it has taken a turn, or begun a prompt that is theirs too, or stands before them
        return self._kept(self._decision(found, policy, outcome, now_s))

    def would_route(self, request: InferenceRequest, policy: RoutingPolicy, now_s: float) -> Decision:
        """What `route` would decide now. Nothing is counted."""
        found = self._found(request, policy, now_s)
        return self._decision(found, policy, self._outcome(request, found, self._round_robin.peek, now_s), now_s)

    def rehearse(self, request: InferenceRequest, policy: RoutingPolicy, now_s: float) -> Decision:
        """Decide about a request that goes where Envoy sends it, whatever is decided; the decision is kept.

        Nothing is counted, and nobody waits: who would is refused here.
        """
        found = self._found(request, policy, now_s)
        outcome = self._outcome(request, found, self._round_robin.peek, now_s, may_wait=False)
        return self._kept(structs.replace(self._decision(found, policy, outcome, now_s), arm=OBSERVED))

    def admit(self, now_s: float) -> list[Decision]:
        """Let those go who have room now, and refuse those whose time is up: their decisions, a bounded number.

        Where more could go `on_room` has been called again.
        """
        done: list[Decision] = []
        turns = self._admission.turns()
        while len(done) < ADMITTED_AT_ONCE_MAX and (waiting := turns.next()) is not None:
            found = self._chooser.find(waiting.request, waiting.policy, turns.standing(), now_s)
            outcome = found.verdict.outcome
            if isinstance(outcome, Refused) and outcome.refusal in WAITABLE:
                turns.held_up()
            else:
                turns.goes()
                done.append(self._let_go(waiting, found, now_s))
        refused: dict[Lane, Refused | None] = {}
        for waiting in islice(self._admission.queue.expired(now_s), ADMITTED_AT_ONCE_MAX):
            if waiting.lane not in refused:
                found = self._chooser.find(waiting.request, waiting.policy, turns.standing_of(waiting.lane), now_s)
                outcome = found.verdict.outcome
                refused[waiting.lane] = outcome if isinstance(outcome, Refused) else None
            why = f"there was no room for it in {now_s - waiting.since_s:.1f} s"
            done.append(self._turn_away(waiting, why, refused[waiting.lane], now_s))
        if done:  # more may go: those behind, and who was held up before one went that begins the same prompt
            self._may_have_room()
        return done

    def drain(self, now_s: float) -> list[Decision]:
        """Turn away all who wait: we end, and another router shall have them. Their decisions."""
        return [self._turn_away(one, "this router is ending", None, now_s) for one in self._admission.queue.clear()]

    def route_uninspected(
        self,
        request_id: str,
        trace_id: str,
        now_s: float,
        policy: RoutingPolicy | None = None,
        subset: tuple[str, ...] | None = None,
    ) -> Decision:
        """Choose a node by round robin for what is no inference request; it is not counted anywhere.

        Of the policy only the destination matters; `subset` is as a request's.
        """
        found = self._chooser.find_uninspected(subset, 0 if policy is None else policy.others_max, now_s)
        outcome = serve(found, self._round_robin_uninspected.pick, request_id)
        name = "" if policy is None else policy.name
        return uninspected(request_id, trace_id, name, self._chooser.settled(outcome, subset, now_s), now_s)

    def recount(self, request: InferenceRequest) -> None:
        """Put right a request that was routed by an estimate of its prompt, now with its tokens.

        Ids of requests that are not open are no fault: it may have finished meanwhile, or been refused.
        """
        if self._admission.queue.get(request.request_id) is not None:
            self._admission.recount(request)
        self._fleet.recount(request)
        self._may_have_room()

    def first_token(self, request_id: str, now_s: float) -> None:
        """The answer's first token was seen. Idempotent; unknown ids are no fault."""
        self._fleet.first_token(request_id, now_s)
        self._may_have_room()

    def served(self, request_id: str, host: str, now_s: float) -> None:
        """Envoy sent the request to this host, which need not be the chosen one: it counts where it is.

        Ids of requests that are not open are no fault, nor are hosts of which no member is known.
        """
        if self._fleet.served(request_id, host, now_s):
            self._may_have_room()

    def leave(self, request_id: str, now_s: float) -> None:
        """Its stream was left before the answer's end, which `answered` tells, or nobody. Unknown ids are no fault."""
        self._fleet.leave(request_id, now_s)
        self._end_lost(now_s)
        self._may_have_room()

    def finish(self, request_id: str, now_s: float) -> None:
        """The request's stream ended, however it did, and so does its waiting. Idempotent; unknown ids are no fault."""
        if self._admission.queue.remove(request_id) is not None:
            self._quotas.cancel(request_id)
        self._quotas.close(request_id, None, now_s)
        self._fleet.finish(request_id, now_s)
        self._may_have_room()

    def answered(self, answered: Answered, now_s: float) -> None:
        """Take how a request fared. It may be none of ours, and come after its end or before; not while it waits."""
        if self._admission.queue.get(answered.request_id) is not None:
            return
        self._fleet.answered(answered, now_s)
        if answered.model is not None and answered.output_tokens is not None:
            self._forecast.answered(answered.model, answered.output_tokens, now_s)
        if answered.over:
            nothing = 0 if answered.ending is Ending.UNREACHABLE else None  # nobody computed it
            self._quotas.close(answered.request_id, answered.used_tokens or nothing, now_s)
            self.finish(answered.request_id, now_s)
        else:
            self._may_have_room()  # its node may be in again

    def settle(self) -> None:
        """Take prompts into the index, which was put off. Whoever asks next finds it done anyway."""
        self._fleet.caches.settle()

    def tick(self, now_s: float) -> list[str]:
        """Forget nodes without a word for too long; their ids. Call it every `prune_interval_s`."""
        for node_id in (gone := self._fleet.tick(now_s)):
            self._forget(node_id)
        for view in self._fleet.bring_back(now_s):
            self._admission.serves(view.snapshot.node_id, view.snapshot.host, view.context_lengths)
        self._end_lost(now_s)
        self._may_have_room()
        return gone

    def _found(self, request: InferenceRequest, policy: RoutingPolicy, now_s: float) -> Found:
        return self._chooser.find(request, policy, self._admission.standing(request), now_s)

    def _outcome(
        self, request: InferenceRequest, found: Found, whose_turn: Turn, now_s: float, *, may_wait: bool = True
    ) -> Outcome:
        """What is said to a request that has come now. Only who goes takes a turn."""
        outcome: Outcome | FallBack = found.verdict.outcome
        if isinstance(outcome, Refused):
            outcome = self._chooser.settled(outcome, request.subset, now_s)
        if isinstance(outcome, Refused) and may_wait:
            outcome = self._admission.would_wait(request, outcome, now_s)
        if isinstance(outcome, Chosen | FallBack | Queued):
            price = self._quotas.price(request, found.allowed_tokens)
            exceeded = self._quotas.check(request.tenant, request.model, price, now_s)
            if exceeded is not None:
                return rate_limited(exceeded)
        return outcome if isinstance(outcome, Queued) else serve(outcome, whose_turn, request.request_id)

    def _take(self, found: Found, policy: RoutingPolicy, node_id: str, now_s: float) -> None:
        """The request goes to this member: count it, and the turn."""
        self._chooser.took_turn(policy, found.request.model)
        known = found.known
        cached_tokens = known.cached_tokens.get(node_id, 0)
        self._fleet.take(found.request, node_id, cached_tokens, now_s, told=node_id in known.told)

    def _expect_more(self, request: InferenceRequest, found: Found, outcome: Outcome, now_s: float) -> None:
        """The forecast counts what more nodes could serve, of models that nodes list, as it was asked for."""
        wanted = isinstance(outcome, Chosen | Queued) or (isinstance(outcome, Refused) and outcome.refusal in WAITABLE)
        if wanted and is_listed(self.views(), request.model):
            self._forecast.asked(request, found.verdict.uncached_tokens, now_s)

    def _use(self, request: InferenceRequest, found: Found, now_s: float) -> None:
        """What it may use counts for its tenant's quota of the model that was asked for, whichever serves it."""
        price = self._quotas.price(request, found.allowed_tokens)
        self._quotas.take(request.request_id, request.tenant, request.model, price, now_s)

    def _end_lost(self, now_s: float) -> None:
        for request_id in self._fleet.take_lost():
            self._quotas.close(request_id, None, now_s)

    def _let_go(self, waiting: Waiting, found: Found, now_s: float) -> Decision:
        """It waits no longer, and goes where it can."""
        request_id = waiting.request.request_id
        outcome = serve(found.verdict.outcome, self._round_robin.pick, request_id)
        outcome = self._chooser.settled(outcome, waiting.request.subset, now_s)
        if isinstance(outcome, Chosen):
            self._take(found, waiting.policy, outcome.node_id, now_s)
        elif isinstance(outcome, Refused):
            self._quotas.cancel(request_id)
        return self._kept(self._decision(found, waiting.policy, outcome, now_s, waiting.since_s))

    def _turn_away(self, waiting: Waiting, why: str, now: Refused | None, now_s: float) -> Decision:
        """It waits no longer, and goes nowhere. `now` is the refusal of one like it that would come now, if any."""
        request = waiting.request
        self._quotas.cancel(request.request_id)
        refused = turned_away(request, why, now, self.settings)
        found = Found(request, Verdict(refused), Known(), waiting.tokens, waiting.tokens)
        return self._kept(self._decision(found, waiting.policy, refused, now_s, waiting.since_s))

    def _decision(
        self, found: Found, policy: RoutingPolicy, outcome: Outcome, now_s: float, since_s: float | None = None
    ) -> Decision:
        queued_s = 0.0 if since_s is None else now_s - since_s
        priority = self._admission.name(found.request)
        return decision_of(found.request, policy, found.verdict, outcome, now_s, priority, queued_s)

    def _kept(self, decision: Decision) -> Decision:
        self._decisions.append(decision)
        return decision

    def _forget(self, node_id: str) -> None:
        self._forecast.forget(node_id)
        self._admission.forget(node_id)
        self._round_robin.forget(node_id)
        self._round_robin_uninspected.forget(node_id)
