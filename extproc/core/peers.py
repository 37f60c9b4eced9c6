"""What other routers have at the nodes, by their latest words, put together with what we have there.

A word stands beside the sample that its router knew. Where ours is younger, what that router had sent since its own may
be in ours: as much of it as the time between the samples is of the time from its sample to its word.

    its sample ····· our sample ····· its word
        │◄── in ours ──►│◄── unseen ──►│

So each sample heals, as it does for what we sent ourselves, and words need not come in step with samples. All words
stand on their own: one that is lost, late or repeated changes what the next one says in no way.
"""

from collections.abc import Iterator

from msgspec import Struct

from extproc.core.exchangesettings import ExchangeSettings
from extproc.core.peershares import NodeShare, PeerTold
from extproc.core.snapshot import ALWAYS, NEVER, Learned, OwnLoad


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
    tokens_unstarted: int = 0
    sent_tokens: int = 0


NO_PEER_LOAD = PeerLoad()


class PeerState(Struct, frozen=True):
    """One other router, as pages show it."""

    router: str
    age_s: float
    """Of its latest word."""
    requests: int
    """What it has open, at all nodes."""


class Peers:
    """The latest words of other routers, of each for each node."""

    def __init__(self, settings: ExchangeSettings) -> None:
        self._settings = settings
        self._peers: dict[str, _Peer] = {}
        self._loads: dict[str, tuple[float, PeerLoad]] = {}
        """Of nodes, beside the sample that it was asked for last: requests come more often than words."""

    def __len__(self) -> int:
        return len(self._peers)

    def told(self, told: PeerTold, now_s: float) -> set[str] | None:
        """Take a word; the nodes of which it says something new. `None`: it is too old, or there are too many peers."""
        if now_s - told.made_at_s > self._settings.silence_s:
            return None
        peer = self._peers.get(told.router)
        if peer is None:
            if len(self._peers) >= self._settings.peers_max:
                return None
            peer = self._peers[told.router] = _Peer()
        return self._changed(peer.take(told))

    def left(self, router: str) -> set[str]:
        """A router is gone; the nodes where it had something."""
        peer = self._peers.pop(router, None)
        return set() if peer is None else self._changed(set(peer.said))

    def expire(self, now_s: float) -> set[str]:
        """Forget routers that have been silent for too long; the nodes where they had something."""
        until_s = now_s - self._settings.silence_s
        silent = [router for router, peer in self._peers.items() if peer.heard_s < until_s]
        nodes: set[str] = set()
        for router in silent:
            nodes |= self.left(router)
        return nodes

    def forget(self, node_id: str) -> None:
        """The node is gone, or began anew."""
        self._loads.pop(node_id, None)
        for peer in self._peers.values():
            peer.said.pop(node_id, None)

    def load(self, node_id: str, seen_until_s: float) -> PeerLoad:
        """What they have at a node beside our sample, which shows what was dispatched until `seen_until_s`."""
        known = self._loads.get(node_id)
        if known is not None and known[0] == seen_until_s:
            return known[1]
        found = NO_PEER_LOAD
        for made_at_s, share in self._said_of(node_id):
            found = _plus(found, share, made_at_s, _unseen_part(share, made_at_s, seen_until_s))
        self._loads[node_id] = seen_until_s, found
        return found

    def states(self, now_s: float) -> list[PeerState]:
        """Every router that is heard."""
        return [
            PeerState(router, now_s - peer.heard_s, sum(said[2].requests_held for said in peer.said.values()))
            for router, peer in sorted(self._peers.items())
        ]

    def _changed(self, node_ids: set[str]) -> set[str]:
        for node_id in node_ids:
            self._loads.pop(node_id, None)
        return node_ids

    def _said_of(self, node_id: str) -> Iterator[tuple[float, NodeShare]]:
        for peer in self._peers.values():
            said = peer.said.get(node_id)
            if said is not None:
                yield said[1], said[2]


class _Peer:
    """One other router."""

    __slots__ = ("complete", "heard_s", "said")

    def __init__(self) -> None:
        self.heard_s = NEVER
        """When its latest word was made."""
        self.complete = -1
        """The number of its latest word about all nodes."""
        self.said: dict[str, tuple[int, float, NodeShare]] = {}
        """Of each node: the number of the word, when that was made, and what it said."""

    def take(self, told: PeerTold) -> set[str]:
        self.heard_s = max(self.heard_s, told.made_at_s)
        if told.sequence <= self.complete:
            return set()  # a later one said all
        changed = set()
        if told.word.everything:
            self.complete = told.sequence
            changed = {node_id for node_id, said in self.said.items() if said[0] < told.sequence}
            for node_id in changed:
                del self.said[node_id]
        for share in told.word.shares:
            known = self.said.get(share.node_id)
            if known is None or known[0] < told.sequence:
                self.said[share.node_id] = told.sequence, told.made_at_s, share
                changed.add(share.node_id)
        return changed


