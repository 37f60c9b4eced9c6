"""Parts of a balancer that go by what was recorded: they let go who went, and whatever is decided changes nothing."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from extproc.core.admission import Admission, Turns
from extproc.core.admissionqueue import AdmissionQueue, Waiting
from extproc.core.admissionsettings import PriorityClass
from extproc.core.fallback import SmoothWeightedRoundRobin
from extproc.core.policy import RoutingPolicy
from extproc.core.quotas import Quotas
from extproc.core.request import InferenceRequest
from extproc.core.router import Standing
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeView


class LedRoundRobin(SmoothWeightedRoundRobin):
    """Says whose turn it would be, and gives the turn to whom it was given."""

    served: str | None = None
    """`None`: nobody took a turn."""

    def pick(self, members: Sequence[NodeView]) -> NodeView:
        """See `SmoothWeightedRoundRobin`."""
        picked = self.peek(members)
        if self.served is not None:
            self.take(members, self.served)
        return picked


class Leaving(Struct):
    """Those who waited no longer after one call, as far as it is not done again; all of them wait until then."""

    went: deque[str]
    """By turn, in this order."""
    turned_away: dict[str, None]

    def __bool__(self) -> bool:
        """Whether something is left."""
        return bool(self.went or self.turned_away)

    def is_next(self, request_id: str) -> bool:
        """Whether this one went next."""
        return bool(self.went) and self.went[0] == request_id


def _nothing(*_: object) -> None:
    """Where nothing more is done."""


class Lead(Struct, frozen=True):
    """Who leads through one call: what is recorded of it, and what is done at each step."""

    leaving: Leaving
    ask: Callable[[Waiting, Standing], None] = _nothing
    """Called before it is decided about one."""
    went: Callable[[Waiting], None] = _nothing
    """Called when one that went has left the queue."""


class LedTurns(Turns):
    """A round in which those go who went.

    Nothing was recorded of those who were held up. So whose turn came, and who did not go, was one of them. It is
    decided again about those who went; and about those who were turned away, if it was their turn: they might have gone
    before their time was up.
    """

    def __init__(self, queue: AdmissionQueue, shares: list[float], lead: Lead) -> None:
        super().__init__(queue, shares)
        self._lead = lead

    def next(self) -> Waiting | None:
        """See `Turns`."""
        leaving = self._lead.leaving
        while leaving and (one := super().next()) is not None:
            request_id = one.request.request_id
            if leaving.is_next(request_id) or request_id in leaving.turned_away:
                self._lead.ask(one, self.standing())
                return one
            super().held_up()
        return None

    def goes(self) -> None:
        """See `Turns`; if it did go."""
        self._as_recorded()

    def held_up(self) -> None:
        """See `Turns`; if it was."""
        self._as_recorded()

    def _as_recorded(self) -> None:
        leaving, one = self._lead.leaving, self._head(self._lanes[0][3])
        if leaving.is_next(one.request.request_id):
            leaving.went.popleft()
            super().goes()
            self._lead.went(one)
        else:
            super().held_up()


class LedQueue(AdmissionQueue):
    """Those who wait by the record, and who are turned away by it."""

    def __init__(self, classes: Mapping[str, PriorityClass]) -> None:
        super().__init__(classes)
        self.leaving = Leaving(deque(), {})

    def expired(self, now_s: float) -> Iterator[Waiting]:
        """See `AdmissionQueue`: those of whom it was recorded, if their time is up."""
        return (one for one in self.clear() if one.until_s <= now_s)

    def clear(self) -> Iterator[Waiting]:
        """See `AdmissionQueue`: those of whom it was recorded."""
        turned_away = self.leaving.turned_away
        while turned_away:
            request_id = next(iter(turned_away))
            del turned_away[request_id]
            waiting = self.remove(request_id)
            assert waiting is not None, "all of them wait"
            yield waiting

    def drop_expired(self, now_s: float) -> None:
        """Those whose time is up wait no longer."""
        for _ in super().expired(now_s):
            pass


class LedAdmission(Admission):
    """Lets wait who waited, and go who went."""

    def __init__(self, settings: BalancerSettings) -> None:
        super().__init__(settings)
        self.queue = self._led_queue = LedQueue(settings.classes)
        self._lead: Lead | None = None

    def led_by(self, lead: Lead) -> None:
        """Let this one lead through the next call."""
        self._lead = lead
        self._led_queue.leaving = lead.leaving

    def turns(self) -> LedTurns:
        """See `Admission`."""
        assert self._lead is not None, "somebody leads"
        return LedTurns(self.queue, self._shares, self._lead)

    def wait(
        self,
        request: InferenceRequest,
        policy: RoutingPolicy,
        tokens: int,
        until_s: float,
        now_s: float,
    ) -> None:
        """See `Admission`; but it does not wait for that."""

    def waited(
        self,
        request: InferenceRequest,
        policy: RoutingPolicy,
        tokens: int,
        until_s: float,
        now_s: float,
    ) -> None:
        """It waited from then on."""
        super().wait(request, policy, tokens, until_s, now_s)

    def drop_expired(self, now_s: float) -> None:
        """Those whose time is up wait no longer."""
        self._led_queue.drop_expired(now_s)


class LedQuotas(Quotas):
    """Counts what is told, and nothing of what is decided meanwhile."""

    deciding = False

    def take(self, request_id: str, tenant: str, model: str, tokens: int, now_s: float) -> None:
        """See `Quotas`."""
        if not self.deciding:
            super().take(request_id, tenant, model, tokens, now_s)

    def cancel(self, request_id: str) -> None:
        """See `Quotas`."""
        if not self.deciding:
            super().cancel(request_id)
