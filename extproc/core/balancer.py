"""The centre: owns all that a decision rests on, and is what everything drives.

    agents ──observe──►┐                       ┌──► Decision: Chosen | Refused | Unknown
    gateway ──route───►│ Balancer ───decide───►│
    gateway ──finish──►│  table, ledger, rates,└──► the ledger, in the same step
    answers ─answered─►│  prefixes, ejections,
    clock ────tick────►┘  fallback

It is pure: time comes in as `now_s` (seconds on one monotonic clock), nothing is awaited, read or written. So
choosing and counting are one step, and the same calls give the same decisions, in `serve`, in a simulation and when a
journal is replayed.
"""

from collections import deque
from collections.abc import Collection, Mapping
from itertools import islice

from extproc.core import filters
from extproc.core.answerlengths import AnswerLengths
from extproc.core.decided import decision_of, serve, uninspected, would_serve
from extproc.core.decision import Chosen, Decision, Outcome, Refusal, Refused, Unknown
from extproc.core.ejection import Ejections
from extproc.core.fallback import SmoothWeightedRoundRobin
from extproc.core.learned import LearnedRates
from extproc.core.ledger import Ledger
from extproc.core.loads import idle, pending_prefills, unchanged
from extproc.core.nodeledger import Reservation, Sample
from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.promptcaches import PromptCaches
from extproc.core.request import InferenceRequest
from extproc.core.router import FallBack, Known, Verdict, decide, fall_back
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import Applied, Freshness, NodeEvent, NodeReported, NodeView, Observation, Snapshot
from extproc.core.table import SnapshotTable

COMPUTED_FASTER_MAX = 4.0
"""No prompt is computed so many times faster than the node's learned rate."""
TURNS_COUNTED_MAX = 1024
"""Policies, each with each model, whose requests are counted for `round-robin`; then counting begins anew."""


