"""What a node can do in a second, from how long its steps last."""

from typing import Final

from extproc.core.capacity import DECODE_TOKENS, NodePower
from extproc.core.settings import ExpectedRates
from extproc.core.snapshot import NodeView, Snapshot

PRIOR_S: Final = 10.0
"""The rate that the balancer has learned weighs as much as so many seconds of work."""
PRIOR_SHARE: Final = 0.8
"""Of that rate: it is made to compare nodes, and was 1.1 to 1.4 times what they could do."""
WINDOW_S: Final = 300.0
"""Seconds of work after which what was seen so far counts half."""
SHORTEST_S: Final = 6 * 3600.0
"""The shortest step of the last so many seconds, or up to twice as many, is taken to be one with nearly nothing: every
node has a quiet minute in a day, and its first ones."""
WORK_MIN: Final = 0.2
"""Where less of the time went into work it is not told from chance."""
GAP_S_MAX: Final = 60.0
"""Over a longer time without a report nothing is concluded."""
DECODES_MIN: Final = 2.0
"""With fewer answers under way a node may have been idle between steps."""
OFF_MAX: Final = 4.0
"""A node is taken to be no more times faster or slower than the rate that the balancer has learned."""


class NodePaces:
    """For each node tokens of work and the seconds that they took.

    A step lasts c0 + work. So of the time T between two reports, in which steps lasted s on the average, T·(1 - c0/s)
    went into work: the prompt tokens that were computed, and `DECODE_TOKENS` for each token of answers, of which
    decoding sequences · T/s came. Unlike the balancer's rates, which have to compare nodes, it assumes nothing about
    queues; it says nothing of a node that is hardly used, or always as much.

    State: sums for each member.
    """

    def __init__(self, rates: ExpectedRates) -> None:
        self._rates = rates
        self._nodes: dict[str, _Pace] = {}

    def observe(self, view: NodeView) -> None:
        """A node's report came; `view` shows it."""
        snapshot = view.snapshot
        pace = self._nodes.get(snapshot.node_id)
        if pace is None or pace.latest.boot_id != snapshot.boot_id:
            self._nodes[snapshot.node_id] = pace = _Pace(view)
        else:
            pace.add(view)

    def of(self, view: NodeView) -> NodePower:
        """What a member can do, by the latest that is known."""
        pace, learned = self._nodes.get(view.snapshot.node_id), view.learned.prefill_tokens_per_s
        kv_tokens = _kv_tokens(view.snapshot)
        if pace is None:
            return NodePower(PRIOR_SHARE * learned, self._rates.decode_s_per_token, kv_tokens)
        rate = (PRIOR_S * PRIOR_SHARE * learned + pace.tokens) / (PRIOR_S + pace.seconds)
        step_s = pace.shortest_s or self._rates.decode_s_per_token
        return NodePower(min(max(rate, learned / OFF_MAX), learned * OFF_MAX), step_s, kv_tokens)

    def forget(self, node_id: str) -> None:
        """The node is a member no more."""
        self._nodes.pop(node_id, None)


def _kv_tokens(snapshot: Snapshot) -> float | None:
    if not snapshot.kv_blocks_total or not snapshot.kv_block_size_tokens:
        return None
    return float(snapshot.kv_blocks_total * snapshot.kv_block_size_tokens)


class _Pace:
    __slots__ = ("_before_s", "_now_s", "_sampled_at_s", "_since_s", "latest", "seconds", "tokens")

    def __init__(self, view: NodeView) -> None:
        self.latest = view.snapshot
        self._sampled_at_s = self._since_s = view.sampled_at_s
        self.tokens = 0.0
        self.seconds = 0.0
        self._now_s = self._before_s = float("inf")
        """The shortest step since `_since_s`, and in the `SHORTEST_S` before that."""
        self._step(view)

    @property
    def shortest_s(self) -> float | None:
        """The shortest step lately; `None`: the node told of none."""
        shortest_s = min(self._now_s, self._before_s)
        return shortest_s if shortest_s < float("inf") else None

    def add(self, view: NodeView) -> None:
        before, now = self.latest, view.snapshot
        passed_s = view.sampled_at_s - self._sampled_at_s
        if passed_s <= 0:
            return  # engines tell of their last finished step: nothing has moved since
        self.latest, self._sampled_at_s = now, view.sampled_at_s
        step_s = self._step(view)
        if step_s is None or passed_s > GAP_S_MAX:
            return
        if before.prefill_tokens_total is None or now.prefill_tokens_total is None:
            return
        computed = now.prefill_tokens_total - before.prefill_tokens_total
        decodes = ((before.active_decodes or 0) + (now.active_decodes or 0)) / 2
        if computed < 0 or decodes < DECODES_MIN:
            return
        share = 1 - (self.shortest_s or 0.0) / step_s
        if share < WORK_MIN:
            return
        self.tokens += computed + DECODE_TOKENS * decodes * passed_s / step_s
        self.seconds += passed_s * share
        if self.seconds > WINDOW_S:
            self.tokens, self.seconds = self.tokens / 2, self.seconds / 2

    def _step(self, view: NodeView) -> float | None:
        """How long the node's steps lasted, as far as it tells."""
        if view.sampled_at_s - self._since_s > SHORTEST_S:
            self._before_s, self._now_s, self._since_s = self._now_s, float("inf"), view.sampled_at_s
        if not view.snapshot.decode_ms_per_token:
            return None
        step_s = view.snapshot.decode_ms_per_token / 1000
        self._now_s = min(self._now_s, step_s)
        return step_s
