"""What a balancer hears from other routers of its fleet, and what they shall hear from it."""

from typing import assert_never

from extproc.core.balancerstate import BalancerState
from extproc.core.peerload import PeerLoad
from extproc.core.peers import PeerState
from extproc.core.peershares import PeerEvent, PeerLeft, PeerTold, PromptPlaced, Word
from extproc.core.snapshot import OwnLoad


class BalancerPeers(BalancerState):
    """The part of a balancer that is about others."""

    def peer(self, event: PeerEvent, now_s: float) -> bool:
        """Take what another router told; whether it was of use. Of nodes that are not known here nothing is taken."""
        fleet = self._fleet
        match event:
            case PeerTold():
                gone = fleet.peers.expire(now_s)
                changed = fleet.peers.told(event, now_s)
            case PeerLeft(router):
                gone, changed = set(), fleet.peers.left(router, now_s)
            case PromptPlaced(node_id, blocks, computed):
                view = fleet.table.get(node_id)
                if view is not None:
                    (fleet.caches.computed if computed else fleet.caches.sent)(view.snapshot, blocks, tell=False)
                return view is not None
            case _:
                assert_never(event)
        for node_id in gone if changed is None else changed | gone:
            fleet.renew_peers(node_id)
        if changed or gone:
            self._may_have_room()
        return changed is not None

    def word(self, now_s: float, *, everything: bool = False) -> Word | None:
        """What the others shall hear of our load now; ask every `sharing.LOOK_S`. It changes nothing that decides.

        `everything`: all of it, for somebody who knows nothing.
        """
        fleet = self._fleet
        return fleet.sharing.word(
            fleet.ledger.node_ids,
            lambda node_id: fleet.ledger.share(node_id, now_s),
            lambda node_id: fleet.learned.of(node_id).prefill_tokens_per_s,
            now_s,
            everything=everything,
        )

    def placed(self) -> list[PromptPlaced]:
        """Prompts that we sent since this was asked last, and that others shall know of; the latest of them."""
        return self._fleet.caches.take_placed()

    def peers(self, now_s: float) -> list[PeerState]:
        """Every router that is heard."""
        return self._fleet.peers.states(now_s)

    def own_load(self, node_id: str) -> OwnLoad:
        """What we sent to a node ourselves; a member's view has it together with what the others sent."""
        return self._fleet.ledger.load(node_id)

    def peer_load(self, node_id: str) -> PeerLoad:
        """What the others have there, beside our sample."""
        return self._fleet.peers.load(node_id, self._fleet.ledger.seen_until_s(node_id))

    def _may_have_room(self) -> None:
        if self._admission.queue:
            self.on_room()
