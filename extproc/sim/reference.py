"""The look-ahead reference: what a router could do that knew everything. No router can; it is what others are held to.

It is greedy: each request goes at once to the node for which this sum is least, by the exact state of every engine, its
true cache, its speed of this moment and the true length of every answer:

    cost = own wait and prefill + own decoding             seconds, of which it would have some on an idle engine too
         + Σ others (own prefill + how much longer each of their steps gets while both decode)
         + OBJECTIVE_S × the change in how many of all these requests are to be expected to miss an objective

Whether an objective is missed is a matter of degree: the time that is left until it is missed, over `BLUR` of what it
allows, goes through a sigmoid, since what will come later is not known. For the same reason the time that is
left for decoding is taken to be `LATER` times what it would be if nobody came.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from extproc.sim.measures import TPOT_OBJECTIVE_S, TTFT_OBJECTIVE_FACTOR, TTFT_OBJECTIVE_S, isolated
from extproc.sim.node import Node
from extproc.sim.traces import BLOCK_TOKENS, Arrival

OBJECTIVE_S: Final = 30.0
"""Seconds of delay that a missed objective is worth. With this and the two below goodput was best, or within half a
point of it, on conversations, mixes, heavy ones, Mooncake's trace and unequal nodes; with twice and half of each it is
close to that."""
BLUR: Final = 0.15
LATER: Final = 1.4


@dataclass(slots=True, eq=False)
class _Sent:
    """A request at a node."""

    arrival: Arrival
    place: int
    prefill_s: float
    """From the end of the prefill before it to its first token, by the node's speed."""
    first_token_s: float = 0.0
    steps_before: int = 0
    """Of its engine, that gave somebody a token: until its first."""


class Reference:
    """Chooses; is told what becomes of requests as it happens, and not a way later."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._loads = [_Load(node) for node in nodes]
        self._sent: dict[str, _Sent] = {}

    def choose(self, request_id: str, arrival: Arrival, now_s: float) -> Node | None:
        """The best node; all must have been advanced until now. `None`: none would serve the request."""
        best: tuple[float, _Load, float] | None = None
        for load in self._loads:
            if load.node.usable(now_s):
                cost, prefill_s = load.cost(arrival, now_s)
                if best is None or cost < best[0]:
                    best = cost, load, prefill_s
        if best is None:
            return None
        _, load, prefill_s = best
        sent = self._sent[request_id] = _Sent(arrival, load.node.place, prefill_s)
        load.add(sent, now_s)
        return load.node

    def first_token(self, request_id: str, now_s: float) -> None:
        """The first token of a request's answer is made."""
        sent = self._sent[request_id]
        self._loads[sent.place].begin(sent, now_s)

    def finished(self, request_id: str) -> None:
        """A request is done, or failed."""
        sent = self._sent.pop(request_id)
        self._loads[sent.place].drop(sent)


