"""The ledger beside the plainest model of it: everything that ever happened, and the formula read off it anew."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from extproc.core.ledger import Ledger
from extproc.core.loads import own_tokens_ahead, prefill_tokens_ahead
from extproc.core.nodeledger import Reservation, Sample
from extproc.core.snapshot import NO_LOAD, Learned, OwnLoad
from tests.core.fleet import counts_of, view
from tests.core.ledgermodel import FLEET_TOKENS_PER_S, NEVER, Node, Sent, is_open

TICKS = st.integers(0, 5 * 1024)


def seconds(ticks: int) -> float:
    """Times of 1/1024 s, which floats add exactly: so the bounds of the formula are met as well."""
    return ticks / 1024


class LedgerAgainstHistory(RuleBasedStateMachine):
    """Any calls in any order: the sums, which each call only brings up to date, are the formula's."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.nodes = {"a": Node(), "b": Node()}
        self.by_id: dict[str, tuple[str, Sent]] = {}
        self.ticks = 100 * 1024

    @initialize()
    def knows_both(self) -> None:
        for name, node in self.nodes.items():
            node.sample = Sample(seconds(self.ticks), prefill_tokens_per_s=4.0, fleet_tokens_per_s=FLEET_TOKENS_PER_S)
            node.begin_work()
            self.ledger.sampled(name, node.sample)

    @property
    def now_s(self) -> float:
        return seconds(self.ticks)

    @rule(ticks=TICKS)
    def waits(self, ticks: int) -> None:
        self.ticks += ticks

    @rule(name=st.sampled_from("ab"), wait=st.integers(1, 500), amount=st.tuples(*[st.integers(1, 9)] * 3))
    def opens(self, name: str, wait: int, amount: tuple[int, int, int]) -> None:
        self.ticks += wait
        sequences, blocks, tokens = amount
        one = Sent(f"r{len(self.by_id)}", self.now_s, sequences, blocks, tokens)
        self.ledger.open(Reservation(one.request_id, name, sequences, blocks, self.now_s, tokens))
        self.by_id[one.request_id] = name, one
        self.nodes[name].sent.append(one)
        self.nodes[name].work.append((self.now_s, tokens))
        self.nodes[name].sent_work.append((self.now_s, tokens))

    @rule(number=st.integers(0, 30))
    def begins(self, number: int) -> None:
        name, one = self.by_id.get(f"r{number}", ("", None))
        news = self.ledger.first_token(f"r{number}", self.now_s)
        assert (news is not None) == (one is not None and is_open(one) and one.first_s is None)
        if one is not None and is_open(one) and one.first_s is None:
            one.first_s = self.now_s
            self.nodes[name].tells |= not one.restarted

    @rule(number=st.integers(0, 30))
    def closes(self, number: int) -> None:
        name, one = self.by_id.get(f"r{number}", ("", None))
        closed = self.ledger.close(f"r{number}", self.now_s)
        assert (closed is not None) == (one is not None and is_open(one))
        if one is not None and is_open(one):
            one.closed_s = self.now_s
            self.nodes[name].tells &= one.restarted or one.first_s is not None

    @rule(number=st.integers(0, 30))
    def leaves(self, number: int) -> None:
        _, one = self.by_id.get(f"r{number}", ("", None))
        self.ledger.leave(f"r{number}", self.now_s)
        if one is not None and is_open(one) and one.left_s is None:
            one.left_s = self.now_s
            one.purged = one.restarted

    @rule(number=st.integers(0, 30), blocks=st.integers(0, 50), tokens=st.integers(1, 50))
    def resizes(self, number: int, blocks: int, tokens: int) -> None:
        if self.ledger.get(f"r{number}") is not None:
            self.ledger.resize(f"r{number}", blocks, tokens)
            name, one = self.by_id[f"r{number}"]
            if one in self.nodes[name].pending():
                self.nodes[name].work.append((None, tokens - one.tokens))
            if one.first_s is None and not one.restarted:
                self.nodes[name].sent_work.append((None, tokens - one.tokens))
            one.kv_blocks, one.tokens = blocks, tokens

    @rule(number=st.integers(0, 30))
    def moves(self, number: int) -> None:
        """It is at the other node, and has been from the beginning."""
        before = self.ledger.get(f"r{number}")
        if before is not None:
            name, one = self.by_id[f"r{number}"]
            other = "b" if name == "a" else "a"
            self.ledger.move(replace(before, node_id=other))
            self.nodes[name].sent.remove(one)
            if not one.restarted:
                self.nodes[name].begin_work()
            one.restarted = False
            self.nodes[other].sent.append(one)
            self.nodes[other].begin_work()
            self.nodes[other].sent_work.append((one.sent_s, one.tokens))
            self.by_id[f"r{number}"] = other, one

    @rule(
        name=st.sampled_from("ab"),
        age=TICKS,
        delay=st.integers(0, 300),
        pending=st.integers(0, 12),
        told=st.sampled_from(["busy", "idle", "unchanged", "unchanged and idle"]),
        work=st.tuples(st.sampled_from([1.0, 4.0, 1024.0]), st.sampled_from([0.0, 2.5, 8.0])),
    )
    def samples(self, name: str, age: int, delay: int, pending: int, told: str, work: tuple[float, float]) -> None:
        """Early and late ones, with ages that do not rise; the way is never longer than the time since."""
        taken_s, delay_s = seconds(self.ticks - age - delay), seconds(delay)
        idle, unchanged = told.endswith("idle"), told.startswith("unchanged")
        sample = Sample(taken_s, delay_s, pending, idle, *work, unchanged, FLEET_TOKENS_PER_S)
        self.ledger.sampled(name, sample)
        self.ticks += 1  # what comes after a sample is later than it
        node, anew = self.nodes[name], not sample.unchanged
        if sample.idle:
            for one in node.sent:
                if is_open(one) and one.left_s is not None and one.sent_s < node.idle_since_s:
                    one.purged = anew = True
        node.idle_since_s = taken_s - delay_s if sample.idle else NEVER
        if not sample.unchanged:
            node.sample = sample
            node.over_until_s = max(node.over_until_s, taken_s + delay_s)
        else:
            for one in node.sent:
                seen = one.sent_s < node.sample.taken_at_s - node.sample.delay_s
                if one.closed_s is not None and one.closed_s <= taken_s + delay_s and not seen:
                    one.restarted = True  # over in all that may come, and never in the sample that counts
        if anew:
            node.begin_work()

    @rule(name=st.sampled_from("ab"))
    def restarts(self, name: str) -> None:
        self.ledger.restarted(name)
        for one in self.nodes[name].sent:
            one.purged = one.purged or (is_open(one) and one.left_s is not None)
            one.restarted = True
        sent = self.nodes[name].sent
        self.nodes[name] = Node(Sample(self.now_s, fleet_tokens_per_s=FLEET_TOKENS_PER_S), sent)
        self.ledger.sampled(name, self.nodes[name].sample)

    @rule(ago=st.integers(0, 20 * 1024))
    def purges(self, ago: int) -> None:
        until_s = seconds(self.ticks - ago)
        over = [
            (name, one)
            for name, one in self.by_id.values()
            if is_open(one) and one.left_s is not None and one.left_s <= until_s
        ]
        assert self.ledger.purge(until_s) == {name for name, one in over}
        for _, one in over:
            one.purged = True
        for name in {name for name, _ in over}:
            self.nodes[name].begin_work()

    @invariant()
    def agrees(self) -> None:
        assert len(self.ledger) == sum(is_open(one) for _, one in self.by_id.values())
        for name, node in self.nodes.items():
            own = self.ledger.load(name)
            assert own == node.load()
            self.tells_the_same(name, own)
            seen = view(name, own, learned=Learned(prefill_tokens_per_s=4.0, prefill_tokens_mean=8.0))
            ahead = prefill_tokens_ahead(seen, self.now_s)
            assert 0 <= ahead <= seen.prefill_tokens_pending
            assert ahead == seen.prefill_tokens_pending or not node.tells
        for request_id, (_, one) in self.by_id.items():
            assert (self.ledger.get(request_id) is not None) == is_open(one)

    def tells_the_same(self, name: str, own: OwnLoad) -> None:
        """What other routers would hear."""
        share, pending, node = self.ledger.share(name, self.now_s), self.ledger.pending(name), self.nodes[name]
        for field in (
            *("requests_held", "sequences_open", "sequences_unseen", "requests_unseen", "sequences_finished"),
            *("kv_blocks_unseen", "tokens_unstarted"),
        ):
            assert getattr(share, field) == getattr(own, field)
        assert share.seen_until_s == node.sample.taken_at_s - node.sample.delay_s
        assert share.tokens_shown + share.tokens_unseen == own.prefill_tokens
        assert share.tokens_unseen == sum(one.tokens for one in node.unseen() if one.first_s is None)
        assert pending.sampled == node.sample.pending_prefills
        assert share.prefills_claimed == pending.claimed == pending.sampled - own.prefills_of_others
        matched = node.matched()[0]
        assert share.prefills_shown == min(share.prefills_claimed, sum(one.sequences for one in matched))
        assert share.tokens_shown == pending.tokens_shown == sum(one.tokens for one in matched)
        left = view(name, own)
        assert share.sent_tokens == round(own_tokens_ahead(left, FLEET_TOKENS_PER_S, self.now_s))

    def teardown(self) -> None:
        for request_id in self.by_id:
            self.ledger.close(request_id, self.now_s)
        assert len(self.ledger) == 0
        for name in self.nodes:
            self.ledger.sampled(name, Sample(self.now_s))
            left = self.ledger.load(name)
            assert counts_of(left) == counts_of(NO_LOAD)
            self.ledger.forget(name)
        assert not self.ledger._nodes
        assert not self.ledger._open


TestLedgerAgainstHistory = LedgerAgainstHistory.TestCase
