"""The routers of a simulation: balancers, each with its share of the requests, that know what agents and answers tell.

Nothing is decided here: this turns what the simulation has into the balancer's calls.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from xxhash import xxh3_64_intdigest

from extproc.core.balancer import Balancer
from extproc.core.decision import Decision, Outcome
from extproc.core.outcome import Answered, Ending
from extproc.core.policy import RoutingPolicy
from extproc.core.request import Endpoint, InferenceRequest, TokenCount
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import KvBlocksTold, NodeEvent, NotAllowed
from extproc.sim import kvevents
from extproc.sim.agenda import Agenda
from extproc.sim.exchange import Exchange, Exchanging
from extproc.sim.sampling import MODEL
from extproc.sim.traces import Arrival

TOKEN_BYTES: Final = 4
"""Of a body, for each token of its prompt."""
REPORTS_FRESH: Final = 3.0
"""A snapshot is trusted for so many intervals at least, and known for one more: as an operator would set it."""


def as_operators_set(settings: BalancerSettings, interval_s: float) -> BalancerSettings:
    """The settings, where they would not trust a node for as long as it takes to report again, with longer times."""
    nodes = settings.nodes
    fresh_s = max(nodes.fresh_s, REPORTS_FRESH * interval_s)
    stale_s = max(nodes.stale_s, (REPORTS_FRESH + 1) * interval_s)
    changed = {"fresh_s": fresh_s, "stale_s": stale_s, "member_s": max(nodes.member_s, stale_s)}
    return settings.model_copy(update={"nodes": nodes.model_copy(update=changed)})


class Routers:
    """So many balancers, begun at a time of the simulation. A request's id says which of them has it."""

    def __init__(
        self,
        count: int,
        policy: RoutingPolicy,
        settings: BalancerSettings,
        began_s: float,
        lost_share: float,
        on_room: Callable[[], None] | None = None,
        *,
        kv_events: bool = False,
    ) -> None:
        """`on_room` is called when `admit` shall be, at the same moment; it must not call back.

        With `kv_events` they know the blocks of prompts as nodes tell them.
        """
        self._policy = policy
        self._balancers = [Balancer(settings, began_s) for _ in range(count)]
        self._lost_below = int(lost_share * 2**64)
        self._on_room = on_room
        self._kv_events = kv_events
        self._estimated: set[tuple[int, str]] = set()
        """Places of balancers, each with a node whose blocks it did not take or forgot: it hears no more of these."""
        self._with_room: set[int] = set()
        """Places of balancers that say that there may be room."""
        for place, balancer in enumerate(self._balancers):
            balancer.on_room = partial(self._room, place)

    def exchange(self, agenda: Agenda, plan: Exchanging, delay_s: float, seed: int) -> None:
        """From the beginning of the simulation on they tell each other what they sent; a way takes so long."""
        if len(self._balancers) > 1:
            Exchange(agenda, self._balancers, plan, delay_s, seed).begin(0.0)

    def keep_ticking(self, agenda: Agenda, interval_s: float) -> None:
        """Tell them that time passes, from the beginning of the simulation on."""

        def tick(now_s: float, _: None) -> None:
            self.tick(now_s)
            agenda.at(now_s + interval_s, tick)

        agenda.at(0.0, tick)

    @property
    def requests_open(self) -> int:
        """Requests that they hold as sent and not finished."""
        return sum(balancer.requests_open for balancer in self._balancers)

    def route(self, request_id: str, arrival: Arrival, now_s: float, priority: str = "", tenant: str = "") -> Outcome:
        """Where a request shall go, or whether it waits."""
        request = InferenceRequest(
            request_id,
            MODEL,
            Endpoint.CHAT,
            TokenCount(arrival.prompt_tokens, exact=True),
            prompt_blocks=arrival.prompt_blocks,
            token_blocks=kvevents.token_blocks(arrival.prompt_blocks) if self._kv_events else (),
            priority=priority,
            tenant=tenant,
            body_bytes=TOKEN_BYTES * arrival.prompt_tokens,
        )
        return self._of(request_id).route(request, self._policy, now_s).outcome

    def admit(self, now_s: float) -> list[Decision]:
        """About those who need not wait longer, of routers that may have room or where somebody's time is up."""
        decisions = []
        for place, balancer in enumerate(self._balancers):
            deadline_s = balancer.next_deadline_s
            if place in self._with_room or (deadline_s is not None and deadline_s <= now_s):
                self._with_room.discard(place)
                decisions += balancer.admit(now_s)
        return decisions

    def first_token(self, request_id: str, now_s: float) -> None:
        """The answer begins."""
        self._of(request_id).first_token(request_id, now_s)

    def unreachable(self, request_id: str, now_s: float) -> None:
        """The node answered with an error at once."""
        self._of(request_id).answered(Answered(request_id, Ending.UNREACHABLE), now_s)

    def ended(self, request_id: str, output_tokens: int, now_s: float) -> None:
        """The answer is complete; of some nobody is told so."""
        balancer = self._of(request_id)
        if _number("lost", request_id) < self._lost_below:
            balancer.leave(request_id, now_s)
        else:
            balancer.answered(Answered(request_id, Ending.SERVED, model=MODEL, output_tokens=output_tokens), now_s)

    def observe(self, event: NodeEvent, now_s: float) -> None:
        """Agents tell all of them."""
        if isinstance(event, KvBlocksTold):
            self._kv_told(event, now_s)
            return
        for balancer in self._balancers:
            balancer.observe(event, now_s)

    def tick(self, now_s: float) -> None:
        """Time passes."""
        for place, balancer in enumerate(self._balancers):
            self._estimated.update((place, node_id) for node_id in balancer.tick(now_s))

    def _kv_told(self, event: KvBlocksTold, now_s: float) -> None:
        for place, balancer in enumerate(self._balancers):
            about = place, event.node_id
            if about not in self._estimated and isinstance(balancer.observe(event, now_s), NotAllowed):
                self._estimated.add(about)  # what comes next would be half of the truth

    def _room(self, place: int) -> None:
        self._with_room.add(place)
        if self._on_room is not None:
            self._on_room()

    def _of(self, request_id: str) -> Balancer:
        if len(self._balancers) == 1:
            return self._balancers[0]
        # Not in turn: routers do not know of each other, and so neither do their round robins.
        return self._balancers[_number("router", request_id) % len(self._balancers)]


def _number(purpose: str, request_id: str) -> int:
    """From 0 to 2**64 - 1, thrown by the request for this purpose."""
    return xxh3_64_intdigest(f"{purpose} {request_id}".encode())
