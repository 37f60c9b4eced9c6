"""Who may serve a request. A filter that says no says why, in a phrase for people."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from extproc.core.request import InferenceRequest
from extproc.core.settings import NodeLimits
from extproc.core.snapshot import Freshness, NodeState, NodeView


def freshness(age_s: float, limits: NodeLimits) -> Freshness:
    """How far a snapshot of this age can be trusted."""
    if age_s < limits.fresh_s:
        return Freshness.FRESH
    return Freshness.STALE if age_s < limits.stale_s else Freshness.UNKNOWN


def serving(nodes: Iterable[NodeView], model: str) -> list[NodeView]:
    """Nodes that list the model. Nodes whose list is not known may serve it too."""
    return [node for node in nodes if node.context_lengths is None or model in node.context_lengths]


def in_subset(nodes: Iterable[NodeView], subset: Collection[str]) -> list[NodeView]:
    """Nodes whose host is in a request's subset, or whose address is there for all ports."""
    return [node for node in nodes if not addresses_of(node.snapshot.host).isdisjoint(subset)]


def addresses_of(host: str) -> frozenset[str]:
    """What a subset may call a host: `ip:port`, and `ip` alone, an IPv6 address with or without brackets."""
    address = host.rpartition(":")[0]
    return frozenset((host, address, address.strip("[]")))


def is_listed(nodes: Iterable[NodeView], model: str) -> bool:
    """Whether a node says that it serves the model."""
    return any(node.context_lengths is not None and model in node.context_lengths for node in nodes)


def context_length_tokens(node: NodeView, model: str) -> int | None:
    """The node's context length for the model; `None` if not known."""
    return None if node.context_lengths is None else node.context_lengths.get(model)


def tokens_at_least(request: InferenceRequest) -> int:
    """Context that the request surely needs: an estimated prompt proves nothing, so only exact counts are used."""
    prompt_tokens = request.prompt.tokens if request.prompt.exact else 0
    return prompt_tokens + (request.output_tokens_max or 0)


def long_enough(nodes: Sequence[NodeView], request: InferenceRequest) -> Sequence[NodeView]:
    """Nodes whose context holds the request; an unknown context length may hold it."""
    wanted_tokens = tokens_at_least(request)
    if not wanted_tokens:
        return nodes
    fitting = []
    for node in nodes:
        length_tokens = context_length_tokens(node, request.model)
        if length_tokens is None or wanted_tokens <= length_tokens:
            fitting.append(node)
    return fitting


def ready(nodes: Iterable[NodeView], now_s: float, limits: NodeLimits) -> list[NodeView]:
    """Nodes that a fresh snapshot calls ready."""
    since_s = now_s - limits.fresh_s
    return [node for node in nodes if node.sampled_at_s > since_s and node.snapshot.state is NodeState.READY]


def perhaps_ready(nodes: Iterable[NodeView], now_s: float, limits: NodeLimits) -> list[NodeView]:
    """Members that the fallback may use: their last word was that they are ready, however long ago.

    Who fell silent while it was loading is not known to have come up, and who was draining has gone.
    """
    return [
        node
        for node in nodes
        if node.snapshot.state is NodeState.READY
        and freshness(now_s - node.sampled_at_s, limits) is not Freshness.FRESH
    ]


def not_out(nodes: Sequence[NodeView], out_until_s: Mapping[str, float], now_s: float) -> Sequence[NodeView]:
    """Nodes that are not left out for failing. Where that leaves none, all: the last node is never out."""
    if not out_until_s:
        return nodes
    well = [node for node in nodes if out_until_s.get(node.snapshot.node_id, now_s) <= now_s]
    return well or nodes
