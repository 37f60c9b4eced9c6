"""One node's part of the ledger: its requests, and the sums over them beside its latest sample. See `ledger.py`."""

from collections import deque
from collections.abc import Iterator
from heapq import merge

from msgspec import Struct

from extproc.core.sentwork import SentWork

NEVER = float("-inf")
ADAPTER_LOADS_S = 60.0
"""So long an adapter is taken to be on its way: agents look at the list of models twice a minute. One that is not there
then was refused, and other nodes have a turn."""
CLOSED_KEPT_MAX = 10_000
"""Closed requests of a node that a sample on its way may still show; the oldest go first."""


class Reservation(Struct, frozen=True):
    """One request at one node, from the moment of choosing to its end."""

    request_id: str
    node_id: str
    sequences: int
    """Answers asked for (`n`): engines count each as a request."""
    kv_blocks: int
    """KV blocks that it will take; 0 where the node's block size is unknown."""
    opened_s: float
    uncached_tokens: int = 0
    """Prompt tokens that the node has to compute."""
    cached_tokens: int = 0
    """Prompt tokens that we expect in the node's cache."""
    told_tokens: int = 0
    """The same, where the node's blocks say so."""
    prompt_tokens: int = 0
    """All prompt tokens, as the two before were told by."""
    prompt_blocks: tuple[int, ...] = ()
    """What the node will have in its cache when it has computed the prompt."""
    adapter: str | None = None
    """The model, if it is an adapter that the node has to load for it."""


class Sample(Struct, frozen=True):
    """What a snapshot says of the requests at a node."""

    taken_at_s: float
    """On the router's clock: t."""
    delay_s: float = 0.0
    """One way between router and node: δ."""
    pending_prefills: int = 0
    idle: bool = False
    """Nothing runs or waits."""
    prefill_tokens_per_s: float = 8000.0
    """The node's learned rate."""
    prefill_tokens_mean: float = 1000.0
    """Of a request that is not ours."""
    unchanged: bool = False
    """It says what the sample before said: engines tell of their last finished step, and none has finished since."""
    fleet_tokens_per_s: float = 8000.0
    """The fleet's learned rate."""


class Entry:
    """A request that was sent, and what was told of it since."""

    __slots__ = ("closed_s", "counted", "first_token_s", "left_s", "reservation")

    def __init__(self, reservation: Reservation) -> None:
        self.reservation = reservation
        self.first_token_s: float | None = None
        self.left_s: float | None = None
        """When its stream was left before its end; an open stream is never purged."""
        self.closed_s: float | None = None
        self.counted = True
        """False: its engine began anew since; only its stream is open."""


