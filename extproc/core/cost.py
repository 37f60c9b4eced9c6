"""What a request costs a node: the strategies.

A strategy is a function from a request and the nodes that may serve it to one cost for each node, lower is
better. It sees all candidates at once, so that a signal that one of them lacks can be left out for all: what
is absent never favours the node that hides it. A new strategy is one function and one line in `STRATEGIES`.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field
from xxhash import xxh3_64_intdigest

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


class Prospects(Struct, frozen=True):
    """One request before the nodes that may take it. Lists have one item for each node."""

    request_id: str
    phase: Phase
    turn: int
    """How many requests of the same policy for the same model were sent before."""
    nodes: Sequence[NodeView]
    uncached_tokens: Sequence[int]
    """Prompt tokens that the node would have to compute, at least 1: u."""
    tokens_ahead: Sequence[float]
    """Prompt tokens that the node has to compute before: W."""
    prefill_tokens_per_s: Sequence[float]
    """The node's learned rate, less while it starts: r."""
    output_tokens: int = 0
    """Expected length of the answer: o."""
    first_token_weight: float = 2.0
    """How much a second of this request's own wait counts against a second of others' delay: w."""
    crowding_weight: float = 0.125
    """How much a second of prompt work ahead counts for each sequence that it holds up: c."""
    output_token_weight: float = 2.0
    """Tokens of prefill that hold up others as much as a token of the answer: v."""
    load_score: LoadScoreWeights = LoadScoreWeights()
    in_flight: Sequence[int] = ()
    """Sequences at the node: n. Empty: those of its view."""
    unsure: frozenset[str] = frozenset()
    """Nodes that come last: they may serve it, and others are known to."""


Strategy = Callable[[Prospects], list[float]]


def least_added_delay(prospects: Prospects) -> list[float]:
    """Seconds of delay that the request adds: its own wait for the first token, and what its work does to others.

    cost = ((w + c·n)·W + (u + v·o)·(1 + n)) / r

    W is the prompt work ahead of it in tokens, u its own, o the expected length of its answer, n the sequences at the
    node, r the node's prefill rate. w·W/r + u/r is its wait for the first token, u·n/r the time by which its prefill
    holds up the n others, v·o·n/r the time by which its decoding and theirs hold each other up: in a step a decoding
    sequence costs about as much as a token and a half of prefill, and holds up and is held up. c·n·W/r keeps it from
    where many are held up already: harm to a few is worse than the same harm to many. So a request that is heavy on
    prefill avoids nodes with many decodes and queued prefills, one that is not hardly minds, and one with a long answer
    keeps to where few are. Source: a simulation of vLLM-like engines on public traces, docs/results.md.
    """
    wait, crowding = prospects.first_token_weight, prospects.crowding_weight
    answer = prospects.output_token_weight * prospects.output_tokens
    return [
        ((wait + crowding * there) * ahead + (uncached + answer) * (1 + there)) / rate
        for there, uncached, ahead, rate in zip(
            prospects.in_flight or _in_flight(prospects.nodes),
            prospects.uncached_tokens,
            prospects.tokens_ahead,
            prospects.prefill_tokens_per_s,
            strict=True,
        )
    ]


def lmetric(prospects: Prospects) -> list[float]:
    """Prompt work ahead and its own, times the sequences that it would make there. Source: arXiv 2603.15202.

    cost = (W + u)·(n + 1)
    """
    return [
        (ahead + uncached) * (there + 1)
        for there, uncached, ahead in zip(
            prospects.in_flight or _in_flight(prospects.nodes),
            prospects.uncached_tokens,
            prospects.tokens_ahead,
            strict=True,
        )
    ]


def least_inflight(prospects: Prospects) -> list[float]:
    """Sequences at the node, as in Envoy's LEAST_REQUEST, but of all routers and of whole answers."""
    return [float(there) for there in prospects.in_flight or _in_flight(prospects.nodes)]


