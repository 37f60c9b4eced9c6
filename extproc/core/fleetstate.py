"""All that is known of the nodes, kept together: what they told, what we sent there, and what follows from both.

agents ──observe──►┐
choices ──take────►│ FleetState: table, ledger, rates, prefixes, ejections ──► views, ready to be read
answers ─answered─►┘
"""

from msgspec import structs

from extproc.core.fleetparts import FleetParts
from extproc.core.loads import idle, pending_prefills, unchanged
from extproc.core.nodeledger import Reservation, Sample
from extproc.core.outcome import Answered, Ending
from extproc.core.promptcaches import Cached
from extproc.core.request import InferenceRequest
from extproc.core.room import blocks_taken, may_hold
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import (
    ROUND_TRIP_S_MAX,
    Applied,
    KvBlocksTold,
    NodeEvent,
    NodeReported,
    NodeView,
    NotAllowed,
    Observation,
    Snapshot,
)

COMPUTED_FASTER_MAX = 4.0
"""No prompt is computed so many times faster than the node's learned rate."""
BOOT_S_MIN = 5.0
"""So long a boot must have been ready: no engine works and is back in less."""


class FleetState(FleetParts):
    """One object that takes what happens, and shows each node as decisions need it."""

    def __init__(self, settings: BalancerSettings) -> None:
        super().__init__(settings)
        for node in settings.static_nodes:
            self.renew(node.node_id)

    def observe(self, event: NodeEvent, now_s: float) -> Observation:
        """Take what an agent said. What the table ignores or refuses changes nothing."""
        if isinstance(event, KvBlocksTold):
            return self._kv_told(event)
        before = self.table.get(event.snapshot.node_id if isinstance(event, NodeReported) else event.node_id)
        observation = self.table.apply(event, now_s)
        if not isinstance(observation, Applied):
            return observation
        if isinstance(event, NodeReported):
            earlier = None if before is None or before.is_static else before.snapshot
            for node_id in observation.displaced:
                self._take_over(node_id, event.snapshot)
            if earlier is not None and earlier.boot_id != event.snapshot.boot_id:
                assert before is not None
                self._restarted(earlier.node_id, now_s - before.ready_since_s)
                earlier = None
            self._sampled(event.snapshot, earlier)
        else:
            self.ledger.restarted(event.node_id)  # if it comes back, it is as another boot
            self.forget(event.node_id)
        return observation

    def cached(self, request: InferenceRequest) -> Cached:
        """How much of its prompt each node has or will have."""
        return self.caches.cached(request, self._snapshot)

    def take(
        self, request: InferenceRequest, node_id: str, cached_tokens: int, now_s: float, *, told: bool = False
    ) -> None:
        """The request goes to this member, which should have so many of its tokens, as it `told`: count it there."""
        view = self.table.get(node_id)
        assert view is not None, "only members are chosen"
        uncached = request.uncached_tokens(cached_tokens, view.learned.trust(told=told))
        reservation = Reservation(
            request.request_id,
            node_id,
            request.sequences,
            blocks_taken(view, request, uncached),
            now_s,
            uncached,
            cached_tokens,
            cached_tokens if told else 0,
            request.prompt.tokens,
            request.prompt_blocks if may_hold(view, request) else (),
            request.model if request.model in view.adapters_unloaded else None,
        )
        self.ledger.open(reservation)
        self.caches.sent(view.snapshot, reservation.prompt_blocks)
        if may_hold(view, request):
            self.caches.begun(request, node_id)
        self.ejections.chosen(node_id, request.request_id, now_s)
        self.renew(node_id)

    def recount(self, request: InferenceRequest) -> None:
        """See `Balancer.recount`."""
        reservation = self.ledger.get(request.request_id)
        view = None if reservation is None else self.table.get(reservation.node_id)
        if reservation is not None and view is not None:
            # What was cached was told in the tokens of the estimate.
            cached = reservation.cached_tokens * request.prompt.tokens // max(1, reservation.prompt_tokens)
            trust, told_tokens = view.learned.cache_trust, reservation.told_tokens
            if request.token_blocks and reservation.node_id in self.caches.kv.nodes:
                cached = told_tokens = self.cached(request).tokens.get(reservation.node_id, 0)
                trust = view.learned.told_trust
                self.caches.begun(request, reservation.node_id)
            uncached = request.uncached_tokens(cached, trust)
            self.ledger.resize(request.request_id, blocks_taken(view, request, uncached), uncached, told_tokens)
            self.renew(reservation.node_id)

    def first_token(self, request_id: str, now_s: float) -> None:
        """See `Balancer.first_token`."""
        reservation = self.ledger.first_token(request_id, now_s)
        if reservation is not None:
            self._computed(reservation, now_s)
            self.ejections.answered(reservation.node_id, request_id, Ending.SERVED, now_s, members=len(self.table))
            self.renew(reservation.node_id)

    def served(self, request_id: str, host: str, now_s: float) -> bool:
        """See `Balancer.served`; whether that changes anything. It keeps its tokens, whatever that node has."""
        before = self.ledger.get(request_id)
        node_id = self.table.at(host)
        view = None if node_id is None else self.table.get(node_id)
        if before is None or view is None or node_id is None or node_id == before.node_id:
            return False
        adapter = before.adapter if before.adapter in view.adapters_unloaded else None
        self.ledger.move(structs.replace(before, node_id=node_id, cached_tokens=0, told_tokens=0, adapter=adapter))
        self.caches.sent(view.snapshot, before.prompt_blocks)
        self.caches.moved(request_id, node_id)
        self.ejections.moved(before.node_id, node_id, request_id, now_s)
        self.renew(before.node_id)
        self.renew(node_id)
        return True

    def leave(self, request_id: str, now_s: float) -> None:
        """See `Balancer.leave`."""
        reservation = self.ledger.leave(request_id, now_s)
        if reservation is not None:
            self.renew(reservation.node_id)

    def finish(self, request_id: str, now_s: float) -> None:
        """See `Balancer.finish`."""
        entry = self.ledger.close(request_id, now_s)
        if entry is not None:
            reservation = entry.reservation
            if entry.counted and entry.first_token_s is None:
                self._computed(reservation, now_s)
            self.caches.ended(request_id, computed=False)
            self.learned.expected_hits(reservation.node_id, reservation.cached_tokens, reservation.told_tokens)
            self.ejections.finished(reservation.node_id, request_id, now_s)
            self.renew(reservation.node_id)

    def answered(self, answered: Answered, now_s: float) -> None:
        """See `Balancer.answered`; its end is told by `finish` besides."""
        reservation = self.ledger.get(answered.request_id)
        node_id = None if answered.host is None else self.table.at(answered.host)
        if answered.host is None and reservation is not None:
            node_id = reservation.node_id
        view = None if node_id is None else self.table.get(node_id)
        if node_id is not None and view is not None and not self._is_old_news(view, answered.at_s):
            members = len(self.table)
            self.ejections.answered(node_id, answered.request_id, answered.ending, now_s, members=members)
        if answered.model is not None and answered.output_tokens is not None:
            self.answers.add(answered.model, answered.output_tokens)

    def _is_old_news(self, view: NodeView, at_s: float | None) -> bool:
        """Whether the node has become ready or well since."""
        well_since_s = max(view.ready_since_s, self.ejections.well_since_s(view.snapshot.node_id))
        return at_s is not None and at_s < well_since_s

    def tick(self, now_s: float) -> list[str]:
        """Forget nodes without a word for too long; their ids."""
        for node_id in self.ledger.purge(now_s - self._settings.left_max_s):
            self.renew(node_id)
        for node_id in self.peers.expire(now_s):
            self.renew_peers(node_id)
        self.caches.settle()
        gone = self.table.prune(now_s)
        for node_id in gone:
            self.forget(node_id)
        for node in self._settings.static_nodes:
            view = self.table.get(node.node_id)
            if view is not None and view.is_static:
                self.ledger.unsampled(node.node_id, now_s - self._settings.nodes.stale_s - ROUND_TRIP_S_MAX)
        return gone

    def bring_back(self, now_s: float) -> list[NodeView]:
        """Static nodes that are members again; call it after `tick`."""
        back = self.table.bring_back(now_s)
        for view in back:
            self.renew(view.snapshot.node_id)
        return back

    def take_lost(self) -> list[str]:
        """See `Ledger.take_lost`."""
        lost = self.ledger.take_lost()
        for request_id in lost:
            self.caches.ended(request_id, computed=False)
        return lost

    def _computed(self, one: Reservation, now_s: float) -> None:
        """Its answer began or is over. What ends sooner than its prompt can be computed was refused, or given up."""
        view = self.table.get(one.node_id)
        if view is not None:
            soonest_s = one.uncached_tokens / (COMPUTED_FASTER_MAX * view.learned.prefill_tokens_per_s)
            if now_s - one.opened_s >= soonest_s:
                self.caches.computed(view.snapshot, one.prompt_blocks)
                self.caches.ended(one.request_id, computed=True)

    def _kv_told(self, event: KvBlocksTold) -> Observation:
        view = self.table.get(event.node_id)
        if view is None or view.is_static or view.snapshot.boot_id != event.boot_id:
            return NotAllowed("kv_blocks: wanted those of a member, of the boot that is known")
        fault = self.caches.told(event)
        return Applied() if fault is None else NotAllowed(f"kv_blocks: {fault}")

    def _snapshot(self, node_id: str) -> Snapshot:
        view = self.table.get(node_id)
        assert view is not None, "what is told of a node is forgotten with it"
        return view.snapshot

    def _sampled(self, snapshot: Snapshot, before: Snapshot | None) -> None:
        node_id = snapshot.node_id
        self.caches.reported(node_id)
        view = self.table.get(node_id)
        assert view is not None, "it has just reported"
        learned = self.learned.observe(snapshot, view.sampled_at_s)
        sample = Sample(
            view.sampled_at_s,
            snapshot.round_trip_s / 2,
            pending_prefills(snapshot),
            idle(snapshot),
            learned.prefill_tokens_per_s,
            learned.prefill_tokens_mean,
            before is not None and unchanged(snapshot, before),
            self.learned.prefill_tokens_per_s,
        )
        self.ledger.sampled(node_id, sample)
        self.renew(node_id)

    def _take_over(self, static_id: str, snapshot: Snapshot) -> None:
        """What was sent to a static node is at the same node by the name that its agent gives it."""
        for reservation in self.ledger.rename(static_id, snapshot.node_id):
            self.caches.sent(snapshot, reservation.prompt_blocks)
        self.forget(static_id)

    def _restarted(self, node_id: str, was_ready_s: float) -> None:
        """The engine began anew: nothing of what it had is left, nor of what it was.

        One that keeps beginning anew, be it an agent's lie or one URL for several engines, sheds nothing by that: the
        streams of a real restart end by themselves.
        """
        self.caches.forget(node_id)
        self.peers.forget(node_id)
        if was_ready_s >= BOOT_S_MIN:
            self.ledger.restarted(node_id)
            self.learned.forget(node_id)
            self.ejections.forget(node_id)
