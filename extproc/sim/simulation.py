"""The balancer in simulated time: the same object that `serve` drives, before engines that are a model.

    arrival ─► router ──δ──► node's engine ──► first token, end ──δ──► router
                  ▲                 │
                  └───────δ──── agent's look, every interval

One run is a heap of what happens next. Nothing in it depends on a clock, on `hash()` or on the order of a set, and
chance comes from the seed: the same run gives the same records on every machine.

What is simplified: routers and agents take no time, no message is lost but for the ends that the setup says, clients
never give up, and a request that its node fails is not sent again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any, Final, assert_never

from msgspec import Struct

from extproc.core.decision import Chosen, Refused, Unknown
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeLeft, NodeReported, Snapshot
from extproc.sim.events import Finished, FirstToken, Preempted, Request, Token
from extproc.sim.fleetplan import FleetPlan
from extproc.sim.measures import Measures, Served, measure
from extproc.sim.node import Node, within_context
from extproc.sim.progress import Progress
from extproc.sim.reference import Reference
from extproc.sim.routers import Routers, as_operators_set
from extproc.sim.sampling import Sampler
from extproc.sim.steptime import StepCost
from extproc.sim.traces import Arrival

WAITED_S_MAX: Final = 3600.0
"""What is not complete so long after the last arrival has failed."""
ROUTERS_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run, but for its arrivals."""

    fleet: FleetPlan
    policy: RoutingPolicy | None
    """`None`: the look-ahead reference chooses, which knows everything."""
    settings: BalancerSettings = field(default_factory=BalancerSettings)
    cost: StepCost = field(default_factory=StepCost)
    routers: int = 1
    """Each has its own balancer and gets its share of the requests; agents report to all. 1 to `ROUTERS_MAX`."""
    snapshot_interval_s: float = 1.0
    first_tokens: bool = False
    """Whether routers are told of first tokens as they come, and not by snapshots alone."""
    lost_share: float = 0.0
    """Share 0..1 of the ends that no router is told: its stream is left and nothing is said after it."""
    delay_s: float = 0.001
    """One way, between a router and a node or its agent: δ."""
    seed: int = 0


class Run(Struct, frozen=True):
    """What a run gave."""

    served: tuple[Served, ...]
    """One for each arrival, in their order."""
    preemptions: int
    nodes: tuple[str, ...]
    cut: int
    """Requests that were longer than a node's context, and were cut to it."""
    ended_s: float
    """When the last request was over, or those that were not had failed."""
    open_after: int
    """Requests that routers still hold as open; those whose end nobody told among them."""

    @property
    def measures(self) -> Measures:
        """Its figures."""
        return measure(self.served, self.preemptions, self.nodes)


def simulate(arrivals: Sequence[Arrival], setup: Setup) -> Run:
    """Let all that arrives be served; at least one, in order of time."""
    assert arrivals
    assert 1 <= setup.routers <= ROUTERS_MAX
    assert setup.snapshot_interval_s > 0
    assert setup.delay_s >= 0
    return _Simulation(arrivals, setup).run()