class _Load:
    """What one node has to do."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._pending: dict[_Sent, None] = {}
        """Without a first token, in the order in which they were sent."""
        self._decoding: dict[_Sent, None] = {}
        self._coming: dict[int, int] = {}
        """Prompt blocks of the pending, and how many have each: cached by the time that the next one's turn comes."""
        self._prefilling_since_s = 0.0

    def add(self, sent: _Sent, now_s: float) -> None:
        if not self._pending:
            self._prefilling_since_s = now_s
        self._pending[sent] = None
        for block in sent.arrival.prompt_blocks:
            self._coming[block] = self._coming.get(block, 0) + 1

    def begin(self, sent: _Sent, now_s: float) -> None:
        self._unpend(sent)
        self._prefilling_since_s = now_s
        sent.first_token_s = now_s
        sent.steps_before = self._steps
        self._decoding[sent] = None

    def drop(self, sent: _Sent) -> None:
        self._decoding.pop(sent, None)
        if sent in self._pending:
            self._unpend(sent)

    def cost(self, arrival: Arrival, now_s: float) -> tuple[float, float]:
        """Of a request that would be sent here now; and the time that its prefill takes."""
        settings = self.node.engine.settings
        cost, speed = settings.cost, settings.speed * self.node.clock.pace(now_s)
        prompt_tokens, output_tokens = arrival.prompt_tokens, arrival.output_tokens
        steps = self._steps
        kv_tokens = 0
        # Σ over the others of the steps in which both decode, and the same times the KV tokens of the other.
        together = together_kv_tokens = 0
        for sent in self._decoding:
            one = sent.arrival
            made = steps - sent.steps_before
            kv_tokens += one.prompt_tokens + made
            both = min(output_tokens, one.output_tokens - 1 - made)
            together += both
            together_kv_tokens += both * (one.prompt_tokens + made)
        for sent in self._pending:
            both = min(output_tokens, sent.arrival.output_tokens)
            together += both
            together_kv_tokens += both * sent.arrival.prompt_tokens
        step_s = (cost.step_s + cost.decoding_sequence_s * len(self._decoding) + cost.kv_token_s * kv_tokens) / speed
        cached = self._cached_tokens(arrival)
        uncached = prompt_tokens - cached
        work_s = (cost.prefill_token_s * uncached + cost.attention_pair_s * uncached * (cached + uncached / 2)) / speed
        prefill_s = work_s + -(-uncached // settings.step_tokens_max) * step_s
        wait_s = self._backlog_s(now_s) + prefill_s
        decode_s = (
            cost.step_s * output_tokens
            + cost.decoding_sequence_s * (together + output_tokens)
            + cost.kv_token_s * (together_kv_tokens + output_tokens * prompt_tokens)
        ) / speed
        others_s = (len(self._decoding) + len(self._pending)) * work_s
        others_s += (cost.decoding_sequence_s + cost.kv_token_s * prompt_tokens) * together / speed
        missed = self._missed(arrival, wait_s, decode_s) + self._missed_by_others(now_s, work_s, step_s)
        return wait_s + decode_s + others_s + OBJECTIVE_S * missed, prefill_s

    def _missed(self, arrival: Arrival, wait_s: float, decode_s: float) -> float:
        """How many of its two objectives the request itself is to be expected to miss."""
        alone = isolated(arrival.prompt_tokens, arrival.output_tokens, self.node.engine.settings.cost)
        missed = _late(wait_s, max(TTFT_OBJECTIVE_S, TTFT_OBJECTIVE_FACTOR * alone.prefill_s))
        if arrival.output_tokens > 1:
            missed += _late(decode_s * LATER, TPOT_OBJECTIVE_S * (arrival.output_tokens - 1))
        return missed

    def _missed_by_others(self, now_s: float, work_s: float, step_s: float) -> float:
        """How many more of those that decode are to be expected to miss their objective if this work comes on top."""
        pending_s = math.fsum(sent.prefill_s for sent in self._pending)
        steps = self._steps
        missed = 0.0
        for sent in self._decoding:
            left = sent.arrival.output_tokens - 1 - (steps - sent.steps_before)
            allowed_s = TPOT_OBJECTIVE_S * (sent.arrival.output_tokens - 1)
            if allowed_s:
                expected_s = now_s - sent.first_token_s + pending_s + left * step_s * LATER
                missed += _late(expected_s + work_s, allowed_s) - _late(expected_s, allowed_s)
        return missed

    @property
    def _steps(self) -> int:
        """Steps of the engine that gave somebody a token: in each of them all that decode got one."""
        return self.node.engine.counters.iteration_tokens.count

    def _backlog_s(self, now_s: float) -> float:
        """How long it still takes to the first tokens of all that are pending."""
        total_s = math.fsum(sent.prefill_s for sent in self._pending)
        first = next(iter(self._pending), None)
        return total_s if first is None else total_s - min(first.prefill_s, now_s - self._prefilling_since_s)

    def _cached_tokens(self, arrival: Arrival) -> int:
        blocks = self.node.cached_tokens(arrival.prompt_blocks) // BLOCK_TOKENS
        while blocks < len(arrival.prompt_blocks) and arrival.prompt_blocks[blocks] in self._coming:
            blocks += 1
        # The last token is always computed: its output is the next token.
        return min(blocks * BLOCK_TOKENS, arrival.prompt_tokens - 1)

    def _unpend(self, sent: _Sent) -> None:
        del self._pending[sent]
        for block in sent.arrival.prompt_blocks:
            self._coming[block] -= 1
            if not self._coming[block]:
                del self._coming[block]


def _late(expected_s: float, allowed_s: float) -> float:
    """From 0, surely in time, to 1, surely too late."""
    over = (expected_s - allowed_s) / (2 * BLUR * allowed_s)
    # Like a logistic function, of operations that every machine rounds alike.
    return 0.5 * (1.0 + over / math.sqrt(1.0 + over * over))
