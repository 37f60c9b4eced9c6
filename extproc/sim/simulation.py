"""The balancer in simulated time: the same object that `serve` drives, before engines that are a model.

    arrival ─► router ──δ──► node's engine ──► first token, end ──δ──► router
                  ▲                 │
                  └───────δ──── agent's look, every interval

One run is an agenda of what happens next. Nothing in it depends on a clock, on `hash()` or on the order of a set, and
chance comes from the seed: the same run gives the same records on every machine.

A request that a router lets wait goes when that says so: it is asked, at the same moment, whenever it says that there
may be room, and when somebody's time is up. What is simplified: routers and agents take no time, no message is lost but
as the setup says, clients never give up, and a request that its node fails is not sent again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, assert_never

from msgspec import Struct

from extproc.core.decision import Chosen, Outcome, Queued, Refused, Unknown
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import BalancerSettings
from extproc.sim.agenda import Agenda, Happens
from extproc.sim.agents import Agents
from extproc.sim.events import Finished, FirstToken, Preempted, Request, Token
from extproc.sim.exchange import Exchanging
from extproc.sim.fleetplan import FleetPlan
from extproc.sim.measures import Measures, Served, measure
from extproc.sim.node import Node, within_context
from extproc.sim.progress import Progress
from extproc.sim.reference import Reference
from extproc.sim.routers import Routers, as_operators_set
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
    exchange: Exchanging | None = None
    """What they tell each other. `None`: nothing."""
    snapshot_interval_s: float = 1.0
    first_tokens: bool = False
    """Whether routers are told of first tokens as they come, and not by snapshots alone."""
    kv_events: bool = False
    """Whether agents tell what their nodes' caches have, and routers need not estimate it."""
    lost_share: float = 0.0
    """Share 0..1 of the ends that no router is told: its stream is left and nothing is said after it."""
    delay_s: float = 0.001
    """One way, between a router and a node or its agent: δ."""
    seed: int = 0
    priorities: Mapping[str, str] = field(default_factory=dict)
    """Classes of the settings for kinds of arrivals; others have the policy's, or the default one. Where there are any,
    the run has figures of each class."""
    tenants: Mapping[str, str] = field(default_factory=dict)
    """Tenants for kinds of arrivals; others have none."""

    def priority(self, kind: str) -> str:
        """The class of an arrival of this kind."""
        own = None if self.policy is None else self.policy.priority
        named = self.priorities.get(kind, own)
        return named if named in self.settings.classes else self.settings.default_class


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
    classes: tuple[str, ...] = ()
    """Where there are priorities: all classes, the highest first."""

    @property
    def measures(self) -> Measures:
        """Its figures."""
        return measure(self.served, self.preemptions, self.nodes, self.classes)


