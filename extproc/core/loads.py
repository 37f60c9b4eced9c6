"""What a node has to do now: its sample and our ledger put together into a view."""

from extproc.core.hidden import hides_of
from extproc.core.snapshot import ALWAYS, Learned, NodeView, OwnLoad, Snapshot


def in_flight(snapshot: Snapshot, own: OwnLoad) -> int:
    """Sequences at the node. Where its sample does not tell, those that we know of.

    A request whose stream we see open has one of them at least: a node that tells of none, by fault or malice, would
    draw all that comes.
    """
    if snapshot.requests_running is None or snapshot.requests_waiting is None:
        return own.sequences_open
    sampled = snapshot.requests_running + snapshot.requests_waiting
    return max(own.requests_held, sampled + own.sequences_unseen - own.sequences_finished)


def pending_prefills(snapshot: Snapshot) -> int:
    """Sequences without a first token in the sample; where it does not tell, those in the engine's queue at least."""
    if snapshot.pending_prefills is not None:
        return snapshot.pending_prefills
    return snapshot.requests_waiting or 0


def prefill_tokens_ahead(view: NodeView, now_s: float) -> float:
    """Prompt tokens that the node has yet to compute before it comes to another prompt: W of the costs."""
    own = view.own
    passed_s = now_s - own.work_since_s
    if passed_s < 0:
        return view.prefill_tokens_pending
    left = own.work_tokens - view.learned.prefill_tokens_per_s * passed_s
    return min(view.prefill_tokens_pending, left) if left > 0 else 0.0


def own_tokens_ahead(view: NodeView, tokens_per_s: float, now_s: float) -> float:
    """The same of what we sent there alone, whatever its samples say, computed at this rate."""
    own = view.own
    passed_s = max(0.0, now_s - own.sent_since_s)
    if own.sent_since_s == ALWAYS:
        return float(own.tokens_unstarted)
    return min(own.tokens_unstarted, max(0.0, own.sent_tokens - tokens_per_s * passed_s))


def idle(snapshot: Snapshot) -> bool:
    """Whether the sample shows nothing at the node; what is not told may be there."""
    return snapshot.requests_running == 0 and snapshot.requests_waiting == 0


def unchanged(snapshot: Snapshot, before: Snapshot) -> bool:
    """Whether a report of the same boot shows the same finished step as the one before."""
    return _step(snapshot) == _step(before)


def _step(snapshot: Snapshot) -> tuple[float | None, ...]:
    return (
        snapshot.requests_running,
        snapshot.requests_waiting,
        snapshot.kv_usage,
        snapshot.pending_prefills,
        snapshot.active_decodes,
        snapshot.first_tokens_total,
        snapshot.prefill_tokens_total,
        snapshot.prefix_queries_total,
    )


def view_of(
    snapshot: Snapshot,
    sampled_at_s: float,
    ready_since_s: float,
    own: OwnLoad,
    learned: Learned,
    before: NodeView | None = None,
) -> NodeView:
    """A node as decisions see it. What follows from its models is that of `before` if they are the same object."""
    lengths = adapters_unloaded = None
    if before is not None and snapshot.models is before.snapshot.models:
        lengths, adapters_unloaded = before.context_lengths, before.adapters_unloaded
    elif snapshot.models is not None:
        lengths = {served.name: served.context_length_tokens for served in snapshot.models}
        adapters_unloaded = frozenset(served.name for served in snapshot.models if not served.loaded)
    return renewed(
        NodeView(
            snapshot,
            sampled_at_s,
            lengths,
            ready_since_s=ready_since_s,
            adapters_unloaded=adapters_unloaded or frozenset(),
            hides=hides_of(snapshot),
        ),
        own,
        learned,
    )


def renewed(view: NodeView, own: OwnLoad, learned: Learned) -> NodeView:
    """The same node after our load or our knowledge of it changed."""
    return NodeView(
        view.snapshot,
        view.sampled_at_s,
        view.context_lengths,
        own,
        learned,
        view.ready_since_s,
        view.adapters_unloaded,
        in_flight(view.snapshot, own),
        own.prefill_tokens + own.prefills_of_others * learned.prefill_tokens_mean,
        view.hides,
    )