class NodeLedger:
    """One node's entries and the sums over them, which each event keeps up to date."""

    __slots__ = (
        "adapters",
        "closed",
        "finished",
        "held",
        "idle_until_s",
        "kv_blocks",
        "matched",
        "member",
        "open",
        "others",
        "requests_unseen",
        "sample",
        "seen_until_s",
        "sent",
        "sequences",
        "tells",
        "tokens",
        "unseen",
        "work",
        "work_since_s",
    )

    def __init__(self) -> None:
        self.member = True
        """Whether the table knows the node."""
        self.sample = Sample(NEVER)
        self.seen_until_s = NEVER
        """What was dispatched until then had arrived when the sample was taken."""
        self.idle_until_s = NEVER
        """The same of the sample before, where both were idle: it is over."""
        self.open: dict[str, Entry] = {}
        """By request id, oldest first."""
        self.closed: deque[Entry] = deque(maxlen=CLOSED_KEPT_MAX)
        """Closed since the sample, by the time of closing."""
        self.matched: set[str] = set()
        """Open requests that the sample shows as pending, less those whose first token came since."""
        self.adapters: dict[str, float] = {}
        """Adapters that it had to load, and when they were asked for first, `ADAPTER_LOADS_S` ago at most."""
        self.held = 0
        """Requests whose stream has not been left."""
        self.sequences = 0
        self.unseen = 0
        self.requests_unseen = 0
        self.finished = 0
        """Sequences that the sample shows and that are over."""
        self.kv_blocks = 0
        """Of the unseen, less those of the finished."""
        self.tokens = 0
        """Σ uncached tokens of the pending."""
        self.others = 0
        """Prefills of the sample that are not ours."""
        self.tells = False
        """Whether we are told of first tokens as they come, by the latest request that told, or ended without."""
        self.work = 0.0
        """Prompt tokens, others' too, to be computed at `work_since_s`; taken to shrink at the node's rate."""
        self.work_since_s = NEVER
        self.sent = SentWork()

    def is_unseen(self, entry: Entry) -> bool:
        """Whether it had not arrived yet when the sample was taken."""
        return entry.reservation.opened_s >= self.seen_until_s

    def is_pending(self, entry: Entry) -> bool:
        """Whether it has no first token yet, as far as we can tell."""
        if entry.first_token_s is not None:
            return False
        return self.is_unseen(entry) or entry.reservation.request_id in self.matched

    def may_be_shown(self, closed: Entry) -> bool:
        """Whether it was not over yet when the sample was taken: its end was told later than t + δ."""
        return (closed.closed_s or 0.0) > self.sample.taken_at_s + self.sample.delay_s

    def add(self, entry: Entry) -> None:
        """It was sent now."""
        one = entry.reservation
        self.open[one.request_id] = entry
        self.held += 1
        self.sequences += one.sequences
        if one.adapter is not None:
            self.adapters.setdefault(one.adapter, one.opened_s)
        self.sent.send(one.uncached_tokens, one.opened_s, self.sample.fleet_tokens_per_s)
        self._see_not(entry)

    def take_out(self, entry: Entry) -> None:
        """Its end was told now, at `closed_s`."""
        one = entry.reservation
        if entry.first_token_s is None:
            self.tells = False
            self.sent.unstarted -= one.uncached_tokens
        if self.is_pending(entry):
            self.tokens -= one.uncached_tokens
        unseen, shown = self.is_unseen(entry), self.may_be_shown(entry)
        if unseen:
            self.unseen -= one.sequences
            self.requests_unseen -= 1
            self.kv_blocks -= one.kv_blocks
        elif shown and not self.sample.idle:  # which shows nothing; ends are told later, and no sample may follow
            self.finished += one.sequences
            self.kv_blocks -= one.kv_blocks
        self.sequences -= one.sequences
        self.held -= entry.left_s is None
        self.matched.discard(one.request_id)
        del self.open[one.request_id]
        if shown:
            self.closed.append(entry)

    def drop(self, entry: Entry) -> None:
        """It was left, and its end was never told. `match` must follow."""
        del self.open[entry.reservation.request_id]
        self.sequences -= entry.reservation.sequences
        if entry.first_token_s is None:
            self.sent.unstarted -= entry.reservation.uncached_tokens

    def undo(self, entry: Entry) -> None:
        """It never came."""
        self.held -= entry.left_s is None
        self.drop(entry)
        adapter = entry.reservation.adapter
        if adapter is not None and all(other.reservation.adapter != adapter for other in self.open.values()):
            self.adapters.pop(adapter, None)  # nobody has it loaded there
        self.match()

    def insert(self, entry: Entry) -> None:
        """It was sent a while ago, before others perhaps."""
        one = entry.reservation
        self.open[one.request_id] = entry
        self.open = dict(sorted(self.open.items(), key=lambda item: opened_s(item[1])))
        self.held += entry.left_s is None
        self.sequences += one.sequences
        if one.adapter is not None:
            self.adapters.setdefault(one.adapter, one.opened_s)
        begun = entry.first_token_s is not None
        self.sent.send(one.uncached_tokens, one.opened_s, self.sample.fleet_tokens_per_s, has_begun=begun)
        self.match()

    def take_over(self, other: "NodeLedger") -> None:
        """All that is there is here."""
        self.open = dict(sorted((self.open | other.open).items(), key=lambda item: opened_s(item[1])))
        closed = sorted((*self.closed, *other.closed), key=lambda entry: entry.closed_s or 0.0)
        self.closed = deque(closed, CLOSED_KEPT_MAX)
        self.held += other.held
        self.sequences += other.sequences
        self.sent.take_over(other.sent)
        self.adapters = other.adapters | self.adapters
        self.match()

    def match(self) -> None:
        """Make all sums anew for a sample that has just come."""
        told_after_s = self.sample.taken_at_s + self.sample.delay_s
        while self.closed and not self.may_be_shown(self.closed[0]):
            self.closed.popleft()
        self.matched.clear()
        self.unseen = self.requests_unseen = self.finished = self.kv_blocks = self.tokens = 0
        for entry in () if self.sample.idle else self.closed:
            if not self.is_unseen(entry):
                self.finished += entry.reservation.sequences
                self.kv_blocks -= entry.reservation.kv_blocks
        unmatched = self.sample.pending_prefills
        unseen: list[Entry] = []
        for entry in self._newest_first():
            one, is_open = entry.reservation, entry.closed_s is None
            if self.is_unseen(entry):
                if is_open:
                    unseen.append(entry)
            elif unmatched <= 0:
                break  # all before it were sent earlier, and have begun
            elif entry.first_token_s is None or entry.first_token_s > told_after_s:
                unmatched -= one.sequences
                if is_open and entry.first_token_s is None:
                    self.matched.add(one.request_id)
                    self.tokens += one.uncached_tokens
        self.others = max(0, unmatched)
        self.work = self.tokens + self.others * self.sample.prefill_tokens_mean
        self.work_since_s = self.sample.taken_at_s
        for entry in reversed(unseen):
            self._see_not(entry)

    def let_adapters_go(self, now_s: float) -> None:
        """Forget those that were asked for too long ago."""
        if self.adapters:
            self.adapters = {name: at_s for name, at_s in self.adapters.items() if at_s > now_s - ADAPTER_LOADS_S}

    def let_closed_go(self, sample: Sample) -> None:
        """Forget what neither the sample that counts shows, because it is unseen, nor any that comes after this one."""
        told_after_s = sample.taken_at_s + sample.delay_s
        kept = [one for one in self.closed if not self.is_unseen(one) or (one.closed_s or 0.0) > told_after_s]
        if len(kept) < len(self.closed):
            self.closed = deque(kept, CLOSED_KEPT_MAX)

    def let_closed_before_go(self, until_s: float) -> None:
        """Forget those that closed before that: no sample that is still taken shows them."""
        while self.closed and (self.closed[0].closed_s or 0.0) < until_s:
            self.closed.popleft()

    def _see_not(self, entry: Entry) -> None:
        if self.is_unseen(entry):
            self.unseen += entry.reservation.sequences
            self.requests_unseen += 1
            self.kv_blocks += entry.reservation.kv_blocks
            if entry.first_token_s is None:
                self.tokens += entry.reservation.uncached_tokens
            self._work_until(entry.reservation.opened_s)
            self.work += entry.reservation.uncached_tokens

    def _work_until(self, now_s: float) -> None:
        if now_s > self.work_since_s:
            self.work = max(0.0, self.work - self.sample.prefill_tokens_per_s * (now_s - self.work_since_s))
            self.work_since_s = now_s

    def _newest_first(self) -> Iterator[Entry]:
        if not self.closed:
            return reversed(self.open.values())
        closed = sorted(self.closed, key=opened_s, reverse=True)
        return merge(reversed(self.open.values()), closed, key=opened_s, reverse=True)


def opened_s(entry: Entry) -> float:
    """When it was sent."""
    return entry.reservation.opened_s
