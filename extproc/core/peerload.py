"""What other routers have at a node, by their words, put together with what we have there.

A word stands beside the sample that its router knew. Where ours is younger, what that router had sent since its own may
be in ours: as much of it as the time between the samples is of the time from its sample to its word.

    its sample ····· our sample ····· its word
        │◄── in ours ──►│◄── unseen ──►│

So each sample heals, as it does for what we sent ourselves, and words need not come in step with samples.
"""

from collections.abc import Iterable

from msgspec import Struct

from extproc.core.nodeshare import Pending
from extproc.core.peershares import NodeShare
from extproc.core.snapshot import ALWAYS, NEVER, Learned, OwnLoad

SENT_LATELY_S = 2.0
"""What a router has at a node and its sample does not show was sent no longer ago: there are samples that never change,
of nodes that hide all, and routers that get none."""


class Said(Struct, frozen=True):
    """What another router said last of a node."""

    sequence: int
    """Of the word."""
    made_at_s: float
    share: NodeShare


class PeerLoad(Struct, frozen=True):
    """What all other routers together have at a node, beside our sample; see `NodeShare`."""

    at_s: float = NEVER
    """When the latest of their words was made."""
    requests_held: int = 0
    sequences_open: int = 0
    sequences_unseen: float = 0.0
    requests_unseen: float = 0.0
    sequences_finished: float = 0.0
    kv_blocks_unseen: float = 0.0
    prefills_claimed: float = 0.0
    tokens_shown: float = 0.0
    tokens_unseen: float = 0.0
    sent_tokens: int = 0


NO_PEER_LOAD = PeerLoad()


def with_peers(own: OwnLoad, ours: Pending, theirs: PeerLoad, learned: Learned, fleet_tokens_per_s: float) -> OwnLoad:
    """What we and the others sent to a node, as if we had sent all of it.

    `own` and `ours` are of the same moment. Each router takes the newest of what it sent to be pending; where they
    claim more than the sample shows, some of all of it has begun. On what we sent ourselves (`sent_tokens`) no sample
    bears, nor any rate of the node's own: so a node gains nothing by what it hides.
    """
    shown, others = ours.tokens_shown + theirs.tokens_shown, 0
    if ours.sampled is not None:
        claimed = ours.claimed + theirs.prefills_claimed
        if claimed > ours.sampled:
            shown *= ours.sampled / claimed
        others = max(0, ours.sampled - round(claimed))
    more_shown = shown - ours.tokens_shown + (others - own.prefills_of_others) * learned.prefill_tokens_mean
    work_tokens, work_since_s = own.work_tokens, own.work_since_s
    if work_since_s != ALWAYS:
        work_since_s = max(work_since_s, theirs.at_s)
        work_tokens = _left(own.work_tokens, own.work_since_s, work_since_s, learned.prefill_tokens_per_s)
    sent_tokens, sent_since_s = own.sent_tokens, own.sent_since_s
    if sent_since_s != ALWAYS:
        sent_since_s = max(sent_since_s, theirs.at_s)
        sent_tokens = _left(own.sent_tokens, own.sent_since_s, sent_since_s, fleet_tokens_per_s)
    return OwnLoad(
        sequences_open=own.sequences_open + theirs.sequences_open,
        sequences_unseen=own.sequences_unseen + round(theirs.sequences_unseen),
        requests_unseen=own.requests_unseen + round(theirs.requests_unseen),
        sequences_finished=own.sequences_finished + round(theirs.sequences_finished),
        kv_blocks_unseen=own.kv_blocks_unseen + round(theirs.kv_blocks_unseen),
        prefill_tokens=round(own.prefill_tokens - ours.tokens_shown + shown + theirs.tokens_unseen),
        prefills_of_others=others,
        work_tokens=max(0.0, work_tokens + more_shown + theirs.tokens_unseen),
        work_since_s=work_since_s,
        tokens_unstarted=own.tokens_unstarted + theirs.sent_tokens,
        sent_tokens=sent_tokens + theirs.sent_tokens,
        sent_since_s=sent_since_s,
        requests_held=own.requests_held + theirs.requests_held,
        adapters_sent=own.adapters_sent,
        adapters_unseen=own.adapters_unseen,
    )


def unseen_part(share_seen_until_s: float | None, made_at_s: float, seen_until_s: float) -> float:
    """Of what a router sent beside its sample, the part that ours does not show: 0..1."""
    begun_s = made_at_s - SENT_LATELY_S
    if share_seen_until_s is not None and share_seen_until_s > begun_s:
        begun_s = share_seen_until_s
    if begun_s >= seen_until_s:
        return 1.0
    if made_at_s <= seen_until_s:
        return 0.0
    return (made_at_s - seen_until_s) / (made_at_s - begun_s)


def sum_of(said: Iterable[Said], seen_until_s: float) -> PeerLoad:
    """All that was said of one node, beside our sample, which shows what was dispatched until then."""
    at_s = NEVER
    held = open_ = sent = 0
    unseen = requests = finished = blocks = claimed = tokens_shown = tokens_unseen = 0.0
    for one in said:
        share, made_at_s = one.share, one.made_at_s
        at_s = max(at_s, made_at_s)
        held += share.requests_held
        open_ += share.sequences_open
        sent += share.sent_tokens
        part = unseen_part(share.seen_until_s, made_at_s, seen_until_s)
        if part == 1:
            claimed += share.prefills_claimed
            tokens_shown += share.tokens_shown
            unseen += share.sequences_unseen
            requests += share.requests_unseen
            finished += share.sequences_finished
            blocks += share.kv_blocks_unseen
            tokens_unseen += share.tokens_unseen
            continue
        # The rest our sample shows: as pending what has not begun.
        rest, begun = 1 - part, max(0, share.prefills_claimed - share.prefills_shown)
        claimed += share.prefills_shown + part * begun + rest * share.sequences_unseen
        tokens_shown += share.tokens_shown + rest * share.tokens_unseen
        unseen += part * share.sequences_unseen
        requests += part * share.requests_unseen
        finished += part * share.sequences_finished
        blocks += part * share.kv_blocks_unseen
        tokens_unseen += part * share.tokens_unseen
    return PeerLoad(at_s, held, open_, unseen, requests, finished, blocks, claimed, tokens_shown, tokens_unseen, sent)


def _left(tokens: float, since_s: float, now_s: float, tokens_per_s: float) -> float:
    """What is left of work that shrinks at a rate."""
    return tokens if since_s == NEVER else max(0.0, tokens - tokens_per_s * (now_s - since_s))
