"""What is learned of each node and each model from what nodes report and answers say."""

from collections import OrderedDict
from math import fsum
from statistics import median_low

from extproc.core.settings import ExpectedRates
from extproc.core.snapshot import Learned, Snapshot

PRIOR_S = 2.0
"""The rate that is assumed for every node weighs as much as so many seconds of prefill."""
WINDOW_S = 60.0
"""Seconds of prefill after which what was learned so far counts half."""
SPAN_S = 30.0
"""Over so long the load is taken to be even: an idle night says nothing of the busy seconds of the morning."""
STEPS_WAITED = 1.5
CHANGED_SHARE = 4
"""What is known of the fleet is made anew when so much of it, one in so many nodes, has told something else."""
STEP_S_MAX = 0.2
"""A longer step is one of prefill, by whatever average a node tells."""
STEP_RISE = 1.02
"""So many times longer the shortest step of a node is taken to be with each report that tells of longer ones."""
OUTLIER = 16.0
"""No interval counts for a rate so many times the fleet's, nor is a node taken to be so many times slower or faster."""
SPREAD = 8.0
"""What a node tells says nothing of the others if it is so many times less or more than the median."""
OUTPUT_PRIOR_ANSWERS = 8
OUTPUT_TOKENS_MAX = 32_768
OUTPUT_ANSWERS_MAX = 500
"""Answers after which those so far count half."""
MODELS_MAX = 1024
"""Models whose answers' lengths are remembered; the one asked for the longest ago goes first."""
TRUST_MIN = 0.5
"""A share of hits over this is taken for all: what others send, and when counters are read, blurs it anyway."""
TRUST_PRIOR_TOKENS = 20_000.0
TRUST_WINDOW_TOKENS = 500_000.0