def power_of_two(prospects: Prospects) -> list[float]:
    """The less loaded of two nodes thrown by the request's id. Source: Mitzenmacher, IEEE TPDS 12(10), 2001."""
    costs = [float("inf")] * len(prospects.nodes)
    there = prospects.in_flight or _in_flight(prospects.nodes)
    for index in sorted(range(len(costs)), key=_thrown(prospects).__getitem__)[:2]:
        costs[index] = float(there[index])
    return costs


def round_robin(prospects: Prospects) -> list[float]:
    """Each node in its turn, by node id."""
    count = len(prospects.nodes)
    costs = [0.0] * count
    for place, index in enumerate(sorted(range(count), key=lambda one: prospects.nodes[one].snapshot.node_id)):
        costs[index] = float((place - prospects.turn) % count)
    return costs


def random(prospects: Prospects) -> list[float]:
    """A number thrown by the request's id and the node's."""
    return [float(number) for number in _thrown(prospects)]


def load_score(prospects: Prospects) -> list[float]:
    """Points for KV use, waiting requests, colliding prefills and a busy GPU; needs no rates and no history.

    cost = 40·kv_usage + 5·waiting + (30 if a prefill-heavy request meets pending prefills)
         + 100·max(0, gpu - 0.85)

    Requests that we sent since the node's sample was taken count as waiting prefills, and their blocks as in
    use: without them every request between two snapshots would go to the same node. Source: the weights are
    those of the formula this project began with, its KV term with the sign that prefers empty nodes.
    """
    nodes, weights = prospects.nodes, prospects.load_score
    snapshots = [node.snapshot for node in nodes]
    unseen = [node.own.sequences_unseen for node in nodes]
    costs = [weights.requests_waiting * count for count in unseen]
    if all(one.kv_blocks_total and one.kv_block_size_tokens for one in snapshots):
        _add(costs, weights.kv_usage, [kv_usage_expected(node) for node in nodes])
    else:
        _add(costs, weights.kv_usage, [one.kv_usage for one in snapshots])
    _add(costs, weights.requests_waiting, [one.requests_waiting for one in snapshots])
    if prospects.phase is Phase.PREFILL_HEAVY:
        known = all(one.pending_prefills is not None for one in snapshots)
        pending = [one.pending_prefills if known else 0 for one in snapshots]
        _add(
            costs, weights.prefill_collision, [bool(own or theirs) for own, theirs in zip(unseen, pending, strict=True)]
        )
    _add(costs, weights.gpu_over, [_over(one.gpu_utilization, weights.gpu_utilization_min) for one in snapshots])
    return costs


def _in_flight(nodes: Sequence[NodeView]) -> list[int]:
    return [node.in_flight for node in nodes]


def _thrown(prospects: Prospects) -> list[int]:
    """One number for each node, which the same request always throws."""
    seed = xxh3_64_intdigest(prospects.request_id.encode())
    return [xxh3_64_intdigest(node.snapshot.node_id.encode(), seed) for node in prospects.nodes]


def _add(costs: list[float], points: float, measures: Sequence[float | None]) -> None:
    """Add one term to every node's cost, or to none where a node lacks the signal."""
    if points and None not in measures:
        for index, measure in enumerate(measures):
            costs[index] += points * (measure or 0.0)


def _over(share: float | None, threshold: float) -> float | None:
    return None if share is None else max(0.0, share - threshold)


def kv_usage_expected(node: NodeView) -> float | None:
    """Share of the KV cache in use, with the requests that no sample shows yet and without those that ended since."""
    usage = node.snapshot.kv_usage
    if usage is not None and node.own.kv_blocks_unseen and node.snapshot.kv_blocks_total:
        usage = max(0.0, usage + node.own.kv_blocks_unseen / node.snapshot.kv_blocks_total)
    return usage


STRATEGIES: dict[str, Strategy] = {
    "least-added-delay": least_added_delay,
    "lmetric": lmetric,
    "load-score": load_score,
    "least-inflight": least_inflight,
    "power-of-two": power_of_two,
    "round-robin": round_robin,
    "random": random,
}
DEFAULT_STRATEGY = "least-added-delay"
