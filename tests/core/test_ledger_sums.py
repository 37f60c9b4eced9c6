"""The ledger beside the plainest model of it: everything that ever happened, and the formula read off it anew."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from extproc.core.ledger import Ledger
from extproc.core.loads import prefill_tokens_ahead
from extproc.core.nodeledger import Reservation, Sample
from extproc.core.snapshot import ALWAYS, NO_LOAD, Learned, OwnLoad
from tests.core.fleet import view

NEVER = float("-inf")
FLEET_TOKENS_PER_S = 4.0
TICKS = st.integers(0, 5 * 1024)


def seconds(ticks: int) -> float:
    """Times of 1/1024 s, which floats add exactly: so the bounds of the formula are met as well."""
    return ticks / 1024


@dataclass
class Sent:
    request_id: str
    sent_s: float
    sequences: int
    kv_blocks: int
    tokens: int
    first_s: float | None = None
    left_s: float | None = None
    closed_s: float | None = None
    purged: bool = False
    restarted: bool = False


@dataclass
class Node:
    sample: Sample = field(default_factory=lambda: Sample(NEVER))
    sent: list[Sent] = field(default_factory=list)
    idle_since_s: float = NEVER
    over_until_s: float = NEVER
    """Sends that closed until then were over in a sample that has come already."""
    tells: bool = False
    sent_work: list[tuple[float | None, float]] = field(default_factory=list)
    """Prompt tokens that we sent, and when; without a time: a better count."""
    work: list[tuple[float | None, float]] = field(default_factory=list)
    """Prompt tokens that came to it, and when; without a time: a better count."""

    def __post_init__(self) -> None:
        self.begin_work()

    def is_before(self, one: Sent) -> bool:
        return one.sent_s < self.sample.taken_at_s - self.sample.delay_s

    def ended(self) -> list[Sent]:
        """In the sample, and over."""
        told_s = max(self.sample.taken_at_s + self.sample.delay_s, self.over_until_s)
        return [one for one in self.counted() if self.is_before(one) and (one.closed_s or NEVER) > told_s]

    def counted(self) -> list[Sent]:
        return [one for one in self.sent if not one.restarted and not one.purged]

    def unseen(self) -> list[Sent]:
        return [one for one in self.counted() if is_open(one) and not self.is_before(one)]

    def matched(self) -> tuple[list[Sent], int]:
        """Ours of the sample's pending ones, and how many are others'."""
        matched, unmatched = [], self.sample.pending_prefills
        before = [one for one in self.counted() if self.is_before(one)]
        for one in sorted(before, key=lambda one: one.sent_s, reverse=True):
            unstarted = one.first_s is None or one.first_s > self.sample.taken_at_s + self.sample.delay_s
            if (is_open(one) or one in self.ended()) and unstarted and unmatched > 0:
                unmatched -= one.sequences
                if is_open(one) and one.first_s is None:
                    matched.append(one)
        return matched, max(0, unmatched)

    def pending(self) -> list[Sent]:
        return self.matched()[0] + [one for one in self.unseen() if one.first_s is None]

    def begin_work(self) -> None:
        """The sample's, and what was sent since: also what has begun, for the time that it took passed, too."""
        matched, others = self.matched()
        self.work = [
            (self.sample.taken_at_s, sum(one.tokens for one in matched) + others * self.sample.prefill_tokens_mean),
            *((one.sent_s, one.tokens) for one in sorted(self.unseen(), key=lambda one: one.sent_s)),
        ]

    def work_left(self) -> tuple[float, float]:
        """After all that came to it; and when that was."""
        left, since_s = 0.0, NEVER
        for at_s, tokens in self.work:
            if at_s is not None and at_s > since_s:
                done = 0.0 if since_s == NEVER else self.sample.prefill_tokens_per_s * (at_s - since_s)
                left, since_s = max(0.0, left - done), at_s
            left += tokens
        return left, since_s

    def load(self) -> OwnLoad:
        """The formula of the ledger's docstring, word by word."""
        is_open_now, unseen, ended = [one for one in self.counted() if is_open(one)], self.unseen(), self.ended()
        work, since_s = self.work_left()
        return OwnLoad(
            sequences_open=sum(one.sequences for one in is_open_now),
            sequences_unseen=sum(one.sequences for one in unseen),
            requests_unseen=len(unseen),
            requests_held=sum(one.left_s is None for one in is_open_now),
            sequences_finished=sum(one.sequences for one in ended),
            kv_blocks_unseen=sum(one.kv_blocks for one in unseen) - sum(one.kv_blocks for one in ended),
            prefill_tokens=sum(one.tokens for one in self.pending()),
            prefills_of_others=self.matched()[1],
            work_tokens=work,
            work_since_s=ALWAYS if self.tells else since_s,
            tokens_unstarted=sum(one.tokens for one in is_open_now if one.first_s is None),
            sent_tokens=self.sent_left()[0],
            sent_since_s=ALWAYS if self.tells else self.sent_left()[1],
        )

    def sent_left(self) -> tuple[float, float]:
        """What we sent, whatever samples say, less what the rate of then computed between; and when that was."""
        left, since_s = 0.0, NEVER
        for at_s, tokens in self.sent_work:
            if at_s is not None and at_s > since_s:
                left = 0.0 if since_s == NEVER else max(0.0, left - FLEET_TOKENS_PER_S * (at_s - since_s))
                since_s = at_s
            left = max(0.0, left + tokens)
        return left, since_s


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
        sample = Sample(taken_s, delay_s, pending, told.endswith("idle"), *work, told.startswith("unchanged"), FLEET_TOKENS_PER_S)
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
            seen = view(name, own, learned=Learned(prefill_tokens_per_s=4.0, prefill_tokens_mean=8.0))
            ahead = prefill_tokens_ahead(seen, self.now_s)
            assert 0 <= ahead <= seen.prefill_tokens_pending
            assert ahead == seen.prefill_tokens_pending or not node.tells
        for request_id, (_, one) in self.by_id.items():
            assert (self.ledger.get(request_id) is not None) == is_open(one)

    def teardown(self) -> None:
        for request_id in self.by_id:
            self.ledger.close(request_id, self.now_s)
        assert len(self.ledger) == 0
        for name in self.nodes:
            self.ledger.sampled(name, Sample(self.now_s))
            left = self.ledger.load(name)
            assert counts_of(left) in (counts_of(NO_LOAD), left)
            self.ledger.forget(name)
        assert not self.ledger._nodes
        assert not self.ledger._open


def is_open(one: Sent) -> bool:
    return one.closed_s is None and not one.purged


TestLedgerAgainstHistory = LedgerAgainstHistory.TestCase
