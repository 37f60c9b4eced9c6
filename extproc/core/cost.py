"""What a request costs a node: the strategies.

A strategy is a function from a request and the nodes that may serve it to one cost for each node, lower is
better. It sees all candidates at once, so that a signal that one of them lacks can be left out for all: what
is absent never favours the node that hides it. A new strategy is one function and one line in `STRATEGIES`.
"""

from collections.abc import Callable, Sequence

from pydantic import BaseModel, ConfigDict, Field

from extproc.core.request import Phase
from extproc.core.snapshot import NodeView


class LoadScoreWeights(BaseModel):
    """Weights of strategy `load-score`, in points."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kv_usage: float = Field(40.0, ge=0, le=1e6)
    """Points for a full KV cache."""
    requests_waiting: float = Field(5.0, ge=0, le=1e6)
    """Points for each waiting request."""
    prefill_collision: float = Field(30.0, ge=0, le=1e6)
    """Points where a prefill-heavy request meets pending prefills."""
    gpu_over: float = Field(100.0, ge=0, le=1e6)
    """Points for GPU utilisation one whole over `gpu_utilization_min`."""
    gpu_utilization_min: float = Field(0.85, ge=0, le=1)
    """Utilisation from which the GPU term counts."""


Strategy = Callable[[Phase, Sequence[NodeView], LoadScoreWeights], list[float]]


def load_score(phase: Phase, nodes: Sequence[NodeView], weights: LoadScoreWeights) -> list[float]:
    """Points for KV use, waiting requests, colliding prefills and a busy GPU; needs no rates and no history.

    cost = 40·kv_usage + 5·waiting + (30 if a prefill-heavy request meets pending prefills)
         + 100·max(0, gpu - 0.85)

    Requests that we sent since the node's sample was taken count as waiting prefills, and their blocks as in
    use: without them every request between two snapshots would go to the same node. Source: the weights are
    those of the formula this project began with, its KV term with the sign that prefers empty nodes.
    """
    snapshots = [node.snapshot for node in nodes]
    unseen = [node.own.sequences_unseen for node in nodes]
    costs = [weights.requests_waiting * count for count in unseen]
    if all(one.kv_blocks_total and one.kv_block_size_tokens for one in snapshots):
        _add(costs, weights.kv_usage, [kv_usage_expected(node) for node in nodes])
    else:
        _add(costs, weights.kv_usage, [one.kv_usage for one in snapshots])
    _add(costs, weights.requests_waiting, [one.requests_waiting for one in snapshots])
    if phase is Phase.PREFILL_HEAVY:
        known = all(one.pending_prefills is not None for one in snapshots)
        pending = [one.pending_prefills if known else 0 for one in snapshots]
        _add(
            costs, weights.prefill_collision, [bool(own or theirs) for own, theirs in zip(unseen, pending, strict=True)]
        )
    _add(costs, weights.gpu_over, [_over(one.gpu_utilization, weights.gpu_utilization_min) for one in snapshots])
    return costs


def _add(costs: list[float], points: float, measures: Sequence[float | None]) -> None:
    """Add one term to every node's cost, or to none where a node lacks the signal."""
    if points and None not in measures:
        for index, measure in enumerate(measures):
            costs[index] += points * (measure or 0.0)


def _over(share: float | None, threshold: float) -> float | None:
    return None if share is None else max(0.0, share - threshold)


def kv_usage_expected(node: NodeView) -> float | None:
    """Share of the KV cache in use once the requests that no sample shows yet have their blocks."""
    usage = node.snapshot.kv_usage
    if usage is not None and node.own.kv_blocks_unseen and node.snapshot.kv_blocks_total:
        usage += node.own.kv_blocks_unseen / node.snapshot.kv_blocks_total
    return usage


STRATEGIES: dict[str, Strategy] = {
    "load-score": load_score,
}
DEFAULT_STRATEGY = "load-score"
