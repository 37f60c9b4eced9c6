"""What a fleet can serve at most of a workload: the capacity that loads are shares of.

The procedure, the same for every strategy that is compared: faults, joins and leaves are left out, and of the arrivals
only their order counts. Each node has `IN_FLIGHT` requests on the average; whenever one is done the next is sent, to
the node for which (in flight + 1) × (prompt tokens that it has not cached) is least, by what its engine really has.
Capacity is how many are done per second between the first fifth and the last.

So the batches are about as large as the latency of answers allows (with 256 at a time throughput is a third higher, but
tokens come too slowly), and where prompts are shared they are computed about as seldom as can be: without that agents
would have a fifth of it. No router chooses, so nothing is refused.
"""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Final

from extproc.sim.events import Finished, Request
from extproc.sim.fleetplan import FleetPlan
from extproc.sim.node import Node, within_context
from extproc.sim.steptime import StepCost
from extproc.sim.traces import Arrival

IN_FLIGHT: Final = 64
"""Requests at a time for each node."""
REQUESTS_PER_NODE: Final = 1500
"""Enough that the middle of them is a steady state, and different samples of a workload differ by a few percent."""
_ROUNDS_MIN: Final = 8
"""Fewer requests than so many times those in flight are sent fewer at a time."""


def capacity_per_s(arrivals: Sequence[Arrival], fleet: FleetPlan, cost: StepCost) -> float:
    """Requests per second; at least ten arrivals."""
    assert len(arrivals) >= 10
    done_s = _Saturated(arrivals, fleet, cost).run()
    first, last = len(done_s) // 5, len(done_s) - 1 - len(done_s) // 5
    return (last - first) / (done_s[last] - done_s[first])


class _Saturated:
    def __init__(self, arrivals: Sequence[Arrival], fleet: FleetPlan, cost: StepCost) -> None:
        healthy = [replace(node, joins_at_s=0.0, leaves_at_s=None, faults=()) for node in fleet.nodes]
        self._nodes = [Node(planned, place, cost) for place, planned in enumerate(healthy)]
        context_tokens = min(node.engine.settings.context_length_tokens for node in self._nodes)
        self._arrivals = [within_context(arrival, context_tokens) for arrival in arrivals]
        self._in_flight = [0] * len(self._nodes)
        self._next = 0
        self._heap: list[tuple[float, int]] = []
        """When a node is to be advanced, and its place."""

    def run(self) -> list[float]:
        """When requests are done, in order."""
        for _ in range(max(1, min(IN_FLIGHT * len(self._nodes), len(self._arrivals) // _ROUNDS_MIN))):
            self._send(0.0)
        done_s = []
        while self._heap:
            now_s, place = heappop(self._heap)
            node = self._nodes[place]
            if node.next_event_s != now_s:
                continue
            for event, at_s in node.advance(now_s):
                if isinstance(event, Finished):
                    done_s.append(at_s)
                    self._in_flight[place] -= 1
                    self._send(now_s)
            self._wake(node)
        return done_s

    def _send(self, now_s: float) -> None:
        if self._next == len(self._arrivals):
            return
        arrival = self._arrivals[self._next]
        keys = arrival.prompt_blocks + arrival.answer_blocks
        node = min(self._nodes, key=lambda one: self._cost(one, arrival))
        request = Request(str(self._next), arrival.prompt_tokens, arrival.output_tokens, block_keys=keys)
        self._next += 1
        self._in_flight[node.place] += 1
        node.submit(request, now_s)
        self._wake(node)

    def _cost(self, node: Node, arrival: Arrival) -> tuple[int, int]:
        in_flight = self._in_flight[node.place]
        uncached = arrival.prompt_tokens - node.cached_tokens(arrival.prompt_blocks)
        return (in_flight + 1) * max(1, uncached), in_flight

    def _wake(self, node: Node) -> None:
        if node.next_event_s is not None:
            heappush(self._heap, (node.next_event_s, node.place))