class LearnedRates:
    """Rates and lengths, learned robustly and forgotten when an engine begins anew.

    prefill rate    the fleet's rate / the node's slowness: how many times longer it takes than the fleet would
    fleet's rate    computed tokens / (busy seconds - waits for steps), begun with PRIOR_S seconds of the configured one
    slowness        (busy seconds + PRIOR_S) / (waits for steps + computed tokens / the fleet's rate + PRIOR_S)
    busy seconds    engines tell Σ of the times to the first token, S, in a time T; so L = S/T requests waited at once
                    on the average, and a queue that is served one after another with Poisson arrivals is then busy for
                    L/(1 + L) of the time: S·T/(S + T) seconds (M/M/1, and M/G/1 with processor sharing); summed over
                    spans of SPAN_S
    waits for steps whatever its length, a prompt waits for the end of the step that runs, for half of one on the
                    average, and then takes one itself: else a node that gets short prompts would look slow
    a step          the shortest decode time that the nodes reported lately: where prompts share the steps, a second's
                    mean is many times as long, and would change all rates at once
    decode time     the latest mean that the node reported
    cache trust     tokens found in the node's cache / tokens that we expected there
    output length   mean of the answers of a model

    What is known of the fleet is known from the nodes that are like most, within SPREAD of their median: whatever one
    tells of itself, by fault or malice, it says little of the others.

    State: sums for each node that count half again and again; the fleet's rate, decode time and step.
    """

    def __init__(self, expected: ExpectedRates) -> None:
        self._expected = expected
        self._nodes: dict[str, _Node] = {}
        self._outputs: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self.prefill_tokens_per_s = expected.prefill_tokens_per_s
        """Of the fleet, as the next; the configured ones until a node reports them."""
        self.decode_s_per_token = expected.decode_s_per_token
        self._step_s = min(expected.decode_s_per_token, STEP_S_MAX)
        self._changes = 0
        """Of nodes, since what is known of the fleet was made."""

    def of(self, node_id: str) -> Learned:
        """What is known of a node; of one that never reported it is what is assumed."""
        node = self._nodes.get(node_id)
        fleets = self.prefill_tokens_per_s
        if node is None:
            return Learned(fleets, float(self._expected.prefill_tokens))
        mean = node.tokens_mean if node.tokens_mean is not None else float(self._expected.prefill_tokens)
        slowness = node.prefills.slowness(fleets, self._step_s)
        return Learned(fleets / slowness, mean, node.decode_s, node.trust.share)

    def observe(self, snapshot: Snapshot, taken_at_s: float) -> Learned:
        """Take a node's report; what it does not tell stays as it was."""
        node = self._nodes.get(snapshot.node_id)
        if node is None:
            node = self._nodes[snapshot.node_id] = _Node()
        self._observe_prefills(node, snapshot, taken_at_s)
        node.trust.observe(snapshot.prefix_hits_total, snapshot.prefix_queries_total)
        if snapshot.decode_ms_per_token:
            self._observe_decode(node, snapshot.decode_ms_per_token / 1000)
        return self.of(snapshot.node_id)

    def expected_hits(self, node_id: str, tokens: int) -> None:
        """A request is over of which we expected so many tokens in the node's cache."""
        node = self._nodes.get(node_id)
        if node is not None:
            node.trust.told += tokens

    def answered(self, model: str, output_tokens: int) -> None:
        """An answer was so long; no answer counts for more than `OUTPUT_TOKENS_MAX`."""
        output_tokens = min(output_tokens, OUTPUT_TOKENS_MAX)
        total, count = self._outputs.pop(model, (0.0, 0.0))
        if count >= OUTPUT_ANSWERS_MAX:
            total, count = total / 2, count / 2
        self._outputs[model] = (total + output_tokens, count + 1)
        if len(self._outputs) > MODELS_MAX:
            self._outputs.popitem(last=False)

    def output_tokens(self, model: str) -> float:
        """Expected length of an answer of the model."""
        total, count = self._outputs.get(model, (0.0, 0.0))
        assumed = self._expected.output_tokens
        return (total + OUTPUT_PRIOR_ANSWERS * assumed) / (count + OUTPUT_PRIOR_ANSWERS)

    def forget(self, node_id: str) -> None:
        """The node is a member no more, or its engine began anew."""
        node = self._nodes.pop(node_id, None)
        if node is not None:
            self._renew()

    def _observe_prefills(self, node: "_Node", snapshot: Snapshot, taken_at_s: float) -> None:
        tokens, seconds = snapshot.prefill_tokens_total, snapshot.prefill_seconds_total
        if tokens is None or seconds is None:
            return
        before, node.counters = node.counters, (tokens, seconds, snapshot.first_tokens_total or 0, taken_at_s)
        if before is None:
            return
        new_tokens, waited_s, firsts = (now - then for now, then in zip(node.counters[:3], before[:3], strict=True))
        passed_s = taken_at_s - before[3]
        if min(new_tokens, waited_s, firsts) < 0 or passed_s <= 0:
            return  # a data-parallel engine may have gone: counting goes on from here
        # What one interval can do is bounded by the time that it lasted.
        tokens_max = OUTLIER * max(self.prefill_tokens_per_s, self._expected.prefill_tokens_per_s) * passed_s
        node.prefills.add(min(new_tokens, tokens_max), firsts, waited_s, passed_s)
        self._changed()
        if firsts:
            mean = new_tokens / firsts
            share = min(1.0, firsts / 32)
            node.tokens_mean = (
                mean if node.tokens_mean is None else node.tokens_mean + share * (mean - node.tokens_mean)
            )

    def _observe_decode(self, node: "_Node", decode_s: float) -> None:
        step_s = min(decode_s, node.step_s * STEP_RISE)
        if (decode_s, step_s) != (node.decode_s, node.step_s):
            node.decode_s, node.step_s = decode_s, step_s
            self._changed()

    def _changed(self) -> None:
        """A node has told something else; not at each is the fleet's made anew: that would cost the square of all."""
        self._changes += 1
        if self._changes * CHANGED_SHARE >= len(self._nodes):
            self._renew()

    def _renew(self) -> None:
        self._changes = 0
        nodes, expected = self._nodes.values(), self._expected
        told_s = [(one.decode_s, one.step_s) for one in nodes if one.decode_s is not None]
        decodes_s = _alike([decode_s for decode_s, _ in told_s], expected.decode_s_per_token)
        steps_s = _alike([step_s for _, step_s in told_s], expected.decode_s_per_token)
        self.decode_s_per_token = fsum(decodes_s) / len(decodes_s)
        self._step_s = min(*steps_s, STEP_S_MAX)
        prior = PRIOR_S * expected.prefill_tokens_per_s
        done = [(one.prefills.tokens, one.prefills.beside_s(self._step_s)) for one in nodes if one.prefills.tokens]
        rates = [(prior + tokens) / (PRIOR_S + beside_s) for tokens, beside_s in done]
        alike = set(_alike(rates, expected.prefill_tokens_per_s))
        counted = [one for one, rate in zip(done, rates, strict=True) if rate in alike]
        tokens, beside_s = fsum(tokens for tokens, _ in counted), fsum(beside_s for _, beside_s in counted)
        self.prefill_tokens_per_s = (prior + tokens) / (PRIOR_S + beside_s)


