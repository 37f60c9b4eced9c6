"""Ends of answers that Envoy told us and that are another router's: told to it, several at a time.

An end that is lost would count for minutes at the router whose request it was. So they wait here while the bus, or that
router, is away; and what was told a router is told again when it was cut off, or we were: it may have passed it by.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from extproc.core.outcome import Answered
from extproc.exchange import endswire
from extproc.ops.exchangemetrics import ExchangeMetrics

TOGETHER_S = 0.02
"""So long ends wait for others to go with them."""
WAITING_MAX = 10_000
"""The oldest go first, of the router for which the most wait."""
WAITING_S_MAX = 600.0
"""After that long nobody counts the request any more."""
TOLD_MAX = 10_000
"""Ends that were told and are kept, as a router may not have heard them: the same."""
TOLD_S_MAX = 10.0
"""So long they are kept once the router was heard after it was told: had it been cut off, it would have said so."""
AGAIN_S = 1.0
"""A router is told again this often at most, and of each end"""
TELLINGS_MAX = 5
"""so often at most, whoever cries that it is new."""
LATE_S = 1.0
"""An end that is told later than this says when it was."""
HEARD_MAX = 20_000
"""Ends of our own that are remembered, so that one that comes again is not taken twice."""


class _End(Struct):
    at_s: float
    """When we were told of it."""
    answered: Answered
    tellings: int = 0
    told_s: float = 0.0
    """The last time."""
    until_s: float = 0.0
    """It is kept, once the router was heard after that."""


class _Router:
    """State: what waits for one router, what it was told and has not spoken since, and what it was told before it
    spoke; each with the oldest first."""

    def __init__(self) -> None:
        self.waiting: deque[_End] = deque()
        self.told: deque[_End] = deque()
        self.passed: deque[_End] = deque()
        self.again = False
        self.again_s = float("-inf")

    def expire(self, heard_s: float, now_s: float) -> int:
        """Forget what is known or of no use any more; how many waited in vain. `heard_s`: when it spoke last."""
        while self.told and self.told[0].told_s < heard_s:
            one = self.told.popleft()
            one.until_s = now_s + TOLD_S_MAX
            self.passed.append(one)
        while self.passed and self.passed[0].until_s < now_s:
            self.passed.popleft()
        while self.told and self.told[0].at_s < now_s - WAITING_S_MAX:
            self.told.popleft()
        before = len(self.waiting)
        while self.waiting and self.waiting[0].at_s < now_s - WAITING_S_MAX:
            self.waiting.popleft()
        return before - len(self.waiting)

    def tell_again(self, now_s: float) -> None:
        """All that is kept waits once more, but what was told often enough."""
        self.again, self.again_s = False, now_s
        again = [one for several in (self.passed, self.told) for one in several if one.tellings < TELLINGS_MAX]
        self.waiting.extendleft(reversed(again))
        self.told.clear()
        self.passed.clear()

    def next_ones(self, number_max: int, now_s: float) -> list[Answered]:
        """Those that are told now."""
        ends: list[Answered] = []
        while self.waiting and len(ends) < number_max:
            one = self.waiting.popleft()
            one.tellings, one.told_s = one.tellings + 1, now_s
            self.told.append(one)
            answered = one.answered
            late = answered.at_s is None and now_s - one.at_s > LATE_S
            ends.append(replace(answered, at_s=one.at_s) if late else answered)
        return ends


class EndsTold:
    """State: for each router the ends that wait to be sent, and those that were lately. `send` publishes a message."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        reached: Callable[[str], bool],
        heard_s: Callable[[str], float],
        clock: Callable[[], float],
        metrics: ExchangeMetrics,
    ) -> None:
        self._send = send
        self._reached = reached
        """Whether this router would hear us now."""
        self._heard_s = heard_s
        """When it was heard last."""
        self._clock = clock
        self._metrics = metrics
        self._routers: dict[str, _Router] = {}
        self._waiting = 0
        """As many wait, or fewer."""
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, router: str, ended: Answered) -> None:
        """How a request of this router's ended. It goes out within `TOGETHER_S`, or once the router is back."""
        self._routers.setdefault(router, _Router()).waiting.append(_End(self._clock(), ended))
        self._waiting += 1
        if self._waiting > WAITING_MAX:
            self._bound()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOGETHER_S, self.flush)

    def again(self, router: str | None = None) -> None:
        """This router, or any, may have missed what it was told lately: it is told again, soon."""
        for one in self._routers.values() if router is None else filter(None, [self._routers.get(router)]):
            one.again = True

    def flush(self, at_once_max: int = endswire.ENDS_MAX) -> None:
        """Send what waits and can be sent now, to each router so many at most; the rest the next time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._clock()
        for router, one in [*self._routers.items()]:
            late = one.expire(self._heard_s(router), now_s)
            self._metrics.dropped("ends_late", late)
            if one.again and now_s - one.again_s >= AGAIN_S:
                one.tell_again(now_s)
            if one.waiting and self._reached(router):
                for message in endswire.ends_bytes(router, one.next_ones(at_once_max, now_s), now_s):
                    self._send(message)
            if not (one.waiting or one.told or one.passed):
                del self._routers[router]
        self._bound()

    def _bound(self) -> None:
        routers = self._routers.values()
        self._metrics.dropped("ends_late", _shorten([one.waiting for one in routers], WAITING_MAX))
        _shorten([several for one in routers for several in (one.passed, one.told)], TOLD_MAX)
        self._waiting = sum(len(one.waiting) for one in routers)


def _shorten(several: list[deque[_End]], together_max: int) -> int:
    """The longest lose their oldest, until no more are left than may be; how many those are."""
    over = left = max(0, sum(map(len, several)) - together_max)
    while left:
        longest = max(several, key=len)
        for _ in range(number := min(left, len(longest) // 2 + 1)):
            longest.popleft()
        left -= number
    return over


class EndsHeard:
    """State: which ends of ours have come: the bus may bring one twice."""

    def __init__(self) -> None:
        self._heard: OrderedDict[tuple[str, bool, str | None], None] = OrderedDict()

    def is_new(self, ended: Answered) -> bool:
        """Whether it did not come before; from now on it did."""
        key = (ended.request_id, ended.over, ended.host)
        if key in self._heard:
            return False
        self._heard[key] = None
        if len(self._heard) > HEARD_MAX:
            self._heard.popitem(last=False)
        return True
