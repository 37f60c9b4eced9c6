"""Our share of a node's load, as other routers are told of it."""

from msgspec import Struct

from extproc.core.nodeledger import NEVER, NodeLedger
from extproc.core.peershares import NodeShare


class Pending(Struct, frozen=True):
    """Which of the pending prefills of a node's sample are ours."""

    sampled: int | None = None
    """As many as it shows, of whomever. `None`: there is no sample."""
    claimed: int = 0
    """Ours, those that have begun since among them."""
    shown: int = 0
    """Those that have not begun since."""
    tokens_shown: int = 0
    """Σ uncached prompt tokens of the latter."""


def pending_of(node: NodeLedger) -> Pending:
    """What the node's ledger has matched with its sample."""
    sampled, sequences, tokens = node.sample.pending_prefills, 0, 0
    for request_id in node.matched:
        one = node.open[request_id].reservation
        sequences += one.sequences
        tokens += one.uncached_tokens
    claimed = max(0, sampled - node.others)
    shown = min(claimed, sequences)  # of the last one's answers some had begun
    return Pending(None if node.seen_until_s == NEVER else sampled, claimed, shown, tokens)


def share_of(node_id: str, node: NodeLedger, now_s: float) -> NodeShare:
    """What the node's ledger holds now."""
    pending = pending_of(node)
    sent = node.sent.unstarted
    if not node.tells:
        passed_s = max(0.0, now_s - node.sent.since_s)
        sent = min(sent, round(max(0.0, node.sent.tokens - node.sample.fleet_tokens_per_s * passed_s)))
    return NodeShare(
        node_id,
        None if node.seen_until_s == NEVER else node.seen_until_s,
        requests_held=node.held,
        sequences_open=node.sequences,
        sequences_unseen=node.unseen,
        requests_unseen=node.requests_unseen,
        sequences_finished=node.finished,
        kv_blocks_unseen=node.kv_blocks,
        prefills_claimed=pending.claimed,
        prefills_shown=pending.shown,
        tokens_shown=pending.tokens_shown,
        tokens_unseen=node.tokens - pending.tokens_shown,
        tokens_unstarted=node.sent.unstarted,
        sent_tokens=sent,
    )
