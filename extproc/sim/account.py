"""What an engine tells of its work: events for those who wait for answers, counters for those who scrape."""

from collections.abc import Iterable

from extproc.sim.batch import OpenSequence
from extproc.sim.counters import Counters
from extproc.sim.events import Event, Finished, FirstToken, Preempted, Token
from extproc.sim.leap import Leap


class Account:
    """Counts everything and keeps the events that were not taken yet, in order of time."""

    def __init__(self, tell_tokens: bool) -> None:
        self.counters = Counters()
        self.tell_tokens = tell_tokens
        """Whether tokens after the first are events too."""
        self.events: list[Event] = []

    def admitted(self, sequence: OpenSequence) -> None:
        """For the first time."""
        self.counters.prefix_cache_queries += sequence.known
        self.counters.prefix_cache_hits += sequence.cached_tokens

    def preempted(self, sequence: OpenSequence, now_s: float) -> None:
        """It lost its blocks."""
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self.events.append(Preempted(sequence.request.request_id, now_s))

    def passed_by(self, leap: Leap, steps: int, batch: Iterable[OpenSequence]) -> None:
        """So many steps of a leap, not the last, gave each sequence a token."""
        if self.tell_tokens:
            for ended in range(leap.done + 1, leap.done + steps + 1):
                self._decoded(batch, leap.end_s(ended))
        leap.pass_by(steps, self.counters.inter_token_latency)
        self.counters.generation_tokens += steps * leap.sequences
        self.counters.iteration_tokens.observe(leap.sequences, steps)

    def decoded(self, leap: Leap, batch: Iterable[OpenSequence], aborted: int, now_s: float) -> None:
        """The last step of a leap gave a token to each that decodes, but for so many that were aborted."""
        if self.tell_tokens:
            self._decoded(batch, now_s)
        tokens = leap.sequences - aborted
        self.counters.inter_token_latency.observe(leap.gap_s(leap.done), tokens)
        self.counters.generation_tokens += tokens

    def prefilled(self, sequence: OpenSequence, now_s: float) -> None:
        """Its prompt is computed, and what it had before it was preempted: its next token, if it gets any, is there."""
        request, counters = sequence.request, self.counters
        first = sequence.first_token_s is None
        if first:
            sequence.first_token_s = now_s
            counters.prompt_tokens_computed += request.prompt_tokens - sequence.cached_tokens
            counters.prompt_tokens_cached += sequence.cached_tokens
        if not request.output_tokens:
            return
        counters.generation_tokens += 1
        if first:
            counters.time_to_first_token.observe(now_s - sequence.arrived_s)
            self.events.append(FirstToken(request.request_id, now_s))
        else:
            counters.inter_token_latency.observe(now_s - sequence.last_token_s)
            if self.tell_tokens:
                self.events.append(Token(request.request_id, now_s))

    def finished(self, sequence: OpenSequence, now_s: float) -> None:
        """Its last token is there."""
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
        self.events.append(Finished(request.request_id, now_s, request.finish, sequence.cached_tokens))

    def step_ended(self, running: int, waiting: int, kv_usage: float) -> None:
        """What is so now is shown until the next step ends; a step that answered anybody was an iteration."""
        counters = self.counters
        computed = counters.prompt_tokens_computed + counters.generation_tokens
        if computed > counters.iteration_tokens.sum:
            counters.iteration_tokens.observe(computed - counters.iteration_tokens.sum)
        counters.num_requests_running = running
        counters.num_requests_waiting = waiting
        counters.kv_cache_usage = kv_usage

    def _decoded(self, batch: Iterable[OpenSequence], now_s: float) -> None:
        self.events += [Token(one.request.request_id, now_s) for one in batch if not one.aborted]
