"""The latest words of other routers.

All words stand on their own: one that is lost, late or repeated changes what the next one says in no way. Whatever a
word says, it counts for `silence_s` at most.
"""

from msgspec import Struct

from extproc.core.exchangesettings import ExchangeSettings
from extproc.core.peerload import NO_PEER_LOAD, PeerLoad, Said, sum_of
from extproc.core.peershares import PeerTold
from extproc.core.sharing import NODES_TOLD_MAX
from extproc.core.snapshot import NEVER


class PeerState(Struct, frozen=True):
    """One other router, as pages show it."""

    router: str
    age_s: float
    """Of its latest word."""
    requests: int
    """What it has open, at all nodes."""


class Peers:
    """The latest words of other routers, of each for each node. Nodes need not be members here yet."""

    def __init__(self, settings: ExchangeSettings) -> None:
        self._settings = settings
        self._peers: dict[str, _Peer] = {}
        self._left: dict[str, float] = {}
        """Routers that said that they ended, and when: their last words may come later."""
        self._loads: dict[str, tuple[float, PeerLoad]] = {}
        """Of nodes, beside the sample that it was asked for last: requests come more often than words."""

    def __len__(self) -> int:
        return len(self._peers)

    def told(self, told: PeerTold, now_s: float) -> set[str] | None:
        """Take a word; the nodes of which it says something new.

        `None`: it is too old, its router has left, or there are too many others.
        """
        if now_s - told.made_at_s > self._settings.silence_s or told.router in self._left:
            return None
        peer = self._peers.get(told.router)
        if peer is None:
            if len(self._peers) >= self._settings.peers_max:
                return None
            peer = _Peer()
            # By their names, so that no sum rests on who was heard first.
            self._peers = dict(sorted([*self._peers.items(), (told.router, peer)]))
        made_at_s = min(told.made_at_s, now_s)
        return self._changed(peer.take(told, made_at_s, made_at_s - self._settings.silence_s))

    def left(self, router: str, now_s: float) -> set[str]:
        """A router is gone, and said so; the nodes where it had something."""
        if router not in self._peers:
            return set()
        self._left[router] = now_s
        if len(self._left) > self._settings.peers_max:
            del self._left[next(iter(self._left))]
        return self._forget_peer(router)

    def expire(self, now_s: float) -> set[str]:
        """Forget routers that have been silent for too long; the nodes where they had something."""
        until_s = now_s - self._settings.silence_s
        if self._left:
            self._left = {router: left_s for router, left_s in self._left.items() if left_s >= until_s}
        nodes: set[str] = set()
        for router in [router for router, peer in self._peers.items() if peer.heard_s < until_s]:
            nodes |= self._forget_peer(router)
        return nodes

    def forget(self, node_id: str) -> None:
        """The node is gone, or began anew."""
        self._loads.pop(node_id, None)
        for peer in self._peers.values():
            peer.said.pop(node_id, None)

    def load(self, node_id: str, seen_until_s: float) -> PeerLoad:
        """What they have at a node beside our sample, which shows what was dispatched until `seen_until_s`.

        `NO_PEER_LOAD` itself where no word is about it.
        """
        known = self._loads.get(node_id)
        if known is not None and known[0] == seen_until_s:
            return known[1]
        said = [one for peer in self._peers.values() if (one := peer.said.get(node_id)) is not None]
        if not said:
            return NO_PEER_LOAD
        found = sum_of(said, seen_until_s)
        self._loads[node_id] = seen_until_s, found
        return found

    def states(self, now_s: float) -> list[PeerState]:
        """Every router that is heard."""
        return [
            PeerState(router, now_s - peer.heard_s, sum(said.share.requests_held for said in peer.said.values()))
            for router, peer in self._peers.items()
        ]

    def _forget_peer(self, router: str) -> set[str]:
        return self._changed(set(self._peers.pop(router).said))

    def _changed(self, node_ids: set[str]) -> set[str]:
        for node_id in node_ids:
            self._loads.pop(node_id, None)
        return node_ids


class _Peer:
    """One other router."""

    __slots__ = ("complete", "heard_s", "said")

    def __init__(self) -> None:
        self.heard_s = NEVER
        """When the latest word that was taken was made."""
        self.complete = -1
        """The number of its latest word about all nodes."""
        self.said: dict[str, Said] = {}
        """What it said last of each node, of `NODES_TOLD_MAX` at most."""

    def take(self, told: PeerTold, made_at_s: float, counts_since_s: float) -> set[str]:
        """The nodes of which it says something new."""
        sequence, known = told.sequence, self.said
        if sequence <= self.complete:
            return set()  # a later one said all, so this is no sign of life either
        self.heard_s = max(self.heard_s, made_at_s)
        changed = set()
        if told.word.everything:
            self.complete = sequence
            # What a later word said stays, unless that was made long ago: then its number is not to be believed.
            changed = {
                node_id
                for node_id, said in known.items()
                if said.sequence < sequence or said.made_at_s < counts_since_s
            }
            for node_id in changed:
                del known[node_id]
        for share in told.word.shares:
            node_id = share.node_id
            before = known.get(node_id)
            if before.sequence < sequence if before is not None else len(known) < NODES_TOLD_MAX:
                known[node_id] = Said(sequence, made_at_s, share)
                changed.add(node_id)
        return changed
