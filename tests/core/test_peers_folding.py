"""Routers that tell each other everything at once know what one router would know that had sent all of it.

As long as first tokens are told as they come, and samples are true; with prompts of others, which are nobody's.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.core.exchangesettings import ExchangeSettings
from extproc.core.ledger import Ledger
from extproc.core.nodeledger import Reservation, Sample
from extproc.core.peerload import NO_PEER_LOAD, with_peers
from extproc.core.peers import Peers
from extproc.core.peershares import PeerTold, Word
from extproc.core.snapshot import Learned, OwnLoad
from tests.core.fleet import NOW_S, view

NAMES = "pqr"
LEARNED = Learned()


class Router:
    """One of several: its own books, and what it heard."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ledger = Ledger()
        self.peers = Peers(ExchangeSettings())
        self.told = 0

    def tell(self, others: list["Router"], now_s: float) -> None:
        """All of it, to all."""
        self.told += 1
        word = Word(everything=True, shares=(self.ledger.share("a", now_s),))
        for other in others:
            other.peers.told(PeerTold(self.name, self.told, now_s, word), now_s)

    def load(self) -> OwnLoad:
        """What all have."""
        own, theirs = self.ledger.load("a"), self.peers.load("a", self.ledger.seen_until_s("a"))
        if theirs is NO_PEER_LOAD:
            return own
        return with_peers(own, self.ledger.pending("a"), theirs, LEARNED, 8000.0)


class ManyAsOne(RuleBasedStateMachine):
    """Whatever happens, and whoever sent it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = NOW_S
        self.one = Ledger()
        self.routers = {name: Router(name) for name in NAMES}
        self.open: dict[str, str] = {}
        """Request ids, and whose they are."""
        self.unstarted: dict[str, int] = {}
        """Of these, the answers of those without a first token."""
        self.of_others = 0
        self.counts = (0, 0)
        self.sent = 0

    def tell(self) -> None:
        for router in self.routers.values():
            router.tell([other for other in self.routers.values() if other is not router], self.now_s)

    @rule(name=st.sampled_from(NAMES), sequences=st.integers(1, 3), tokens=st.integers(1, 900))
    def sends(self, name: str, sequences: int, tokens: int) -> None:
        self.sent += 1
        request_id = f"r{self.sent}"
        for ledger in (self.one, self.routers[name].ledger):
            ledger.open(Reservation(request_id, "a", sequences, tokens // 16, self.now_s, tokens))
        self.open[request_id] = name
        self.unstarted[request_id] = sequences
        self.tell()

    @precondition(lambda self: self.unstarted)
    @rule(data=st.data())
    def begins(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.unstarted)))
        for ledger in (self.one, self.routers[self.open[request_id]].ledger):
            ledger.first_token(request_id, self.now_s)
        del self.unstarted[request_id]
        self.tell()

    @precondition(lambda self: len(self.open) > len(self.unstarted))
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.open.keys() - self.unstarted.keys())))
        for ledger in (self.one, self.routers[self.open.pop(request_id)].ledger):
            ledger.close(request_id, self.now_s)
        self.tell()

    @rule(passed_s=st.sampled_from([0.125, 0.5]))
    def waits(self, passed_s: float) -> None:
        self.now_s += passed_s

    @rule(of_others=st.integers(0, 3))
    def is_sampled(self, of_others: int) -> None:
        """Now, and all hear of it at once."""
        self.now_s += 0.125
        pending = sum(self.unstarted.values()) + of_others
        sample = Sample(self.now_s, 0.0, pending, prefill_tokens_mean=LEARNED.prefill_tokens_mean)
        for ledger in (self.one, *(router.ledger for router in self.routers.values())):
            ledger.sampled("a", sample)
        sequences = self.one.load("a").sequences_open
        self.of_others = of_others
        self.counts = sequences, pending
        self.now_s += 0.125
        self.tell()

    @invariant()
    def each_knows_what_one_would_know(self) -> None:
        one = self.one.load("a")
        known = view(own=one, learned=LEARNED, requests_running=self.counts[0] + self.of_others)
        for router in self.routers.values():
            found = router.load()
            for name in (
                *("sequences_open", "sequences_unseen", "requests_unseen", "requests_held", "sequences_finished"),
                *("kv_blocks_unseen", "prefill_tokens", "prefills_of_others"),
            ):
                assert getattr(found, name) == getattr(one, name), (router.name, name)
            seen = view(own=found, learned=LEARNED, requests_running=self.counts[0] + self.of_others)
            assert seen.in_flight == known.in_flight == len_of(self)
            assert seen.prefill_tokens_pending == known.prefill_tokens_pending


def len_of(many: ManyAsOne) -> int:
    """Answers at the engine: what the routers sent, and what others had there when it was sampled."""
    return many.one.load("a").sequences_open + many.of_others


TestManyAsOne = ManyAsOne.TestCase