def _alike(told: list[float], assumed: float) -> list[float]:
    """Without those that no other confirms: what is further from the median than `SPREAD` times."""
    if not told:
        return [assumed]
    middle = median_low(told)
    return [one for one in told if middle / SPREAD <= one <= middle * SPREAD]


class _Node:
    __slots__ = ("counters", "decode_s", "prefills", "step_s", "tokens_mean", "trust")

    def __init__(self) -> None:
        self.counters: tuple[float, float, float, float] | None = None
        """The engine's prefill tokens, their seconds and requests, and when they were read."""
        self.prefills = _Prefills()
        self.trust = _Trust()
        self.tokens_mean: float | None = None
        self.decode_s: float | None = None
        self.step_s = float("inf")
        """The shortest decode time lately."""


class _Prefills:
    """What was computed, and how long that took."""

    __slots__ = ("_busy_before_s", "_span_s", "_span_waited_s", "firsts", "tokens", "waited_s")

    def __init__(self) -> None:
        self.tokens = 0.0
        self.firsts = 0.0
        self.waited_s = 0.0
        """Σ of the times to the first token."""
        self._busy_before_s = 0.0
        """In the spans before this one."""
        self._span_waited_s = 0.0
        self._span_s = 0.0
        """How long this span has lasted."""

    @property
    def busy_s(self) -> float:
        if not self._span_waited_s:
            return self._busy_before_s
        return self._busy_before_s + self._span_waited_s * self._span_s / (self._span_waited_s + self._span_s)

    def slowness(self, rate: float, step_s: float) -> float:
        """How many times longer it took than at this rate."""
        busy_s = self.busy_s
        expected_s = self._steps_s(busy_s, step_s) + self.tokens / rate
        return min(max((busy_s + PRIOR_S) / (expected_s + PRIOR_S), 1 / OUTLIER), OUTLIER)

    def add(self, tokens: float, firsts: float, waited_s: float, passed_s: float) -> None:
        self.tokens += tokens
        self.firsts += firsts
        self.waited_s += waited_s
        self._span_waited_s += waited_s
        self._span_s += passed_s
        busy_s = self.busy_s
        if self._span_s > SPAN_S or busy_s > WINDOW_S:
            self._busy_before_s, self._span_waited_s, self._span_s = busy_s, 0.0, 0.0
        if busy_s > WINDOW_S:
            self.tokens, self.firsts, self.waited_s = self.tokens / 2, self.firsts / 2, self.waited_s / 2
            self._busy_before_s = busy_s / 2

    def beside_s(self, step_s: float) -> float:
        """The busy seconds beside the waits for steps, which are nine tenths of them at most."""
        busy_s = self.busy_s
        return max(busy_s - self._steps_s(busy_s, step_s), busy_s / 10)

    def _steps_s(self, busy_s: float, step_s: float) -> float:
        """The waits for steps, as far as they were not at the same time."""
        alone = busy_s / self.waited_s if self.waited_s else 1.0
        return self.firsts * STEPS_WAITED * step_s * alone


class _Trust:
    """Hits that came over hits that were expected."""

    __slots__ = ("expected", "hits", "hits_total", "queries", "told")

    def __init__(self) -> None:
        self.expected = 0.0
        self.hits = 0.0
        self.told = 0.0
        """Hits expected of requests that ended since the latest report: no more than was looked up there count, for a
        request that was refused or hung up was never looked up."""
        self.queries: int | None = None
        self.hits_total: int | None = None

    @property
    def share(self) -> float:
        if self.hits_total is None:
            return 1.0
        share = (self.hits + TRUST_PRIOR_TOKENS) / (self.expected + TRUST_PRIOR_TOKENS)
        return 1.0 if share >= TRUST_MIN else share

    def observe(self, hits_total: int | None, queries_total: int | None) -> None:
        if hits_total is None:
            return
        before, self.hits_total = self.hits_total, hits_total
        asked = None if queries_total is None or self.queries is None else max(0, queries_total - self.queries)
        self.queries = queries_total
        self.expected += self.told if asked is None else min(self.told, asked)
        self.told = 0.0
        if before is None or hits_total < before:
            self.hits = self.expected = 0.0
            return
        self.hits += hits_total - before
        if max(self.expected, self.hits) > TRUST_WINDOW_TOKENS:
            self.hits, self.expected = self.hits / 2, self.expected / 2
