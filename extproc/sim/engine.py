"""A discrete step model of one vLLM-like engine: pure, driven by whoever owns the clock.

The engine works in steps. A step is composed when the one before it ends (or when work reaches an idle engine) and
lasts as long as its work costs. Its budget of tokens goes first to the running sequences in order of arrival (one token
for each that decodes, as much prefill as fits for the others: chunked prefill), then to waiting ones, first come first
served. A waiting sequence is admitted once its *whole* prompt fits the free KV blocks, though it takes only what its
next chunk needs (vLLM's `scheduler_reserve_full_isl`). A running sequence that finds no free block preempts the latest
arrival, possibly itself: that one loses its blocks, goes back to the head of the queue and is computed anew when it
returns. At the step's end every sequence whose known tokens are all computed has one more token.

What happens during a step takes effect at its end: arrivals wait for the next one, a running sequence that is aborted
keeps its blocks until then. So the future up to `next_step_end_s` is fixed, and the same calls give the same events
however `advance` is split. Running and waiting sequences together are always in order of arrival.

It follows that those that run are some that decode (`Batch`) and behind them at most one whose prompt is only computed
in part, as prefill stops where the budget ends. Steps in which all only decode are not made one by one: until somebody
is done, comes or goes, or may lack a block, they are one `Leap`.
"""

from collections import deque

from extproc.sim.account import Account
from extproc.sim.batch import Batch, OpenSequence
from extproc.sim.counters import Counters
from extproc.sim.enginesettings import EngineSettings
from extproc.sim.events import Event, Request
from extproc.sim.holding import Holding
from extproc.sim.kv import KvPool
from extproc.sim.leap import Leap
from extproc.sim.steptime import StepWork

__all__ = ["Engine", "EngineSettings"]


