"""What is learned of each node from what nodes report."""

from math import fsum
from statistics import median_low

from extproc.core.cachetrust import CacheTrust
from extproc.core.prefills import PRIOR_S, Prefills
from extproc.core.settings import ExpectedRates
from extproc.core.snapshot import Learned, Snapshot

STEP_S_MAX = 0.2
"""A longer step is one of prefill, by whatever average a node tells."""
STEP_RISE = 1.02
"""So many times longer the shortest step of a node is taken to be with each report that tells of longer ones."""
OUTLIER = 16.0
"""No interval counts for more tokens than so many times the fleet's rate would compute."""
SPREAD = 8.0
"""What a node tells says nothing of the others if it is so many times less or more than the median."""
RENEWED_AT_ONCE = 4
"""What is known of a fleet of so many nodes is made anew with each report; of a larger one about once a round."""


class LearnedRates:
    """Rates, learned robustly and forgotten when an engine begins anew.

    prefill rate    the fleet's rate / the node's slowness: how many times longer it takes than the fleet would
    fleet's rate    computed tokens / (busy seconds - waits for steps), begun with PRIOR_S seconds of the configured one
    slowness        see `Prefills`, as for busy seconds and waits for steps
    a step          the shortest decode time that the nodes reported lately: where prompts share the steps, a second's
                    mean is many times as long, and would change all rates at once
    decode time     the latest mean that the node reported

    What is known of the fleet is known from the nodes that are like most, within SPREAD of their median: whatever one
    tells of itself, by fault or malice, it says little of the others. Of a node that does not tell how long its prompts
    are they are taken to be as long as any of these has them.

    State: what each node told; the fleet's rate, decode time, step and longest prompts.
    """

    def __init__(self, expected: ExpectedRates) -> None:
        self._expected = expected
        self._nodes: dict[str, _Node] = {}
        self.prefill_tokens_per_s = expected.prefill_tokens_per_s
        """Of the fleet, as the next; the configured ones until a node reports them."""
        self.decode_s_per_token = expected.decode_s_per_token
        self._step_s = min(expected.decode_s_per_token, STEP_S_MAX)
        self.busy_s = 0.0
        """Seconds in which nodes computed prompts, halved with what was learned of them."""
        self._tokens_mean_most = float(expected.prefill_tokens)
        self._changes = 0
        """Of nodes, since what is known of the fleet was made."""

    def of(self, node_id: str) -> Learned:
        """What is known of a node; of one that never reported it is what is assumed."""
        node = self._nodes.get(node_id)
        fleets = self.prefill_tokens_per_s
        if node is None:
            return Learned(fleets, float(self._expected.prefill_tokens))
        mean = node.tokens_mean
        if mean is None:
            mean = self._tokens_mean_most if node.hides_prompts else float(self._expected.prefill_tokens)
        slowness = node.prefills.slowness(fleets, self._step_s)
        return Learned(fleets / slowness, mean, node.decode_s, node.trust.share, node.told_trust.share)

    def observe(self, snapshot: Snapshot, taken_at_s: float) -> Learned:
        """Take a node's report; what it does not tell stays as it was."""
        node = self._nodes.get(snapshot.node_id)
        if node is None:
            node = self._nodes[snapshot.node_id] = _Node()
        self._observe_prefills(node, snapshot, taken_at_s)
        for trust in (node.trust, node.told_trust):
            trust.observe(snapshot.prefix_hits_total, snapshot.prefix_queries_total)
        if snapshot.decode_ms_per_token:
            self._observe_decode(node, snapshot.decode_ms_per_token / 1000)
        return self.of(snapshot.node_id)

    def expected_hits(self, node_id: str, tokens: int, told_tokens: int = 0) -> None:
        """A request is over of which we expected so many tokens in the node's cache, and so many by what it told."""
        node = self._nodes.get(node_id)
        if node is not None:
            node.trust.told += tokens
            node.told_trust.told += told_tokens

    def forget(self, node_id: str) -> None:
        """The node is a member no more, or its engine began anew."""
        node = self._nodes.pop(node_id, None)
        if node is not None:
            self._changed()

    def _observe_prefills(self, node: "_Node", snapshot: Snapshot, taken_at_s: float) -> None:
        tokens, seconds = snapshot.prefill_tokens_total, snapshot.prefill_seconds_total
        node.hides_prompts = tokens is None or seconds is None or snapshot.first_tokens_total is None
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
        tokens_max = OUTLIER * self.prefill_tokens_per_s * passed_s
        new_tokens = min(new_tokens, tokens_max)
        node.prefills.add(new_tokens, firsts, waited_s, passed_s)
        if new_tokens or waited_s:
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
        """A node has told something else, or has gone; were the fleet's made anew each time, it would cost the square
        of all."""
        self._changes += 1
        if self._changes > len(self._nodes) - RENEWED_AT_ONCE:
            self._renew()

    def _renew(self) -> None:
        self._changes = 0
        nodes, expected = self._nodes.values(), self._expected
        decodes_s = [one.decode_s for one in nodes if one.decode_s is not None]
        steps_s = [one.step_s for one in nodes if one.decode_s is not None]
        least_s, most_s = _alike(decodes_s)
        alike_s = [one for one in decodes_s if least_s <= one <= most_s] or [expected.decode_s_per_token]
        self.decode_s_per_token = fsum(alike_s) / len(alike_s)
        least_s, _ = _alike(steps_s)
        self._step_s = min((one for one in steps_s if one >= least_s), default=expected.decode_s_per_token)
        self._step_s = min(self._step_s, STEP_S_MAX)
        means = [one.tokens_mean for one in nodes if one.tokens_mean is not None]
        least, most = _alike(means)
        alike = [mean for mean in means if least <= mean <= most]
        self._tokens_mean_most = max([*alike, float(expected.prefill_tokens)])
        prior = PRIOR_S * expected.prefill_tokens_per_s
        done = [(one.prefills.tokens, one.prefills.beside_s(self._step_s)) for one in nodes if one.prefills.tokens]
        rates = [(prior + tokens) / (PRIOR_S + beside_s) for tokens, beside_s in done]
        least, most = _alike(rates)
        counted = [one for one, rate in zip(done, rates, strict=True) if least <= rate <= most]
        self.busy_s = fsum(one.prefills.busy_s for one in nodes)
        tokens, beside_s = fsum(tokens for tokens, _ in counted), fsum(beside_s for _, beside_s in counted)
        self.prefill_tokens_per_s = (prior + tokens) / (PRIOR_S + beside_s)


def _alike(told: list[float]) -> tuple[float, float]:
    """The least and the most that others confirm."""
    middle = median_low(told) if told else 0.0
    return middle / SPREAD, middle * SPREAD


class _Node:
    __slots__ = ("counters", "decode_s", "hides_prompts", "prefills", "step_s", "tokens_mean", "told_trust", "trust")

    def __init__(self) -> None:
        self.counters: tuple[float, float, float, float] | None = None
        """The engine's prefill tokens, their seconds and requests, and when they were read."""
        self.prefills = Prefills()
        self.trust = CacheTrust()
        self.told_trust = CacheTrust()
        """Of hits that follow from its blocks. Those that follow from nothing it told are to its credit."""
        self.tokens_mean: float | None = None
        self.hides_prompts = False
        self.decode_s: float | None = None
        self.step_s = float("inf")
        """The shortest decode time lately."""
