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
"""

from collections import deque
from dataclasses import dataclass, field

from extproc.sim.counters import Counters
from extproc.sim.events import Event, Finished, FirstToken, Preempted, Request, Token
from extproc.sim.kv import BLOCK_SIZE_TOKENS, KvPool, blocks_for
from extproc.sim.steptime import StepCost, StepWork


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine. Raises ValueError where it could not run: vLLM refuses the same at its start."""

    kv_blocks: int = 25_000
    """Blocks of 16 tokens; one of them is never used. The default is what the default model leaves on its GPUs."""
    context_length_tokens: int = 131_072
    """Prompt and output of one sequence together; the KV cache must hold it."""
    sequences_max: int = 256
    """Sequences running at once."""
    step_tokens_max: int = 8192
    """Tokens computed in one step."""
    speed: float = 1.0
    """2 halves every step's time."""
    cost: StepCost = field(default_factory=StepCost)

    def __post_init__(self) -> None:
        if self.context_length_tokens < 1 or self.sequences_max < 1 or not 0 < self.speed < float("inf"):
            msg = "context_length_tokens, sequences_max and speed must be over 0"
            raise ValueError(msg)
        if self.kv_blocks - 1 < blocks_for(self.context_length_tokens):
            needed = blocks_for(self.context_length_tokens) + 1
            msg = f"{self.context_length_tokens} tokens of context need {needed} kv_blocks, got {self.kv_blocks}"
            raise ValueError(msg)
        if self.step_tokens_max < self.sequences_max:
            msg = f"step_tokens_max ({self.step_tokens_max}) must not be less than sequences_max ({self.sequences_max})"
            raise ValueError(msg)


@dataclass(slots=True, eq=False)
class _Sequence:
    request: Request
    arrived_s: float
    known: int
    """Prompt and output tokens that exist; the cache may lag behind."""
    computed: int = 0
    """Tokens whose KV is in the cache."""
    planned: int = 0
    """Tokens that the step in flight computes."""
    blocks: list[int] = field(default_factory=list)
    published: int = 0
    """Full blocks offered to others."""
    cached_tokens: int = 0
    preemptions: int = 0
    aborted: bool = False
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0