class Balancer:
    """Decides where requests go. One object, one thread."""

    def __init__(self, settings: BalancerSettings, started_s: float) -> None:
        self._settings = settings
        self._table = SnapshotTable(settings.nodes)
        self._ledger = Ledger()
        self._learned = LearnedRates(settings.rates)
        self._answers = AnswerLengths(settings.rates.output_tokens)
        self._caches = PromptCaches(settings.prefix)
        self._ejections = Ejections(settings.ejection)
        self._round_robin = SmoothWeightedRoundRobin()
        self._round_robin_uninspected = SmoothWeightedRoundRobin()  # of its own: polls must not take inference's turns
        self._turns: dict[tuple[str, str], int] = {}
        """Of each policy for each model: other models have other nodes."""
        self._decisions: deque[Decision] = deque(maxlen=settings.decisions_kept_max)
        self._first_choice_s = started_s + 2 * settings.nodes.report_interval_s
        self._settled_s = max(self._first_choice_s, started_s + settings.nodes.settle_s)

    def observe(self, event: NodeEvent, now_s: float) -> Observation:
        """Take what an agent said. What the table ignores or refuses changes nothing."""
        before = self._table.get(event.snapshot.node_id if isinstance(event, NodeReported) else event.node_id)
        observation = self._table.apply(event, now_s)
        if not isinstance(observation, Applied):
            return observation
        if isinstance(event, NodeReported):
            earlier = None if before is None else before.snapshot
            if earlier is not None and earlier.boot_id != event.snapshot.boot_id:
                self._restarted(earlier.node_id)
                earlier = None
            self._sampled(event.snapshot, earlier)
        else:
            self._ledger.restarted(event.node_id)  # if it comes back, it is as another boot
            self._forget(event.node_id)
        return observation

    def route(self, request: InferenceRequest, policy: RoutingPolicy, now_s: float) -> Decision:
        """Choose a node for an inference request and count the request there. Raises for no input."""
        known = self._known(request, policy)
        verdict = self._decide(request, policy, known, now_s)
        outcome = self._settled(serve(verdict.outcome, self._round_robin), now_s)
        if isinstance(outcome, Chosen):
            self._take(request, policy, outcome.node_id, known, now_s)
        decision = decision_of(request, policy, verdict, outcome, now_s)
        self._decisions.append(decision)
        return decision

    def would_route(self, request: InferenceRequest, policy: RoutingPolicy, now_s: float) -> Decision:
        """What `route` would decide now. Nothing is counted."""
        verdict = self._decide(request, policy, self._known(request, policy), now_s)
        outcome = self._settled(would_serve(verdict.outcome, self._round_robin), now_s)
        return decision_of(request, policy, verdict, outcome, now_s)

    def route_uninspected(self, request_id: str, trace_id: str, now_s: float) -> Decision:
        """Choose a node by round robin for what is no inference request; it is not counted anywhere."""
        nodes = self._table.views()
        outcome: Chosen | Refused | Unknown | FallBack
        if now_s < self._first_choice_s or not nodes:
            outcome = self._too_early()
        elif ready := filters.ready(nodes, now_s, self._settings.nodes):
            outcome = FallBack(filters.not_out(ready, self.out_until_s, now_s))
        else:
            outcome = fall_back(nodes, self.out_until_s, self._settings, now_s)
        served = serve(outcome, self._round_robin_uninspected)
        return uninspected(request_id, trace_id, self._settled(served, now_s), now_s)

    def recount(self, request: InferenceRequest) -> None:
        """Put the ledger right: a request that was routed by an estimate of its prompt, now with its tokens.

        Ids of requests that are not open are no fault: it may have finished meanwhile, or been refused.
        """
        reservation = self._ledger.get(request.request_id)
        view = None if reservation is None else self._table.get(reservation.node_id)
        if reservation is not None and view is not None:
            # What was cached was told in the tokens of the estimate.
            cached = reservation.cached_tokens * request.prompt.tokens // max(1, reservation.prompt_tokens)
            uncached = request.uncached_tokens(cached, view.learned.cache_trust)
            blocks = filters.blocks_taken(view, request, uncached)
            self._ledger.resize(request.request_id, blocks, uncached)
            self._renew(reservation.node_id)

    def first_token(self, request_id: str, now_s: float) -> None:
        """The answer's first token was seen. Idempotent; unknown ids are no fault."""
        reservation = self._ledger.first_token(request_id, now_s)
        if reservation is not None:
            self._computed(reservation, now_s)
            self._ejections.answered(reservation.node_id, request_id, Ending.SERVED, now_s, members=len(self._table))
            self._renew(reservation.node_id)

    def leave(self, request_id: str, now_s: float) -> None:
        """Its stream was left before the answer's end, which `answered` tells, or nobody. Unknown ids are no fault."""
        reservation = self._ledger.leave(request_id, now_s)
        if reservation is not None:
            self._renew(reservation.node_id)

    def finish(self, request_id: str, now_s: float) -> None:
        """The request's stream ended, however it ended. Idempotent; unknown ids are no fault."""
        entry = self._ledger.close(request_id, now_s)
        if entry is not None:
            reservation = entry.reservation
            if entry.counted and entry.first_token_s is None:
                self._computed(reservation, now_s)
            self._learned.expected_hits(reservation.node_id, reservation.cached_tokens)
            self._ejections.finished(reservation.node_id, request_id, now_s)
            self._renew(reservation.node_id)

    def answered(self, answered: Answered, now_s: float) -> None:
        """Take how a request fared. It may be none of ours, and come after its end or before."""
        reservation = self._ledger.get(answered.request_id)
        node_id = None if answered.host is None else self._table.at(answered.host)
        if node_id is None and reservation is not None:
            node_id = reservation.node_id
        if node_id is not None and self._table.get(node_id) is not None:
            members = len(self._table)
            self._ejections.answered(node_id, answered.request_id, answered.ending, now_s, members=members)
        if answered.model is not None and answered.output_tokens is not None:
            self._answers.add(answered.model, answered.output_tokens)
        if answered.over:
            self.finish(answered.request_id, now_s)

    def settle(self) -> None:
        """Do what was put off: prompts are taken into the index. Whoever asks next finds it done anyway."""
        self._caches.settle()

    def tick(self, now_s: float) -> list[str]:
        """Forget nodes without a word for too long; their ids. Call it every `prune_interval_s`."""
        for node_id in self._ledger.purge(now_s - self._settings.left_max_s):
            self._renew(node_id)
        self.settle()
        gone = self._table.prune(now_s)
        for node_id in gone:
            self._forget(node_id)
        return gone

    def views(self) -> Collection[NodeView]:
        """Every member as decisions see it; do not hold it over another call."""
        return self._table.views()

    def freshness(self, view: NodeView, now_s: float) -> Freshness:
        """How far a member's snapshot can be trusted now."""
        return filters.freshness(now_s - view.sampled_at_s, self._settings.nodes)

    @property
    def out_until_s(self) -> Mapping[str, float]:
        """Nodes that failed requests: until when none goes there; past that time they are on trial."""
        return self._ejections.out_until_s

    def decisions(self, limit: int) -> list[Decision]:
        """The latest decisions about inference requests, newest first."""
        return list(islice(reversed(self._decisions), max(0, limit)))

    @property
    def requests_open(self) -> int:
        """Requests sent somewhere by us and not finished."""
        return len(self._ledger)

    def _too_early(self) -> Unknown:
        if not self._table.views():
            return Unknown("no node has reported yet")
        return Unknown("started less than two report intervals ago")

    def _settled(self, outcome: Outcome, now_s: float) -> Outcome:
        """Soon after the start some agents are still on their way: then only full nodes are a reason to refuse."""
        if now_s >= self._settled_s or not isinstance(outcome, Refused) or outcome.refusal is Refusal.OVERLOADED:
            return outcome
        return Unknown(f"started less than {self._settings.nodes.settle_s:g} s ago, and no known node serves it")

    def _known(self, request: InferenceRequest, policy: RoutingPolicy) -> Known:
        return Known(
            self._turns.get((policy.name, request.model), 0),
            self._table.models_left,
            self._caches.match(request.prompt_blocks),
            self._ejections.out_until_s,
            self._answers.expected(request.model),
            self._learned.prefill_tokens_per_s,
            self._learned.decode_s_per_token,
        )

    def _decide(self, request: InferenceRequest, policy: RoutingPolicy, known: Known, now_s: float) -> Verdict:
        if now_s < self._first_choice_s:
            return Verdict(self._too_early())
        return decide(request, self._table.views(), policy, self._settings, known, now_s)

    def _take(self, request: InferenceRequest, policy: RoutingPolicy, node_id: str, known: Known, now_s: float) -> None:
        """The request goes to this member: count it, and the turn."""
        turn = (policy.name, request.model)
        if len(self._turns) >= TURNS_COUNTED_MAX and turn not in self._turns:
            self._turns.clear()
        self._turns[turn] = self._turns.get(turn, 0) + 1
        view = self._table.get(node_id)
        assert view is not None, "only members are chosen"
        cached = request.cached_tokens(known.cached_blocks.get(node_id, 0))
        uncached = request.uncached_tokens(cached, view.learned.cache_trust)
        blocks = filters.blocks_taken(view, request, uncached)
        adapter = request.model if request.model in view.adapters_unloaded else None
        reservation = Reservation(
            request.request_id,
            node_id,
            request.sequences,
            blocks,
            now_s,
            uncached,
            cached,
            request.prompt.tokens,
            request.prompt_blocks if filters.may_hold(view, request) else (),
            adapter,
        )
        self._ledger.open(reservation)
        self._caches.sent(view.snapshot, reservation.prompt_blocks)
        self._ejections.chosen(node_id, request.request_id, now_s)
        self._renew(node_id)

    def _computed(self, one: Reservation, now_s: float) -> None:
        """Its answer began or is over. What ends sooner than its prompt can be computed was refused, or given up."""
        view = self._table.get(one.node_id)
        if view is not None:
            soonest_s = one.uncached_tokens / (COMPUTED_FASTER_MAX * view.learned.prefill_tokens_per_s)
            if now_s - one.opened_s >= soonest_s:
                self._caches.computed(view.snapshot, one.prompt_blocks)

    def _sampled(self, snapshot: Snapshot, before: Snapshot | None) -> None:
        node_id = snapshot.node_id
        view = self._table.get(node_id)
        assert view is not None, "it has just reported"
        learned = self._learned.observe(snapshot, view.sampled_at_s)
        sample = Sample(
            view.sampled_at_s,
            snapshot.round_trip_s / 2,
            pending_prefills(snapshot),
            idle(snapshot),
            learned.prefill_tokens_per_s,
            learned.prefill_tokens_mean,
            before is not None and unchanged(snapshot, before),
        )
        self._ledger.sampled(node_id, sample)
        self._renew(node_id)

    def _renew(self, node_id: str) -> None:
        self._table.renew(node_id, self._ledger.load(node_id), self._learned.of(node_id))

    def _restarted(self, node_id: str) -> None:
        """The engine began anew: nothing of what it had or was is left."""
        self._ledger.restarted(node_id)
        self._learned.forget(node_id)
        self._caches.forget(node_id)
        self._ejections.forget(node_id)

    def _forget(self, node_id: str) -> None:
        self._ledger.forget(node_id)
        self._learned.forget(node_id)
        self._caches.forget(node_id)
        self._ejections.forget(node_id)
        self._round_robin.forget(node_id)
        self._round_robin_uninspected.forget(node_id)
