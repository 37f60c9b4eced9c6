"""The centre: owns the table, the ledger, the learned rates and the round robin, and is what everything drives.

    agents ──observe──►┐                     ┌──► Decision: Chosen | Refused | Unknown
    gateway ──route───►│ Balancer ──decide──►│
    gateway ──finish──►│  table, ledger,     └──► the ledger, in the same step
    clock ────tick────►┘  rates, fallback

It is pure: time comes in as `now_s` (seconds on one monotonic clock), nothing is awaited, read or written. So
choosing and counting are one step, and the same calls give the same decisions, in `serve` and in a simulation.
"""

from collections import deque
from collections.abc import Collection
from itertools import islice

from extproc.core import filters
from extproc.core.decision import Chosen, Decision, Outcome, Refusal, Refused, Unknown
from extproc.core.fallback import SmoothWeightedRoundRobin
from extproc.core.learned import LearnedRates
from extproc.core.ledger import Ledger, Reservation
from extproc.core.phase import classify
from extproc.core.policy import RoutingPolicy
from extproc.core.request import InferenceRequest
from extproc.core.router import FallBack, Verdict, decide, fall_back
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import Applied, Freshness, NodeEvent, NodeReported, NodeView, Observation
from extproc.core.table import SnapshotTable

FALLBACK = "fallback"
"""Stands as the strategy of decisions that the round robin made."""


class Balancer:
    """Decides where requests go. One object, one thread."""

    def __init__(self, settings: BalancerSettings, started_s: float) -> None:
        self._settings = settings
        self._table = SnapshotTable(settings.nodes)
        self._ledger = Ledger()
        self._learned = LearnedRates(settings.rates)
        self._round_robin = SmoothWeightedRoundRobin()
        self._round_robin_uninspected = SmoothWeightedRoundRobin()  # of its own: polls must not take inference's turns
        self._decisions: deque[Decision] = deque(maxlen=settings.decisions_kept_max)
        self._first_choice_s = started_s + 2 * settings.nodes.report_interval_s
        self._settled_s = max(self._first_choice_s, started_s + settings.nodes.settle_s)

    def observe(self, event: NodeEvent, now_s: float) -> Observation:
        """Take what an agent said. What the table ignores or refuses changes nothing."""
        observation = self._table.apply(event, now_s)
        if not isinstance(observation, Applied):
            return observation
        if isinstance(event, NodeReported):
            node_id = event.snapshot.node_id
            self._ledger.sampled(node_id, now_s - event.snapshot.sample_age_s)
            self._table.set_own(node_id, self._ledger.load(node_id))
            self._learned.observe(event.snapshot)
        else:
            self._forget(event.node_id)
        return observation

    def route(self, request: InferenceRequest, policy: RoutingPolicy, now_s: float) -> Decision:
        """Choose a node for an inference request and count the request there. Raises for no input."""
        phase = classify(request, self._learned.rates)
        if now_s < self._first_choice_s:
            verdict = Verdict(self._too_early())
        else:
            verdict = decide(
                request, phase, self._table.views(), policy, self._settings, now_s, self._table.models_left
            )
        outcome = self._settled(_served(verdict.outcome, self._round_robin), now_s)
        if isinstance(outcome, Chosen):
            self._reserve(request, outcome.node_id, now_s)
        fell_back = isinstance(outcome, Chosen) and outcome.fallback
        decision = Decision(
            request_id=request.request_id,
            trace_id=request.trace_id,
            at_s=now_s,
            model=request.model,
            prompt_tokens=request.prompt.tokens,
            tokens_exact=request.prompt.exact,
            tokens_source=request.prompt.source,
            phase=phase,
            policy=policy.name,
            strategy=FALLBACK if fell_back else policy.strategy,
            outcome=outcome,
            candidates=verdict.candidates,
        )
        self._decisions.append(decision)
        return decision

    def route_uninspected(self, request_id: str, trace_id: str, now_s: float) -> Decision:
        """Choose a node by round robin for what is no inference request; it is not counted anywhere."""
        nodes = self._table.views()
        outcome: Chosen | Refused | Unknown | FallBack
        if now_s < self._first_choice_s or not nodes:
            outcome = self._too_early()
        elif ready := filters.ready(nodes, now_s, self._settings.nodes):
            outcome = FallBack(ready)
        else:
            outcome = fall_back(nodes, self._settings, now_s)
        return Decision(
            request_id=request_id,
            trace_id=trace_id,
            at_s=now_s,
            model=None,
            prompt_tokens=None,
            tokens_exact=False,
            tokens_source=None,
            phase=None,
            policy="",
            strategy=FALLBACK,
            outcome=self._settled(_served(outcome, self._round_robin_uninspected), now_s),
            candidates=(),
        )

    def recount(self, request: InferenceRequest) -> None:
        """Put the ledger right: a request that was routed by an estimate of its prompt, now with its tokens.

        Ids of requests that are not open are no fault: it may have finished meanwhile, or been refused.
        """
        reservation = self._ledger.get(request.request_id)
        view = None if reservation is None else self._table.get(reservation.node_id)
        if reservation is not None and view is not None:
            self._ledger.resize(request.request_id, filters.blocks_taken(view, request))
            self._table.set_own(reservation.node_id, self._ledger.load(reservation.node_id))

    def finish(self, request_id: str) -> None:
        """The request's stream ended, however it ended. Idempotent; unknown ids are no fault."""
        reservation = self._ledger.close(request_id)
        if reservation is not None:
            self._table.set_own(reservation.node_id, self._ledger.load(reservation.node_id))

    def tick(self, now_s: float) -> list[str]:
        """Forget nodes without a word for too long; their ids. Call it every `prune_interval_s`."""
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

    def _reserve(self, request: InferenceRequest, node_id: str, now_s: float) -> None:
        view = self._table.get(node_id)
        assert view is not None, "only members are chosen"
        blocks = filters.blocks_taken(view, request)
        self._ledger.open(Reservation(request.request_id, node_id, request.sequences, blocks, now_s))
        self._table.set_own(node_id, self._ledger.load(node_id))

    def _forget(self, node_id: str) -> None:
        self._learned.forget(node_id)
        self._round_robin.forget(node_id)
        self._round_robin_uninspected.forget(node_id)


def _served(outcome: Chosen | Refused | Unknown | FallBack, round_robin: SmoothWeightedRoundRobin) -> Outcome:
    """Turn a fallback into the node whose turn it is."""
    if not isinstance(outcome, FallBack):
        return outcome
    served = round_robin.pick(outcome.members).snapshot
    reason = f"round robin of {len(outcome.members)}"
    return Chosen(served.node_id, served.host, reason, fallback=True)
