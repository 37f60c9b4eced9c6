"""Ends of answers that Envoy told us and that are another router's: told to it, several at a time.

An end that is lost would count for minutes at the router whose request it was. So they wait here while the bus, or that
router, is away; and a router that was cut off hears those again that may have passed it by.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from extproc.core.outcome import Answered
from extproc.exchange import endswire
from extproc.ops.exchangemetrics import ExchangeMetrics

TOGETHER_S = 0.02
"""So long ends wait for others to go with them."""
WAITING_MAX = 10_000
"""The oldest go first."""
WAITING_S_MAX = 600.0
"""After that long nobody counts the request any more."""
TOLD_MAX = 10_000
"""Ends that were told and are kept for routers that may not have heard them, for so long:"""
TOLD_S_MAX = 10.0
LATE_S = 1.0
"""An end that is told later than this says when it was."""
HEARD_MAX = 20_000
"""Ends of our own that are remembered, so that one that comes again is not taken twice."""


class EndsTold:
    """State: ends that wait to be sent, and those that were lately. `send` publishes a message."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        reached: Callable[[str], bool],
        clock: Callable[[], float],
        metrics: ExchangeMetrics,
    ) -> None:
        self._send = send
        self._reached = reached
        """Whether this router would hear us now."""
        self._clock = clock
        self._metrics = metrics
        self._waiting: deque[tuple[str, float, Answered]] = deque()
        self._told: deque[tuple[str, float, Answered]] = deque(maxlen=TOLD_MAX)
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, router: str, ended: Answered) -> None:
        """How a request of this router's ended. It goes out within `TOGETHER_S`, or once the router is back."""
        self._wait([(router, self._clock(), ended)])
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOGETHER_S, self.flush)

    def again(self, router: str) -> None:
        """This router may have missed what it was told lately."""
        self._wait([one for one in self._told if one[0] == router])
        self._told = deque((one for one in self._told if one[0] != router), TOLD_MAX)

    def flush(self) -> None:
        """Send what waits and can be sent now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._clock()
        while self._told and self._told[0][1] < now_s - TOLD_S_MAX:
            self._told.popleft()
        if not self._waiting:
            return
        by_router: dict[str, list[Answered]] = {}
        waiting, self._waiting = self._waiting, deque()
        reached: dict[str, bool] = {}
        for one in waiting:
            router, at_s, ended = one
            if router not in reached:
                reached[router] = self._reached(router)
            if reached[router]:
                dated = replace(ended, at_s=at_s) if ended.at_s is None else ended
                by_router.setdefault(router, []).append(dated if now_s - at_s > LATE_S else ended)
                self._told.append((router, now_s, dated))
            elif at_s >= now_s - WAITING_S_MAX:
                self._waiting.append(one)
            else:
                self._metrics.dropped("ends_late")
        for router, ends in by_router.items():
            for message in endswire.ends_bytes(router, ends, now_s):
                self._send(message)

    def _wait(self, several: Iterable[tuple[str, float, Answered]]) -> None:
        self._waiting.extend(several)
        while len(self._waiting) > WAITING_MAX:
            self._waiting.popleft()
            self._metrics.dropped("ends_late")


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