def with_peers(own: OwnLoad, ours: NodeShare, theirs: PeerLoad, pending: int, learned: Learned) -> OwnLoad:
    """What we and the others sent to a node, as if we had sent all of it.

    `ours` is our own share of the same moment, `pending` the sample's prefills that have not begun. Each router takes
    the newest of what it sent to be pending; where they claim more than there are, some of all of it has begun.
    """
    claimed = ours.prefills_claimed + theirs.prefills_claimed
    part = min(1.0, pending / claimed) if claimed else 1.0
    shown = (ours.tokens_shown + theirs.tokens_shown) * part
    others = max(0, pending - round(claimed))
    more_shown = shown - ours.tokens_shown + (others - own.prefills_of_others) * learned.prefill_tokens_mean
    work_tokens, work_since_s = own.work_tokens, own.work_since_s
    if work_since_s != ALWAYS:
        work_since_s = max(work_since_s, theirs.at_s)
        work_tokens = _left(own.work_tokens, own.work_since_s, work_since_s, learned.prefill_tokens_per_s)
    sent_tokens, sent_since_s = own.sent_tokens, own.sent_since_s
    if sent_since_s != ALWAYS:
        sent_since_s = max(sent_since_s, theirs.at_s)
        sent_tokens = _left(own.sent_tokens, own.sent_since_s, sent_since_s, learned.prefill_tokens_per_s)
    return OwnLoad(
        sequences_open=own.sequences_open + theirs.sequences_open,
        sequences_unseen=own.sequences_unseen + round(theirs.sequences_unseen),
        requests_unseen=own.requests_unseen + round(theirs.requests_unseen),
        sequences_finished=own.sequences_finished + round(theirs.sequences_finished),
        kv_blocks_unseen=own.kv_blocks_unseen + round(theirs.kv_blocks_unseen),
        prefill_tokens=round(shown + ours.tokens_unseen + theirs.tokens_unseen),
        prefills_of_others=others,
        work_tokens=max(0.0, work_tokens + more_shown + theirs.tokens_unseen),
        work_since_s=work_since_s,
        tokens_unstarted=own.tokens_unstarted + theirs.tokens_unstarted,
        sent_tokens=sent_tokens + theirs.sent_tokens,
        sent_since_s=sent_since_s,
        requests_held=own.requests_held + theirs.requests_held,
        adapters_sent=own.adapters_sent,
        adapters_unseen=own.adapters_unseen,
    )


def _unseen_part(share: NodeShare, made_at_s: float, seen_until_s: float) -> float:
    """Of what a router sent beside its sample, the part that ours does not show: 0..1."""
    if share.seen_until_s is None:
        return 1.0 if seen_until_s == NEVER else 0.0
    if share.seen_until_s >= seen_until_s:
        return 1.0
    if made_at_s <= seen_until_s:
        return 0.0
    return (made_at_s - seen_until_s) / (made_at_s - share.seen_until_s)


def _plus(sum_: PeerLoad, one: NodeShare, made_at_s: float, unseen: float) -> PeerLoad:
    begun = one.prefills_claimed - one.prefills_shown
    return PeerLoad(
        at_s=max(sum_.at_s, made_at_s),
        requests_held=sum_.requests_held + one.requests_held,
        sequences_open=sum_.sequences_open + one.sequences_open,
        sequences_unseen=sum_.sequences_unseen + unseen * one.sequences_unseen,
        requests_unseen=sum_.requests_unseen + unseen * one.requests_unseen,
        sequences_finished=sum_.sequences_finished + unseen * one.sequences_finished,
        kv_blocks_unseen=sum_.kv_blocks_unseen + unseen * one.kv_blocks_unseen,
        prefills_claimed=sum_.prefills_claimed
        + one.prefills_shown
        + unseen * begun
        + (1 - unseen) * one.sequences_unseen,
        tokens_shown=sum_.tokens_shown + one.tokens_shown + (1 - unseen) * one.tokens_unseen,
        tokens_unseen=sum_.tokens_unseen + unseen * one.tokens_unseen,
        tokens_unstarted=sum_.tokens_unstarted + one.tokens_unstarted,
        sent_tokens=sum_.sent_tokens + one.sent_tokens,
    )


def _left(tokens: float, since_s: float, now_s: float, tokens_per_s: float) -> float:
    """What is left of work that shrinks at a rate."""
    return tokens if since_s == NEVER else max(0.0, tokens - tokens_per_s * (now_s - since_s))