class Engine:
    """See the module. Time never goes backwards between calls."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.counters = Counters()
        self.pool = KvPool(settings.kv_blocks)
        self._open: dict[str, _Sequence] = {}
        self._running: list[_Sequence] = []
        self._waiting: deque[_Sequence] = deque()
        self._events: list[Event] = []
        self._step_end_s: float | None = None
        self._now_s = float("-inf")

    @property
    def next_step_end_s(self) -> float | None:
        """When the step in flight ends; `None`: idle, and nothing is open."""
        return self._step_end_s

    @property
    def requests_running(self) -> int:
        """Sequences in the batch now; the gauge describes the last finished step."""
        return len(self._running)

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
        sequence = _Sequence(request, now_s, known=request.prompt_tokens)
        self._open[request.request_id] = sequence
        self._waiting.append(sequence)
        if self._step_end_s is None:
            self._begin_step(now_s)

    def abort(self, request_id: str, now_s: float) -> None:
        """The client is gone: no further event. Harmless for what has finished."""
        self._catch_up(now_s)
        sequence = self._open.pop(request_id, None)
        if sequence is None:
            return
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        sequence.aborted = True

    def advance(self, now_s: float) -> list[Event]:
        """All that happened until now and was not told yet, in order of time."""
        self._catch_up(now_s)
        events, self._events = self._events, []
        return events

    def _catch_up(self, now_s: float) -> None:
        assert now_s >= self._now_s
        self._now_s = now_s
        while self._step_end_s is not None and self._step_end_s <= now_s:
            end_s = self._step_end_s
            self._end_step(end_s)
            self._begin_step(end_s)

    def _begin_step(self, now_s: float) -> None:
        work = StepWork()
        budget = self.settings.step_tokens_max
        index = 0
        while index < len(self._running) and budget:
            sequence = self._running[index]
            tokens = min(sequence.known - sequence.computed, budget)
            if not self._reserve(sequence, tokens):
                self._preempt(self._running.pop(), now_s)
                continue
            self._plan(sequence, tokens, work)
            budget -= tokens
            index += 1
        while self._waiting and budget and len(self._running) < self.settings.sequences_max:
            sequence = self._waiting[0]
            if not self._admit(sequence, now_s):
                break
            self._running.append(self._waiting.popleft())
            tokens = min(sequence.known - sequence.computed, budget)
            reserved = self._reserve(sequence, tokens)
            assert reserved
            self._plan(sequence, tokens, work)
            budget -= tokens
        self._step_end_s = now_s + self.settings.cost.seconds(work) / self.settings.speed if self._running else None

    def _admit(self, sequence: _Sequence, now_s: float) -> bool:
        # The last token is always computed: its output is the next token.
        cached = self.pool.cached_prefix(sequence.request.block_keys, (sequence.known - 1) // BLOCK_SIZE_TOKENS)
        if blocks_for(sequence.known) - len(cached) > self.pool.free_after_sharing(cached):
            return False
        self.pool.share(cached)
        sequence.blocks = cached
        sequence.published = len(cached)
        sequence.computed = len(cached) * BLOCK_SIZE_TOKENS
        if sequence.scheduled_s is None:
            sequence.scheduled_s = now_s
            sequence.cached_tokens = sequence.computed
            self.counters.prefix_cache_queries += sequence.known
            self.counters.prefix_cache_hits += sequence.cached_tokens
        return True

    def _reserve(self, sequence: _Sequence, tokens: int) -> bool:
        filled = sequence.computed + tokens
        missing = blocks_for(filled) - len(sequence.blocks)
        if missing > 0:
            if missing > self.pool.blocks_free:
                return False
            sequence.blocks += self.pool.take(missing)
        keys = sequence.request.block_keys
        full = min(filled // BLOCK_SIZE_TOKENS, len(keys))
        if full > sequence.published:
            # As in vLLM already when planned: requests of the same step share.
            for index in range(sequence.published, full):
                self.pool.publish(sequence.blocks[index], keys[index])
            sequence.published = full
        return True

    @staticmethod
    def _plan(sequence: _Sequence, tokens: int, work: StepWork) -> None:
        sequence.planned = tokens
        if tokens == 1 and sequence.known > sequence.request.prompt_tokens:
            work.decoding_sequences += 1
            work.kv_tokens_read += sequence.known
        else:
            work.prefill_tokens += tokens
            work.attention_pairs += tokens * (sequence.computed + tokens / 2)

    def _preempt(self, sequence: _Sequence, now_s: float) -> None:
        # What it has computed is set anew when it is admitted again; in this step it cannot be, its blocks are short.
        self.pool.release(sequence.blocks)
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self._waiting.appendleft(sequence)
        self._events.append(Preempted(sequence.request.request_id, now_s))

    def _end_step(self, now_s: float) -> None:
        counters = self.counters
        computed_before, generated_before = counters.prompt_tokens_computed, counters.generation_tokens
        answered = False
        staying = []
        for sequence in self._running:
            if not sequence.aborted:
                sequence.computed += sequence.planned
                complete = sequence.planned > 0 and sequence.computed == sequence.known
                sequence.planned = 0
                if not complete:
                    staying.append(sequence)
                    continue
                answered = True
                if not self._produce(sequence, now_s):
                    staying.append(sequence)
                    continue
                self._finish(sequence, now_s)
            self.pool.release(sequence.blocks)
        self._running = staying
        if answered:
            prompt_tokens = counters.prompt_tokens_computed - computed_before
            counters.iteration_tokens.observe(prompt_tokens + counters.generation_tokens - generated_before)
        counters.num_requests_running = len(staying)
        counters.num_requests_waiting = len(self._waiting)
        counters.kv_cache_usage = self.pool.usage

    def _produce(self, sequence: _Sequence, now_s: float) -> bool:
        """Give a sequence its next token; true: that was its last."""
        request, counters = sequence.request, self.counters
        first = sequence.first_token_s is None
        if first:
            sequence.first_token_s = now_s
            counters.prompt_tokens_computed += request.prompt_tokens - sequence.cached_tokens
            counters.prompt_tokens_cached += sequence.cached_tokens
        if request.output_tokens:
            if first:
                counters.time_to_first_token.observe(now_s - sequence.arrived_s)
                self._events.append(FirstToken(request.request_id, now_s))
            else:
                counters.inter_token_latency.observe(now_s - sequence.last_token_s)
                self._events.append(Token(request.request_id, now_s))
            counters.generation_tokens += 1
            sequence.known += 1
        sequence.last_token_s = now_s
        return sequence.known >= request.prompt_tokens + request.output_tokens

    def _finish(self, sequence: _Sequence, now_s: float) -> None:
        request = sequence.request
        assert sequence.scheduled_s is not None
        assert sequence.first_token_s is not None
        self.counters.finished(
            request.finish,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            output_tokens=request.output_tokens,
            preemptions=sequence.preemptions,
            queue_s=sequence.scheduled_s - sequence.arrived_s,
            prefill_s=sequence.first_token_s - sequence.scheduled_s,
            decode_s=now_s - sequence.first_token_s,
        )
        del self._open[request.request_id]
        self._events.append(Finished(request.request_id, now_s, request.finish, sequence.cached_tokens))