class _Simulation:
    def __init__(self, arrivals: Sequence[Arrival], setup: Setup) -> None:
        self._setup = setup
        self._nodes = [Node(planned, place, setup.cost) for place, planned in enumerate(setup.fleet.nodes)]
        self._by_name = {node.name: node for node in self._nodes}
        context_tokens = min(node.engine.settings.context_length_tokens for node in self._nodes)
        self._arrivals = [within_context(arrival, context_tokens) for arrival in arrivals]
        self._cut = sum(one is not other for one, other in zip(arrivals, self._arrivals, strict=True))
        self._progress = [Progress() for _ in arrivals]
        self._ids = [f"{setup.seed}-{index}" for index in range(len(arrivals))]
        self._index_of = {request_id: index for index, request_id in enumerate(self._ids)}
        self._left = len(arrivals)
        """Requests that are not over, as far as their routers know."""
        self._heap: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        """What happens next: when, in which order of those at one time, and about what."""
        self._order = 0
        self._wakes: list[float | None] = [None] * len(self._nodes)
        """When each node is to be advanced next; other times in the heap hold no more."""
        self._routers: Routers | None = None
        self._reference: Reference | None = None
        if setup.policy is None:
            self._reference = Reference(self._nodes)
        else:
            self._routers = self._with_agents(setup.policy)

    def run(self) -> Run:
        self._at(self._arrivals[0].at_s, self._arrive, 0)
        ended_s, until_s = 0.0, self._arrivals[-1].at_s + WAITED_S_MAX
        while self._left:
            now_s, _, happens, about = heappop(self._heap)
            ended_s = min(now_s, until_s)
            if now_s > until_s:
                break
            happens(now_s, about)
        return Run(
            tuple(
                progress.served(index, arrival, self._setup.cost)
                for index, (arrival, progress) in enumerate(zip(self._arrivals, self._progress, strict=True))
            ),
            sum(node.engine.counters.preemptions for node in self._nodes),
            tuple(node.name for node in self._nodes),
            self._cut,
            ended_s,
            0 if self._routers is None else self._routers.requests_open,
        )

    def _at(self, at_s: float, happens: Callable[[float, Any], None], about: Any) -> None:
        self._order += 1
        heappush(self._heap, (at_s, self._order, happens, about))

    def _soon(self, now_s: float, happens: Callable[[float, Any], None], about: Any) -> None:
        """It happens one way later."""
        self._at(now_s + self._setup.delay_s, happens, about)

    # Requests

    def _arrive(self, now_s: float, index: int) -> None:
        if index + 1 < len(self._arrivals):
            self._at(self._arrivals[index + 1].at_s, self._arrive, index + 1)
        progress = self._progress[index]
        progress.sent_s = now_s
        progress.node = self._chosen(index, now_s)
        if progress.node is None:
            self._left -= 1
        else:
            self._soon(now_s, self._reach, index)

    def _chosen(self, index: int, now_s: float) -> Node | None:
        request_id, arrival, progress = self._ids[index], self._arrivals[index], self._progress[index]
        if self._reference is not None:
            for node in self._nodes:
                self._take_events(node, now_s)
            best = self._reference.choose(request_id, arrival, now_s)
            progress.failed = best is None
            return best
        assert self._routers is not None
        match self._routers.route(request_id, arrival, now_s):
            case Chosen(node_id=node_id):
                return self._by_name[node_id]
            case Refused():
                progress.refused = True
            case Unknown():
                # Envoy would turn to a cluster of its own; here there is none.
                progress.failed = True
            case other:
                assert_never(other)
        return None

    def _reach(self, now_s: float, index: int) -> None:
        node, arrival = self._progress[index].node, self._arrivals[index]
        assert node is not None
        if node.refuses(now_s):
            self._progress[index].failed = True
            self._soon(now_s, self._fail, index)
            return
        keys = arrival.prompt_blocks + arrival.answer_blocks
        node.submit(Request(self._ids[index], arrival.prompt_tokens, arrival.output_tokens, block_keys=keys), now_s)
        self._wake_at_next(node)

    def _fail(self, now_s: float, index: int) -> None:
        if self._routers is not None:
            self._routers.unreachable(self._ids[index], now_s)
        if self._reference is not None:
            self._reference.finished(self._ids[index])
        self._left -= 1

    def _first_token(self, now_s: float, index: int) -> None:
        if self._routers is not None:
            self._routers.first_token(self._ids[index], now_s)

    def _end(self, now_s: float, index: int) -> None:
        if self._routers is not None:
            self._routers.ended(self._ids[index], self._arrivals[index].output_tokens, now_s)
        self._left -= 1

    # Engines

    def _wake_at_next(self, node: Node) -> None:
        at_s = node.next_event_s
        if at_s is not None and at_s != self._wakes[node.place]:
            self._at(at_s, self._wake, node)
        self._wakes[node.place] = at_s

    def _wake(self, now_s: float, node: Node) -> None:
        if self._wakes[node.place] == now_s:
            self._wakes[node.place] = None
            self._take_events(node, now_s)

    def _take_events(self, node: Node, now_s: float) -> None:
        for event, at_s in node.advance(now_s):
            index = self._index_of[event.request_id]
            progress = self._progress[index]
            match event:
                case FirstToken():
                    progress.first_token_s = at_s + self._setup.delay_s
                    if self._reference is not None:
                        self._reference.first_token(event.request_id, at_s)
                    elif self._setup.first_tokens:
                        self._soon(at_s, self._first_token, index)
                case Finished(cached_tokens=cached_tokens):
                    progress.finished_s = at_s + self._setup.delay_s
                    progress.cached_tokens = cached_tokens
                    if self._reference is not None:
                        self._reference.finished(event.request_id)
                    self._soon(at_s, self._end, index)
                case Preempted() | Token():
                    pass
                case other:
                    assert_never(other)
        self._wake_at_next(node)

    # Agents

    def _with_agents(self, policy: RoutingPolicy) -> Routers:
        setup, chance = self._setup, Random(self._setup.seed)  # noqa: S311 - no secret
        settings = as_operators_set(setup.settings, setup.snapshot_interval_s)
        # Long enough ago that nothing of a start is left when the first request comes.
        nodes = settings.nodes
        began_s = -(nodes.settle_s + nodes.slow_start_s + 4 * max(nodes.report_interval_s, setup.snapshot_interval_s))
        for node in self._nodes:
            sampler = Sampler(node, 2 * setup.delay_s)
            joins_s = node.planned.joins_at_s or began_s
            self._at(joins_s + chance.random() * setup.snapshot_interval_s, self._look, (node, sampler))
        self._at(0.0, self._tick, nodes.prune_interval_s)
        return Routers(setup.routers, policy, settings, began_s, setup.lost_share)

    def _look(self, now_s: float, about: tuple[Node, Sampler]) -> None:
        node, sampler = about
        self._take_events(node, now_s)
        if node.gone(now_s):
            self._soon(now_s, self._leave, node)
            return
        self._soon(now_s, self._report, sampler.look(now_s))
        self._at(now_s + self._setup.snapshot_interval_s, self._look, about)

    def _report(self, now_s: float, snapshot: Snapshot) -> None:
        if self._routers is not None:
            self._routers.observe(NodeReported(snapshot), now_s)

    def _leave(self, now_s: float, node: Node) -> None:
        if self._routers is not None:
            self._routers.observe(NodeLeft(node.name, node.name), now_s)

    def _tick(self, now_s: float, interval_s: float) -> None:
        if self._routers is not None:
            self._routers.tick(now_s)
        self._at(now_s + interval_s, self._tick, interval_s)
