from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from extproc.core.ledger import Ledger, Reservation
from extproc.core.snapshot import NO_LOAD, OwnLoad


def reservation(request_id: str, node_id: str = "a", opened_s: float = 1.0, **changes: int) -> Reservation:
    return Reservation(request_id, node_id, changes.get("sequences", 1), changes.get("kv_blocks", 10), opened_s)


def test_a_reservation_is_unseen_until_a_later_sample() -> None:
    ledger = Ledger()
    ledger.open(reservation("r1", opened_s=1.0))
    ledger.open(reservation("r2", opened_s=2.0))
    assert ledger.load("a") == OwnLoad(2, 2, 20, 2)
    ledger.sampled("a", 1.5)
    assert ledger.load("a") == OwnLoad(2, 1, 10, 1)
    ledger.sampled("a", 2.0)
    assert ledger.load("a") == OwnLoad(2, 0, 0)


def test_closing_is_idempotent_and_leaves_nothing() -> None:
    ledger = Ledger()
    ledger.open(reservation("r1", sequences=4))
    assert ledger.close("r1") is not None
    assert ledger.close("r1") is None
    assert ledger.close("never opened") is None
    assert ledger.load("a") == NO_LOAD
    assert len(ledger) == 0


def test_a_request_weighs_its_sequences() -> None:
    ledger = Ledger()
    ledger.open(reservation("r1", sequences=4))
    assert ledger.load("a") == OwnLoad(4, 4, 10, 1)


class LedgerAgainstAList(RuleBasedStateMachine):
    """The ledger beside the plainest model of it: a list of what is open, and the latest sample of each node."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.open: list[Reservation] = []
        self.sampled_s = {"a": 0.0, "b": 0.0}
        self.now_s = 0.0
        self.count = 0

    @rule(node=st.sampled_from("ab"), sequences=st.integers(1, 8), blocks=st.integers(0, 50), wait=st.floats(0.1, 5))
    def opens(self, node: str, sequences: int, blocks: int, wait: float) -> None:
        self.now_s += wait
        self.count += 1
        one = Reservation(f"r{self.count}", node, sequences, blocks, self.now_s)
        self.ledger.open(one)
        self.open.append(one)

    @rule(number=st.integers(0, 30))
    def closes(self, number: int) -> None:
        closed = self.ledger.close(f"r{number}")
        assert (closed is not None) == any(one.request_id == f"r{number}" for one in self.open)
        self.open = [one for one in self.open if one.request_id != f"r{number}"]

    @rule(number=st.integers(0, 30), blocks=st.integers(0, 50))
    def resizes(self, number: int, blocks: int) -> None:
        found = self.ledger.get(f"r{number}")
        assert (found is not None) == any(one.request_id == f"r{number}" for one in self.open)
        if found is not None:
            self.ledger.resize(found.request_id, blocks)
            resized = replace(found, kv_blocks=blocks)
            self.open = [resized if one.request_id == found.request_id else one for one in self.open]
            assert self.ledger.get(found.request_id) == resized

    @rule(node=st.sampled_from("ab"), age=st.floats(0, 10))
    def samples(self, node: str, age: float) -> None:
        at_s = self.now_s - age
        self.ledger.sampled(node, at_s)
        self.sampled_s[node] = max(self.sampled_s[node], at_s)

    @invariant()
    def agrees(self) -> None:
        assert len(self.ledger) == len(self.open)
        for node, sampled_s in self.sampled_s.items():
            there = [one for one in self.open if one.node_id == node]
            unseen = [one for one in there if one.opened_s > sampled_s]
            assert self.ledger.load(node) == OwnLoad(
                sum(one.sequences for one in there),
                sum(one.sequences for one in unseen),
                sum(one.kv_blocks for one in unseen),
                len(unseen),
            )


TestLedgerAgainstAList = LedgerAgainstAList.TestCase
