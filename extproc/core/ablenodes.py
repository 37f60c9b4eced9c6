"""Which nodes can serve what: those that a request which waits has a claim to."""

from bisect import bisect_left
from collections.abc import Mapping

from extproc.core.filters import addresses_of


class AbleNodes:
    """Equal answers are one object, beside those for subsets.

    State: the models and the host of each node, and for each model that was asked for the nodes by their context
    length.
    """

    def __init__(self) -> None:
        self._served: dict[str, Mapping[str, int | None] | None] = {}
        self._host_of: dict[str, str] = {}
        self._at: dict[str, frozenset[str]] = {}
        """Nodes by what a subset may call their hosts."""
        self._listed: frozenset[str] | None = None
        self._nodes: dict[str, tuple[list[int], list[frozenset[str]]]] = {}

    def serves(self, node_id: str, host: str, models: Mapping[str, int | None] | None) -> bool:
        """Whether that is something else than before."""
        moved = self._host_of.get(node_id) != host
        if not moved and (self._served[node_id] is models or self._served[node_id] == models):
            return False
        if moved:
            self._leave(node_id)
            self._host_of[node_id] = host
            for address in addresses_of(host):
                self._at[address] = self._at.get(address, frozenset()) | {node_id}
        self._served[node_id] = models
        self._nodes.clear()
        self._listed = None
        return True

    def forget(self, node_id: str) -> bool:
        """Whether it served anything."""
        was_there = node_id in self._served
        self._leave(node_id)
        self._served.pop(node_id, None)
        self._nodes.clear()
        self._listed = None
        return was_there

    def to_serve(self, model: str, wanted_tokens: int, subset: tuple[str, ...] | None) -> frozenset[str]:
        """Nodes of a subset that serve a model, or may, and whose context holds so many tokens, or may."""
        if self._listed is None:
            self._listed = frozenset[str]().union(*(models for models in self._served.values() if models))
        if model not in self._listed:
            model = ""  # by whatever name: only nodes may serve it whose models are not known
        found = self._nodes.get(model)
        if found is None:
            found = self._nodes[model] = self._by_length(model)
        lengths_tokens, nodes = found
        able = nodes[bisect_left(lengths_tokens, wanted_tokens)]
        if subset is None:
            return able
        return able & frozenset[str]().union(*(self._at.get(address, ()) for address in subset))

    def _leave(self, node_id: str) -> None:
        host = self._host_of.pop(node_id, None)
        for address in () if host is None else addresses_of(host):
            left = self._at[address] - {node_id}
            if left:
                self._at[address] = left
            else:
                del self._at[address]

    def _by_length(self, model: str) -> tuple[list[int], list[frozenset[str]]]:
        """Known lengths, the shortest first, each with the nodes that have it, a longer one or none; then these."""
        lengths = {
            node_id: None if models is None else models[model]
            for node_id, models in self._served.items()
            if models is None or model in models
        }
        known_tokens = sorted({length for length in lengths.values() if length is not None})
        nodes = [
            frozenset(node_id for node_id, length in lengths.items() if length is None or length >= least)
            for least in known_tokens
        ]
        unknown = frozenset(node_id for node_id, length in lengths.items() if length is None)
        return known_tokens, [*nodes, unknown]
