"""Nodes that serve the same models, and the work that lies on them.

Each model's work is spread evenly over the ready nodes that serve it, and a model needs as many nodes as carry all the
work that lies on its own. So models that are served by the same nodes need the same number, which is that of the pool:
it is the number of nodes to have, and not to be added up over models.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import zip_longest
from math import fsum, sqrt
from statistics import fmean, median

from msgspec import Struct

from extproc.core.capacity import Bursts, NodePower
from extproc.core.filters import freshness
from extproc.core.nodepace import NodePaces
from extproc.core.settings import NodeLimits
from extproc.core.snapshot import Freshness, NodeState, NodeView


class Load(Struct, frozen=True):
    """One model's work, in seconds of its mean node."""

    ahead: tuple[float, ...]
    """What is expected in a second, now and at some times ahead, the same for all."""
    variances: tuple[float, ...]
    """Of what comes in each of `capacity.SPANS_S`, or the first of them."""
    peaks: tuple[float, ...]
    """The most of it."""
    nodes_ready: int
    power: NodePower
    """Of its mean node."""
    wait_s: float
    """How long a request may wait for its first token behind others."""
    requests_per_s: float = 0.0
    prompt_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0


class Pool:
    """Nodes that serve the same models."""

    __slots__ = ("ahead", "coming", "models", "others", "peaks", "ready", "variances")

    def __init__(self, models: frozenset[str]) -> None:
        self.models = models
        self.ready: list[NodePower] = []
        self.others: list[NodePower] = []
        """Loading, draining, or silent for too long."""
        self.coming = 0
        """Loading."""
        self.ahead: tuple[float, ...] = ()
        """The work that lies here, as in `Load`."""
        self.variances: tuple[float, ...] = ()
        self.peaks: tuple[float, ...] = ()

    def add(self, state: NodeState, power: NodePower) -> None:
        """A node of it."""
        (self.ready if state is NodeState.READY else self.others).append(power)
        self.coming += state is NodeState.LOADING

    def carry(self, loads: Mapping[str, Load]) -> None:
        """Take this pool's share of the work of its models, whose bursts come independently of each other."""
        shares = [
            (load, len(self.ready) / load.nodes_ready)
            for load in map(loads.__getitem__, sorted(self.models & loads.keys()))
            if load.nodes_ready
        ]
        self.ahead = _added(tuple(share * one for one in load.ahead) for load, share in shares)
        self.variances = _added(tuple(share * share * one for one in load.variances) for load, share in shares)
        self.peaks = _added(tuple(share * one for one in load.peaks) for load, share in shares)


def pools_of(
    nodes: Iterable[NodeView], asked: Collection[str], paces: NodePaces, limits: NodeLimits, now_s: float
) -> list[Pool]:
    """All nodes, by what they serve.

    Engines tell what they serve once they are ready. Where all that told serve the same, so will those that did not;
    where none told, they may serve what is asked for.
    """
    pools: dict[frozenset[str], Pool] = {}
    untold: list[tuple[NodeState, NodePower]] = []
    for view in nodes:
        state = view.snapshot.state
        if freshness(now_s - view.sampled_at_s, limits) is Freshness.UNKNOWN:
            state = NodeState.DRAINING  # who says nothing for so long may be gone
        if view.context_lengths is None:
            untold.append((state, paces.of(view)))
            continue
        models = frozenset(view.context_lengths)
        pool = pools.get(models)
        if pool is None:
            pool = pools[models] = Pool(models)
        pool.add(state, paces.of(view))
    found = list(pools.values())
    if untold and len(found) <= 1:
        found = found or [Pool(frozenset(asked))]
        for state, power in untold:
            found[0].add(state, power)
    return found


def mean_power(pools: Collection[Pool], assumed: NodePower) -> NodePower:
    """Of the ready nodes, else of the others, else what is assumed."""
    powers = [one for pool in pools for one in pool.ready] or [one for pool in pools for one in pool.others]
    if not powers:
        return assumed
    known = [one.kv_tokens for one in powers if one.kv_tokens is not None]
    return NodePower(
        fmean(one.tokens_per_s for one in powers),
        median(one.step_s for one in powers),
        fmean(known) if known else None,
    )


def together(pools: Collection[Pool]) -> tuple[tuple[float, ...], Bursts]:
    """The work that lies on several pools, and its bursts: those of the same models come to all at once."""
    ready = [pool for pool in pools if pool.ready]
    deviations = _added(tuple(sqrt(one) for one in pool.variances) for pool in ready)
    return _added(pool.ahead for pool in ready), Bursts(deviations, _added(pool.peaks for pool in ready))


def _added(rows: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    """The sums of their columns."""
    return tuple(map(fsum, zip_longest(*rows, fillvalue=0.0)))
