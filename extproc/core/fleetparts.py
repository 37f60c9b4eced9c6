"""What is known of the nodes, part by part, and what follows from all of it: each node as decisions see it."""

from collections.abc import Collection, Mapping

from extproc.core.answerlengths import AnswerLengths
from extproc.core.ejection import Ejections
from extproc.core.filters import freshness
from extproc.core.learned import LearnedRates
from extproc.core.ledger import Ledger
from extproc.core.peerload import NO_PEER_LOAD, with_peers
from extproc.core.peers import Peers
from extproc.core.promptcaches import PromptCaches
from extproc.core.settings import BalancerSettings
from extproc.core.sharing import Sharing
from extproc.core.snapshot import Freshness, Learned, NodeView
from extproc.core.table import SnapshotTable

RATES_KNOWN_S = 10.0
"""Seconds of prompts being computed, on all nodes together, from which learned rates tell how long one will wait."""


class FleetParts:
    """The objects, each of which has one concern."""

    def __init__(self, settings: BalancerSettings) -> None:
        self._settings = settings
        self.table = SnapshotTable(settings.nodes, settings.static_nodes)
        self.ledger = Ledger()
        self.learned = LearnedRates(settings.rates)
        self.answers = AnswerLengths(settings.rates.output_tokens)
        self.caches = PromptCaches(settings.prefix)
        self.ejections = Ejections(settings.ejection)
        self.peers = Peers(settings.exchange)
        self.sharing = Sharing(settings.exchange)

    def views(self) -> Collection[NodeView]:
        """Every member; do not hold it over another call."""
        return self.table.views()

    def freshness(self, view: NodeView, now_s: float) -> Freshness:
        """How far a member's snapshot can be trusted now."""
        return freshness(now_s - view.sampled_at_s, self._settings.nodes)

    @property
    def out_until_s(self) -> Mapping[str, float]:
        """Nodes that failed requests, and until when none goes there."""
        return self.ejections.out_until_s

    @property
    def rates_known(self) -> bool:
        """Whether the learned rates tell how long a prompt will wait."""
        return self.learned.busy_s >= RATES_KNOWN_S

    def renew(self, node_id: str) -> None:
        """Show a node as it is now, after something of it has changed; others shall hear of it.

        What they have there counts like what we have. Nothing is done for a node that is no member.
        """
        if self.table.get(node_id) is not None:
            self._show(node_id, self.learned.of(node_id))
            self.sharing.changed(node_id)

    def renew_peers(self, node_id: str) -> None:
        """The same after only what others have there has changed."""
        view = self.table.get(node_id)
        if view is not None:
            self._show(node_id, view.learned)

    def _show(self, node_id: str, learned: Learned) -> None:
        own = self.ledger.load(node_id)
        if self.peers:
            theirs = self.peers.load(node_id, self.ledger.seen_until_s(node_id))
            if theirs is not NO_PEER_LOAD:
                pending, fleet_tokens_per_s = self.ledger.pending(node_id), self.learned.prefill_tokens_per_s
                own = with_peers(own, pending, theirs, learned, fleet_tokens_per_s)
        self.table.renew(node_id, own, learned)

    def forget(self, node_id: str) -> None:
        """The node is no member any more, or has not been one."""
        for one in (self.ledger, self.learned, self.caches, self.ejections, self.peers, self.sharing):
            one.forget(node_id)