def simulate(arrivals: Sequence[Arrival], setup: Setup) -> Run:
    """Let all that arrives be served; at least one, in order of time."""
    assert arrivals
    assert 1 <= setup.routers <= ROUTERS_MAX
    assert setup.snapshot_interval_s > 0
    assert setup.delay_s >= 0
    assert setup.settings.classes.keys() >= set(setup.priorities.values())
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
        self._agenda = Agenda()
        self._wakes: list[float | None] = [None] * len(self._nodes)
        """When each node is to be advanced next; other times in the agenda hold no more."""
        self._asks_s: set[float] = set()
        """When routers will be asked whom they let go."""
        self._routers: Routers | None = None
        self._reference: Reference | None = None
        if setup.policy is None:
            self._reference = Reference(self._nodes)
        else:
            self._routers = self._with_agents(setup.policy)

    def run(self) -> Run:
        self._agenda.at(self._arrivals[0].at_s, self._arrive, 0)
        ended_s, until_s = 0.0, self._arrivals[-1].at_s + WAITED_S_MAX
        while self._left:
            ended_s = min(self._agenda.next_s, until_s)
            if self._agenda.next_s > until_s:
                break
            self._agenda.go_on()
        return Run(
            tuple(
                progress.served(index, arrival, self._setup.cost, self._class_of(arrival))
                for index, (arrival, progress) in enumerate(zip(self._arrivals, self._progress, strict=True))
            ),
            sum(node.engine.counters.preemptions for node in self._nodes),
            tuple(node.name for node in self._nodes),
            self._cut,
            ended_s,
            0 if self._routers is None else self._routers.requests_open,
            tuple(self._setup.settings.classes) if self._setup.priorities else (),
        )

    def _class_of(self, arrival: Arrival) -> str:
        return self._setup.priority(arrival.kind) if self._setup.priorities else ""

    def _soon(self, now_s: float, happens: Happens, about: Any) -> None:
        """It happens one way later."""
        self._agenda.at(now_s + self._setup.delay_s, happens, about)

    # Requests

    def _arrive(self, now_s: float, index: int) -> None:
        if index + 1 < len(self._arrivals):
            self._agenda.at(self._arrivals[index + 1].at_s, self._arrive, index + 1)
        self._progress[index].sent_s = now_s
        request_id, arrival, kind = self._ids[index], self._arrivals[index], self._arrivals[index].kind
        if self._reference is not None:
            for node in self._nodes:
                self._take_events(node, now_s)
            self._send(index, self._reference.choose(request_id, arrival, now_s), now_s)
        if self._routers is not None:
            priority, tenant = self._setup.priority(kind), self._setup.tenants.get(kind, "")
            self._decided(index, self._routers.route(request_id, arrival, now_s, priority, tenant), now_s)

    def _decided(self, index: int, outcome: Outcome, now_s: float) -> None:
        match outcome:
            case Chosen(node_id=node_id):
                self._send(index, self._by_name[node_id], now_s)
            case Refused():
                self._progress[index].refused = True
                self._left -= 1
            case Unknown():
                # Envoy would turn to a cluster of its own; here there is none.
                self._send(index, None, now_s)
            case Queued(until_s=until_s):
                self._ask_at(until_s)
            case other:
                assert_never(other)

    def _send(self, index: int, node: Node | None, now_s: float) -> None:
        """To a node; where there is none the request has failed."""
        progress = self._progress[index]
        progress.node, progress.left_router_s = node, now_s
        if node is None:
            progress.failed = True
            self._left -= 1
        else:
            self._soon(now_s, self._reach, index)

    def _ask_now(self) -> None:
        self._ask_at(self._agenda.now_s)

    def _ask_at(self, at_s: float) -> None:
        if at_s not in self._asks_s:
            self._asks_s.add(at_s)
            self._agenda.at(at_s, self._ask)

    def _ask(self, now_s: float, _: None) -> None:
        """Whom do routers let go, or refuse since their time is up?"""
        self._asks_s.remove(now_s)
        assert self._routers is not None
        for decision in self._routers.admit(now_s):
            self._decided(self._index_of[decision.request_id], decision.outcome, now_s)

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
            self._agenda.at(at_s, self._wake, node)
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

    # What routers know

    def _with_agents(self, policy: RoutingPolicy) -> Routers:
        setup, agenda, chance = self._setup, self._agenda, Random(self._setup.seed)  # noqa: S311 - no secret
        settings = as_operators_set(setup.settings, setup.snapshot_interval_s)
        # Long enough ago that nothing of a start is left when the first request comes.
        nodes = settings.nodes
        began_s = -(nodes.settle_s + nodes.slow_start_s + 4 * max(nodes.report_interval_s, setup.snapshot_interval_s))
        lost, told = setup.lost_share, setup.kv_events
        if setup.exchange is not None:
            settings = setup.exchange.settings(settings)
        routers = Routers(setup.routers, policy, settings, began_s, lost, self._ask_now, kv_events=told)
        interval_s, delay_s = setup.snapshot_interval_s, setup.delay_s
        if setup.exchange is not None:
            routers.exchange(agenda, setup.exchange, delay_s, setup.seed)
        agents = Agents(agenda, interval_s, delay_s, self._take_events, routers.observe, kv_events=told)
        agents.begin(self._nodes, began_s, chance)
        routers.keep_ticking(agenda, nodes.prune_interval_s)
        return routers
