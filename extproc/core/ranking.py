"""The order in which the nodes are tried for a request."""

import hashlib
from collections.abc import Iterator, Sequence

from extproc.core.cost import Prospects
from extproc.core.request import InferenceRequest
from extproc.core.room import TOO_FEW_BLOCKS, Room, why_full
from extproc.core.snapshot import NodeView


def by_cost(
    request: InferenceRequest,
    nodes: Sequence[NodeView],
    costs: Sequence[float],
    unsure: frozenset[str] = frozenset(),
) -> Iterator[int]:
    """Indices by cost, nodes that are unsure last.

    Tied ones stand by node id, turned by a hash of the request: so ties spread evenly.
    """
    keys: Sequence[float] | Sequence[tuple[bool, int, float]] = costs
    is_adapter = any(request.model in node.adapters_unloaded for node in nodes)
    if unsure or is_adapter:
        keys = [
            (node.snapshot.node_id in unsure, _adapter_tier(node, request.model) if is_adapter else 0, cost)
            for node, cost in zip(nodes, costs, strict=True)
        ]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    start = 0
    while start < len(order):
        key = keys[order[start]]
        end = start + 1
        while end < len(order) and keys[order[end]] == key:
            end += 1
        if end - start == 1:
            yield order[start]
        else:
            tied = sorted(order[start:end], key=lambda index: nodes[index].snapshot.node_id)
            first = _chance(request.request_id, len(tied))
            yield from tied[first:] + tied[:first]
        start = end


def others_by_cost(
    request: InferenceRequest, prospects: Prospects, costs: Sequence[float], chosen: int, room: Room, others_max: int
) -> tuple[str, ...]:
    """Hosts that may serve it instead of the chosen one, best first: those with room, then those short of KV blocks."""
    nodes = prospects.nodes
    hosts: list[str] = []
    short: list[str] = []
    for index in by_cost(request, nodes, costs, prospects.unsure):
        if len(hosts) >= others_max:
            break
        if index != chosen:
            full = why_full(nodes[index], prospects.uncached_tokens[index], prospects.output_tokens, room)
            if full is None:
                hosts.append(nodes[index].snapshot.host)
            elif full is TOO_FEW_BLOCKS and not room.limits.kv_blocks_required:
                short.append(nodes[index].snapshot.host)
    return tuple((hosts + short)[:others_max])


def others_by_chance(
    request_id: str, members: Sequence[NodeView], served: NodeView, others_max: int
) -> tuple[str, ...]:
    """Hosts of other members: those behind one that the request's id throws, so that no one's load falls on one."""
    by_id = sorted(members, key=lambda member: member.snapshot.node_id)
    others = [member.snapshot.host for member in by_id if member is not served]
    first = _chance(request_id, max(1, len(others)))
    return tuple((others[first:] + others[:first])[:others_max])


def _adapter_tier(node: NodeView, model: str) -> int:
    """0: no adapter, or loaded, or being so; 1: there is a place for it; 2: another would have to go, or who knows."""
    if model in node.own.adapters_sent:
        return 0
    if node.context_lengths is None:
        return 2  # others tell that they have yet to load it
    if model not in node.adapters_unloaded:
        return 0
    return 1 if (node.snapshot.adapter_slots_free or 0) > node.own.adapters_unseen else 2


def _chance(request_id: str, sides: int) -> int:
    """An even die of so many sides, thrown by the request's id: the same request always throws the same."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % sides
