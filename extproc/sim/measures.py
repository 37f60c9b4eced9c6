"""What a simulated run gives: from what happened to each request to the figures of a table.

Sums are `math.fsum`'s: Python 3.12 changed how `sum` rounds, and the same run gives the same figures on every version.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from extproc.sim.steptime import StepCost

TTFT_OBJECTIVE_S: Final = 2.0
"""A first token that comes sooner is in time, however short the prompt."""
TTFT_OBJECTIVE_FACTOR: Final = 5.0
"""Times the isolated prefill: long prompts may take longer."""
TPOT_OBJECTIVE_S: Final = 0.1
STEP_TOKENS_MAX: Final = 8192
"""Of the idle engine that requests are compared with."""


class Isolated(Struct, frozen=True):
    """How long a request takes on an engine that is idle, and has none of its prompt cached."""

    prefill_s: float
    """To its first token."""
    e2e_s: float
    """To its last."""


class Served(Struct, frozen=True):
    """What became of one request. Times are those of the simulation's one clock."""

    arrival: int
    """Its place in the list of arrivals."""
    node: str
    """Who had it last; empty if nobody."""
    sent_s: float
    """When the client sent it."""
    first_token_s: float | None
    finished_s: float | None
    """When its last token came; `None`: it never did."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """Prompt tokens that its engine found in its cache."""
    refused: bool
    """By the router: no node was to have it."""
    failed: bool
    """Its node answered an error, or never."""
    isolated_prefill_s: float
    isolated_e2e_s: float
    priority: str = ""
    """Its class, where the run has priorities."""
    queued_s: float = 0.0
    """How long its router kept it before it was sent on; 0 if it was refused."""

    @property
    def complete(self) -> bool:
        """Whether the client has the whole answer."""
        return not (self.refused or self.failed or self.first_token_s is None or self.finished_s is None)

    @property
    def ttft_s(self) -> float:
        """Of a complete request: time to first token."""
        assert self.first_token_s is not None
        return self.first_token_s - self.sent_s

    @property
    def tpot_s(self) -> float:
        """Of a complete request: mean gap between tokens, (e2e − ttft) / (output tokens − 1); 0 if there is none."""
        assert self.first_token_s is not None
        assert self.finished_s is not None
        return (self.finished_s - self.first_token_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    @property
    def slowdown(self) -> float:
        """Of a complete request: its time from end to end / the same isolated."""
        assert self.finished_s is not None
        return (self.finished_s - self.sent_s) / self.isolated_e2e_s

    @property
    def good(self) -> bool:
        """Whether it met both objectives; what is not complete did not."""
        return (
            self.complete
            and self.ttft_s < max(TTFT_OBJECTIVE_S, TTFT_OBJECTIVE_FACTOR * self.isolated_prefill_s)
            and self.tpot_s < TPOT_OBJECTIVE_S
        )


class ClassMeasures(Struct, frozen=True):
    """The figures of the requests of one class."""

    requests: int
    refused: int
    ngood: float | None
    """As that of a run; `None` without a request."""
    ngood_accepted: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    queued_p90_s: float | None
    """Wait at the router, of the complete requests."""


class Measures(Struct, frozen=True):
    """The figures of one run. Those of times are of the complete requests; `None` where there is none."""

    requests: int
    refused: int
    failed: int
    """Not refused, and not complete when the run ended."""
    ngood: float
    """Share 0..1 of all requests that were good, see `Served.good`."""
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    """Of the answers of two tokens or more."""
    slowdown: float | None
    """Mean of `Served.slowdown`."""
    preemptions: int
    prefix_hit_share: float
    """Share 0..1 of the complete requests' prompt tokens that were found in a cache."""
    node_shares: dict[str, float]
    """Share 0..1 of the requests that went to a node, for each node."""
    ngood_accepted: float | None = None
    """Share 0..1 of the requests that were not refused that were good; `None` where all were refused."""
    classes: dict[str, ClassMeasures] = {}
    """Of each class, the highest first; none without priorities."""


def isolated(
    prompt_tokens: int, output_tokens: int, cost: StepCost, step_tokens_max: int = STEP_TOKENS_MAX
) -> Isolated:
    """What an engine of speed 1 with these step costs gives a request that is alone; both numbers at least 1.

    In closed form: the chunks' attention pairs add up to prompt²/2 however the prompt is cut, and the k-th of the
    output − 1 steps after the first token reads prompt + k tokens.
    """
    assert prompt_tokens >= 1
    assert output_tokens >= 1
    chunks = -(-prompt_tokens // step_tokens_max)
    prefill_s = (
        cost.step_s * chunks
        + cost.prefill_token_s * prompt_tokens
        + cost.attention_pair_s * prompt_tokens * prompt_tokens / 2
    )
    steps = output_tokens - 1
    kv_tokens_read = steps * prompt_tokens + steps * (steps + 1) // 2
    decode_s = (cost.step_s + cost.decoding_sequence_s) * steps + cost.kv_token_s * kv_tokens_read
    return Isolated(prefill_s, prefill_s + decode_s)


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """The nearest rank: the smallest value that at least so many percent of the ascending values do not exceed.

    Always one of the values; `None` of none. `percent` is 1 to 100.
    """
    assert 1 <= percent <= 100
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else None


def measure(served: Sequence[Served], preemptions: int, nodes: Iterable[str], classes: Iterable[str] = ()) -> Measures:
    """The figures of a run, at least one request.

    `nodes` names every node, also those that got nothing; the shares are in its order. So are those of `classes`.
    """
    assert served
    complete = [one for one in served if one.complete]
    ttfts = sorted(one.ttft_s for one in complete)
    refused = sum(one.refused for one in served)
    prompt_tokens = sum(one.prompt_tokens for one in complete)
    sent = Counter(one.node for one in served if one.node)
    return Measures(
        requests=len(served),
        refused=refused,
        failed=len(served) - len(complete) - refused,
        ngood=sum(one.good for one in served) / len(served),
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p90_s=percentile(ttfts, 90),
        ttft_p99_s=percentile(ttfts, 99),
        tpot_p99_s=percentile(sorted(one.tpot_s for one in complete if one.output_tokens > 1), 99),
        slowdown=math.fsum(one.slowdown for one in complete) / len(complete) if complete else None,
        preemptions=preemptions,
        prefix_hit_share=sum(one.cached_tokens for one in complete) / prompt_tokens if prompt_tokens else 0.0,
        node_shares={node: sent[node] / sent.total() if sent else 0.0 for node in nodes},
        ngood_accepted=_good_share(one for one in served if not one.refused),
        classes={name: _of_class([one for one in served if one.priority == name]) for name in classes},
    )


def _of_class(served: Sequence[Served]) -> ClassMeasures:
    complete = [one for one in served if one.complete]
    ttfts = sorted(one.ttft_s for one in complete)
    return ClassMeasures(
        requests=len(served),
        refused=sum(one.refused for one in served),
        ngood=_good_share(served),
        ngood_accepted=_good_share(one for one in served if not one.refused),
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p90_s=percentile(ttfts, 90),
        ttft_p99_s=percentile(ttfts, 99),
        queued_p90_s=percentile(sorted(one.queued_s for one in complete), 90),
    )


def _good_share(served: Iterable[Served]) -> float | None:
    good = [one.good for one in served]
    return sum(good) / len(good) if good else None
