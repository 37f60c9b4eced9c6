"""The least number of nodes that is enough, by doubling and bisection.

Whether a number is enough is found by simulation, and that has noise: now and then more nodes do worse than fewer. So
"the least number" needs a rule, which is this one, of the careful planner:

    not enough up to: the greatest number that was tried and was not enough
    enough from:      the least number above it that was tried and was enough

Both meet at the answer: it is enough, one less is not, and nothing that was tried above it was not enough. At last two
less is tried as well, where it was not. What is enough below the answer is no answer, and is told: it says how much of
the answer is noise.
"""

from typing import Final

TRIED_AT_ONCE: Final = 2
"""Numbers whose trials do not wait for each other. Always the same, lest what is found depends on the processes there
are. Each round of bisection tries the numbers at a third and at two thirds."""


class NodeSearch:
    """Says which numbers to try, and is told how they did. State: the numbers tried, twenty at the most or so."""

    def __init__(self, nodes_max: int, at_once: int = TRIED_AT_ONCE) -> None:
        assert nodes_max >= 1
        assert at_once >= 1
        self._nodes_max = nodes_max
        self._at_once = at_once
        self._enough: dict[int, bool] = {}

    def next(self) -> tuple[int, ...]:
        """The numbers to be tried now, ascending, none of them tried before; none at all: the search is over."""
        least, most = self._not_enough_up_to, self._enough_from
        if most is None:
            return self._doubled(least)
        if most - least > 1:
            parts = min(self._at_once + 1, most - least)
            return tuple(least + (most - least) * part // parts for part in range(1, parts))
        below = most - 2
        return (below,) if below >= 1 and below not in self._enough else ()

    def tell(self, nodes: int, *, enough: bool) -> None:
        """A number was tried."""
        assert 1 <= nodes <= self._nodes_max
        self._enough[nodes] = enough

    @property
    def found(self) -> int | None:
        """The answer, once the search is over; `None`: not even the most nodes were enough."""
        assert not self.next()
        return self._enough_from

    @property
    def enough_below(self) -> tuple[int, ...]:
        """Fewer nodes than the answer, or than the most where there is none, that were enough all the same: noise."""
        return tuple(sorted(nodes for nodes, enough in self._enough.items() if enough and nodes < self._settled_at))

    def _doubled(self, least: int) -> tuple[int, ...]:
        numbers: list[int] = []
        nodes = max(1, 2 * max(self._enough, default=0))
        while len(numbers) < self._at_once and least < self._nodes_max:
            numbers.append(min(nodes, self._nodes_max))
            if nodes >= self._nodes_max:
                break
            nodes *= 2
        return tuple(numbers)

    @property
    def _not_enough_up_to(self) -> int:
        return max((nodes for nodes, enough in self._enough.items() if not enough), default=0)

    @property
    def _enough_from(self) -> int | None:
        least = self._not_enough_up_to
        return min((nodes for nodes, enough in self._enough.items() if enough and nodes > least), default=None)

    @property
    def _settled_at(self) -> int:
        return self._enough_from or self._nodes_max
