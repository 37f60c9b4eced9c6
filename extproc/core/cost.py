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
    kv = weights.kv_usage if all(one.kv_usage is not None for one in snapshots) else 0.0
    waiting = weights.requests_waiting if all(one.requests_waiting is not None for one in snapshots) else 0.0
    pending = all(one.pending_prefills is not None for one in snapshots)
    gpu = weights.gpu_over if all(one.gpu_utilization is not None for one in snapshots) else 0.0
    collision = weights.prefill_collision if phase is Phase.PREFILL_HEAVY else 0.0
    unseen_waiting = weights.requests_waiting
    gpu_min = weights.gpu_utilization_min
    costs = []
    for node, one in zip(nodes, snapshots, strict=True):
        own = node.own
        cost = own.requests_unseen * unseen_waiting
        if kv:
            cost += kv * kv_usage_expected(node)
        if waiting:
            cost += waiting * (one.requests_waiting or 0)
        if collision and (own.requests_unseen or (pending and one.pending_prefills)):
            cost += collision
        if gpu and (one.gpu_utilization or 0.0) > gpu_min:
            cost += gpu * ((one.gpu_utilization or 0.0) - gpu_min)
        costs.append(cost)
    return costs


def kv_usage_expected(node: NodeView) -> float:
    """Share of the KV cache in use once the requests that no sample shows yet have their blocks; 0 if unknown."""
    one = node.snapshot
    usage = one.kv_usage or 0.0
    if node.own.kv_blocks_unseen and one.kv_blocks_total:
        usage += node.own.kv_blocks_unseen / one.kv_blocks_total
    return usage


STRATEGIES: dict[str, Strategy] = {
    "load-score": load_score,
}
DEFAULT_STRATEGY = "load-score"
