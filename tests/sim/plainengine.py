"""The rules of an engine in their plainest form: every step by itself, every sequence in every step.

What `extproc.sim.engine` must tell, with nothing kept lazily; the KV blocks of a sequence are its own `Holding`.
"""

from dataclasses import dataclass

from extproc.sim.counters import Counters
from extproc.sim.engine import EngineSettings
from extproc.sim.events import Event, Finished, FirstToken, Preempted, Request, Token
from extproc.sim.holding import Holding
from extproc.sim.kv import KvPool
from extproc.sim.steptime import StepWork


@dataclass(eq=False)
class _Sequence:
    request: Request
    known: int
    held: Holding
    computed: int = 0
    planned: int = 0
    cached_tokens: int | None = None
    last_token_s: float | None = None
    aborted: bool = False


class PlainEngine:
    """Of the counters only some are kept: gauges, preemptions, generated tokens and the gaps between them."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.counters = Counters()
        self.pool = KvPool(settings.kv_blocks, settings.block_size_tokens)
        self.running: list[_Sequence] = []
        self.waiting: list[_Sequence] = []
        self.events: list[Event] = []
        self.end_s: float | None = None

    def submit(self, request: Request, now_s: float) -> None:
        self.catch_up(now_s)
        self.waiting.append(_Sequence(request, request.prompt_tokens, Holding(self.pool, request.block_keys)))
        if self.end_s is None:
            self.begin_step(now_s)

    def abort(self, request_id: str, now_s: float) -> None:
        self.catch_up(now_s)
        self.waiting = [one for one in self.waiting if one.request.request_id != request_id]
        for sequence in self.running:
            sequence.aborted |= sequence.request.request_id == request_id

    def catch_up(self, now_s: float) -> None:
        while self.end_s is not None and self.end_s <= now_s:
            end_s = self.end_s
            self.end_step(end_s)
            self.begin_step(end_s)

    def begin_step(self, now_s: float) -> None:
        work, budget, index = StepWork(), self.settings.step_tokens_max, 0
        while index < len(self.running) and budget:
            sequence = self.running[index]
            tokens = min(sequence.known - sequence.computed, budget)
            if not sequence.held.fill(sequence.computed + tokens):
                latest = self.running.pop()
                latest.held.end()
                self.waiting.insert(0, latest)
                self.counters.preemptions += 1
                self.events.append(Preempted(latest.request.request_id, now_s))
                continue
            self.plan(sequence, tokens, work)
            budget -= tokens
            index += 1
        while self.waiting and budget and len(self.running) < self.settings.sequences_max:
            sequence = self.waiting[0]
            cached_tokens = sequence.held.begin(sequence.known)
            if cached_tokens is None:
                break
            if sequence.cached_tokens is None:
                sequence.cached_tokens = cached_tokens
            sequence.computed = cached_tokens
            self.running.append(self.waiting.pop(0))
            tokens = min(sequence.known - sequence.computed, budget)
            assert sequence.held.fill(sequence.computed + tokens)
            self.plan(sequence, tokens, work)
            budget -= tokens
        self.end_s = now_s + self.settings.cost.seconds(work) / self.settings.speed if self.running else None

    def plan(self, sequence: _Sequence, tokens: int, work: StepWork) -> None:
        sequence.planned = tokens
        if tokens == 1 and sequence.known > sequence.request.prompt_tokens:
            work.decoding_sequences += 1
            work.kv_tokens_read += sequence.known
        else:
            work.prefill_tokens += tokens
            work.attention_pairs += tokens * (sequence.computed + tokens / 2)

    def end_step(self, now_s: float) -> None:
        before, self.running = self.running, []
        for sequence in before:
            sequence.computed += sequence.planned
            complete = sequence.planned > 0 and sequence.computed == sequence.known
            sequence.planned = 0
            if sequence.aborted or (complete and self.produce(sequence, now_s)):
                sequence.held.end()
            else:
                self.running.append(sequence)
        self.counters.num_requests_running = len(self.running)
        self.counters.num_requests_waiting = len(self.waiting)
        self.counters.kv_cache_usage = self.pool.usage

    def produce(self, sequence: _Sequence, now_s: float) -> bool:
        request = sequence.request
        if request.output_tokens:
            sequence.known += 1
            self.counters.generation_tokens += 1
            if sequence.last_token_s is None:
                self.events.append(FirstToken(request.request_id, now_s))
            else:
                self.counters.inter_token_latency.observe(now_s - sequence.last_token_s)
                self.events.append(Token(request.request_id, now_s))
            sequence.last_token_s = now_s
        if sequence.known < request.prompt_tokens + request.output_tokens:
            return False
        self.events.append(Finished(request.request_id, now_s, request.finish, sequence.cached_tokens or 0))
        return True
