"""Our share of a node's load, as other routers are told of it."""

from extproc.core.nodeledger import NEVER, NodeLedger
from extproc.core.peershares import NodeShare


def share_of(node_id: str, node: NodeLedger, now_s: float) -> NodeShare:
    """What the node's ledger holds now."""
    shown = [node.open[request_id].reservation for request_id in node.matched]
    tokens_shown = sum(one.uncached_tokens for one in shown)
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
        prefills_claimed=max(0, node.sample.pending_prefills - node.others),
        prefills_shown=sum(one.sequences for one in shown),
        tokens_shown=tokens_shown,
        tokens_unseen=node.tokens - tokens_shown,
        tokens_unstarted=node.sent.unstarted,
        sent_tokens=sent,
    )