class Engine:
    """See the module. Time never goes backwards between calls.

    Without `tell_tokens` there is no `Token` event, and a driver may go from one `next_event_s` to the next; nothing
    else changes.
    """

    def __init__(self, settings: EngineSettings, tell_tokens: bool = True) -> None:
        self.settings = settings
        self.pool = KvPool(settings.kv_blocks, settings.block_size_tokens)
        self._account = Account(tell_tokens)
        self._open: dict[str, OpenSequence] = {}
        self._batch = Batch(settings.block_size_tokens)
        self._prefilling: list[OpenSequence] = []
        """Running too, after the batch; between two steps at most one."""
        self._waiting: deque[OpenSequence] = deque()
        self._steps = 0
        """That have ended."""
        self._leap: Leap | None = None
        """`None`: idle."""
        self._now_s = float("-inf")

    @property
    def counters(self) -> Counters:
        """As of the last step that has ended; a caller may count what only it knows."""
        return self._account.counters

    @property
    def next_step_end_s(self) -> float | None:
        """When the step in flight ends; `None`: idle, and nothing is open."""
        return None if self._leap is None else self._leap.end_s(self._leap.done + 1)

    @property
    def next_event_s(self) -> float | None:
        """Until then `advance` tells nothing, unless a sequence is submitted or aborted; `None`: idle.

        The time of the last call where that caught up with events that `advance` did not tell yet.
        """
        if self._account.events:
            return self._now_s
        if self._leap is None or self._account.tell_tokens:
            return self.next_step_end_s
        return self._leap.end_s(self._leap.steps)

    @property
    def requests_running(self) -> int:
        """Sequences in the batch now; the gauge describes the last finished step."""
        return len(self._batch) + len(self._prefilling)

    @property
    def requests_waiting(self) -> int:
        """Sequences queued now."""
        return len(self._waiting)

    @property
    def requests_open(self) -> int:
        """Sequences submitted and neither finished nor aborted."""
        return len(self._open)

    def submit(self, request: Request, now_s: float) -> None:
        """Queue a sequence; its id must be new, its tokens must fit the context length."""
        assert request.request_id not in self._open
        assert request.prompt_tokens >= 1
        assert request.output_tokens >= 0
        assert request.prompt_tokens + request.output_tokens <= self.settings.context_length_tokens
        self._catch_up(now_s)
        sequence = OpenSequence(request, now_s, request.prompt_tokens, Holding(self.pool, request.block_keys))
        self._open[request.request_id] = sequence
        self._waiting.append(sequence)
        if self._leap is None:
            self._begin_step(now_s)
        else:
            self._leap.cut()

    def abort(self, request_id: str, now_s: float) -> None:
        """The client is gone: no further event. Harmless for what has finished."""
        self._catch_up(now_s)
        sequence = self._open.pop(request_id, None)
        if sequence is None:
            return
        assert self._leap is not None
        self._leap.cut()
        sequence.aborted = True
        if sequence in self._batch:
            self._batch.expel(sequence, self._steps)
        elif sequence not in self._prefilling:
            self._waiting.remove(sequence)

    def advance(self, now_s: float) -> list[Event]:
        """All that happened until now and was not told yet, in order of time."""
        self._catch_up(now_s)
        events, self._account.events = self._account.events, []
        return events

    def _catch_up(self, now_s: float) -> None:
        assert now_s >= self._now_s
        self._now_s = now_s
        while (leap := self._leap) is not None:
            ended = leap.ended_by(now_s)
            if ended < leap.steps:
                self._pass_by(leap, ended - leap.done)
                return
            self._pass_by(leap, leap.steps - 1 - leap.done)
            end_s = leap.end_s(leap.steps)
            self._end_step(leap, end_s)
            self._begin_step(end_s)

    def _begin_step(self, now_s: float) -> None:
        for step, sequence in self._batch.filling(range(self._steps, self._steps + 1)):
            # It may be gone, preempted by one before it or by itself.
            while sequence in self._batch and not sequence.held.fill(sequence.lead + step):
                self._preempt(now_s)
        decoding = len(self._batch)
        work = StepWork(decoding_sequences=decoding, kv_tokens_read=self._batch.known_tokens(self._steps))
        budget = self.settings.step_tokens_max - decoding
        for sequence in tuple(self._prefilling):
            tokens = min(sequence.known - sequence.computed, budget)
            if sequence.held.fill(sequence.computed + tokens):
                self._plan(sequence, tokens, work)
                budget -= tokens
            else:
                self._preempt(now_s)
        while self._waiting and budget and self.requests_running < self.settings.sequences_max:
            sequence = self._waiting[0]
            if not self._admit(sequence, now_s):
                break
            self._prefilling.append(self._waiting.popleft())
            tokens = min(sequence.known - sequence.computed, budget)
            reserved = sequence.held.fill(sequence.computed + tokens)
            assert reserved
            self._plan(sequence, tokens, work)
            budget -= tokens
        if not self.requests_running:
            self._leap = None
            return
        cost, speed = self.settings.cost, self.settings.speed
        self._leap = Leap(
            now_s,
            cost.seconds(work) / speed,
            cost.growth_seconds(decoding) / speed,
            1 if self._prefilling else self._steps_alike(),
            decoding,
            self.counters.inter_token_latency.sum,
        )

    def _steps_alike(self) -> int:
        """How many steps from the one that begins are sure to differ in nothing but the KV that they read."""
        batch, pool, waiting = self._batch, self.pool, bool(self._waiting)
        steps = batch.due_step() - self._steps + 1
        # No sequence begins more blocks in the steps after this one.
        blocks_each = -(-(steps - 1) // self.settings.block_size_tokens)
        if not waiting and blocks_each * len(batch) <= pool.blocks_free:
            return steps
        blocks_free = pool.blocks_free
        for step, sequence in batch.filling(range(self._steps + 1, self._steps + steps)):
            blocks_free -= 1
            # What does not fit now may fit once it shares what this one publishes.
            if blocks_free < 0 or (waiting and sequence.held.publishing):
                return step - self._steps
        return steps

    def _admit(self, sequence: OpenSequence, now_s: float) -> bool:
        cached_tokens = sequence.held.begin(sequence.known)
        if cached_tokens is None:
            return False
        sequence.computed = cached_tokens
        if sequence.scheduled_s is None:
            sequence.scheduled_s = now_s
            sequence.cached_tokens = cached_tokens
            self._account.admitted(sequence)
        return True

    @staticmethod
    def _plan(sequence: OpenSequence, tokens: int, work: StepWork) -> None:
        sequence.planned = tokens
        if tokens == 1 and sequence.known > sequence.request.prompt_tokens:
            work.decoding_sequences += 1
            work.kv_tokens_read += sequence.known
        else:
            work.prefill_tokens += tokens
            work.attention_pairs += tokens * (sequence.computed + tokens / 2)

    def _preempt(self, now_s: float) -> None:
        """Throw out the latest arrival."""
        if self._prefilling:
            sequence = self._prefilling.pop()
        else:
            sequence = self._batch.last()
            self._batch.remove(sequence)
            sequence.known = sequence.lead + self._steps
            sequence.last_token_s = now_s
        # What it has computed is set anew when it is admitted again; in this step it cannot be, its blocks are short.
        sequence.held.end()
        self._waiting.appendleft(sequence)
        self._account.preempted(sequence, now_s)

    def _pass_by(self, leap: Leap, steps: int) -> None:
        """Steps end that gave each sequence of the batch a token and nothing else, and those after them begin."""
        if not steps:
            return
        self._account.passed_by(leap, steps, self._batch)
        first, last = self._steps + 1, self._steps + steps
        self._fill(range(first, last))
        kv_usage = self.pool.usage
        self._fill(range(last, last + 1))
        self._steps = last
        self._account.step_ended(self.requests_running, self.requests_waiting, kv_usage)

    def _fill(self, steps: range) -> None:
        for step, sequence in self._batch.filling(steps):
            filled = sequence.held.fill(sequence.lead + step)
            assert filled

    def _end_step(self, leap: Leap, now_s: float) -> None:
        """The last step of a leap ends."""
        leaving = self._batch.due(self._steps)
        self._account.decoded(leap, self._batch, sum(sequence.aborted for sequence in leaving), now_s)
        self._steps += 1
        for sequence in leaving:
            self._batch.remove(sequence)
            self._leave(sequence, now_s)
        prefilling, self._prefilling = self._prefilling, []
        for sequence in prefilling:
            sequence.computed += sequence.planned
            if sequence.aborted:
                self._leave(sequence, now_s)
            elif sequence.computed < sequence.known:
                self._prefilling.append(sequence)
            else:
                self._account.prefilled(sequence, now_s)
                # Also without any output: then this is one more than it will ever need.
                sequence.known += 1
                if sequence.known < sequence.total:
                    self._batch.join(sequence, self._steps)
                else:
                    self._leave(sequence, now_s)
        self._account.step_ended(self.requests_running, self.requests_waiting, self.pool.usage)

    def _leave(self, sequence: OpenSequence, now_s: float) -> None:
        sequence.held.end()
        if not sequence.aborted:
            del self._open[sequence.request.request_id]
            self._account.finished(sequence, now_s)
