"""The plainest model of one node's part of the ledger: all that ever happened, and the formula read off it anew."""

from dataclasses import dataclass, field

from extproc.core.nodeledger import Sample
from extproc.core.snapshot import ALWAYS, OwnLoad

NEVER = float("-inf")
FLEET_TOKENS_PER_S = 4.0


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
        is_open_now, unseen = [one for one in self.counted() if is_open(one)], self.unseen()
        ended = [] if self.sample.idle else self.ended()
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


def is_open(one: Sent) -> bool:
    return one.closed_s is None and not one.purged
