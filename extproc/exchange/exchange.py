"""What a router tells the others of its fleet, and hears from them, over a bus.

| channel | it says | when |
|---|---|---|
| loads | what it has at each node | every `interval_s`, large changes within `LOOK_S`, all when somebody is new |
| placements | prompts that it sent somewhere | every `interval_s`, the recent ones again when somebody is new |
| routers | that it is there | each `HERE_S`, when it has reached the bus, and when it ends |
| ends | how answers of another router's requests ended | within 20 ms, where our Envoy told us |

Nothing here waits for the bus, and no request waits for anything here: without a word from the others each router goes
on by what it knows itself.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count

import structlog

from extproc.bus import bus as channels
from extproc.bus.bus import Bus
from extproc.core.balancer import Balancer
from extproc.core.exchangesettings import ExchangeSettings
from extproc.core.outcome import Answered
from extproc.core.peershares import PeerLeft, Word
from extproc.core.sharing import LOOK_S
from extproc.exchange import endswire, wire
from extproc.exchange.complaints import Complaints
from extproc.exchange.ends import WAITING_MAX, EndsHeard, EndsTold
from extproc.exchange.routers import Routers
from extproc.exchange.taking import PlacementsTaken
from extproc.exchange.telling import PlacementsTold
from extproc.exchange.wire import Here
from extproc.ops.exchangemetrics import RECEIVED, SENT
from extproc.ops.exchangepage import ExchangeState, PeerRow
from extproc.ops.metrics import Metrics

HERE_S = 1.0
"""So often a router says that it is there."""
ALL_AGAIN_S = 0.2
"""So soon, at the earliest, everything is told again because somebody is new."""


class Exchange:
    """One router's part. `router` names this run of this process, and begins the ids of its requests.

    `hears_ends` says whether an Envoy tells us how answers end. `key` marks what keys the hashes of prompts, which mean
    nothing to routers of another; empty: nobody is compared. `clock` is the balancer's, in seconds.
    """

    def __init__(
        self,
        balancer: Balancer,
        bus: Bus,
        router: str,
        settings: ExchangeSettings,
        clock: Callable[[], float],
        metrics: Metrics,
        log: structlog.typing.FilteringBoundLogger,
        *,
        key: str = "",
        hears_ends: Callable[[], bool] = lambda: False,
    ) -> None:
        assert wire.router_refusal(router) is None, "an id of ours"
        self._balancer = balancer
        self._bus = bus
        self._router = router
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._key = key
        self._hears_ends = hears_ends
        self._complaints = Complaints(metrics.exchange, clock, log)
        self._routers = Routers(settings, key)
        now_s = clock()
        self._placements_told = PlacementsTold(router, settings, metrics.exchange, now_s)
        refused = partial(self._complaints.refused, channels.PLACEMENTS)
        self._placements_taken = PlacementsTaken(balancer, self._prompts_count, refused, clock, metrics.exchange)
        send = partial(self._send, channels.ENDS)
        self._ends_told = EndsTold(send, self._reached, self._routers.heard_s, clock, metrics.exchange)
        self._ends_heard = EndsHeard()
        self._sequences = count(1)
        self._here_at_s = self._placements_at_s = self._all_at_s = float("-inf")
        self._somebody_is_new = False
        self._gone = False
        self._our_ends_come_s = float("-inf")
        """When some router was told of answers of ours, and told us; and as long as any is told of some."""
        self._connected, self._connected_since_s = False, now_s
        metrics.exchange.watch(lambda: bus.connected, lambda: bus.way_s, lambda: len(self._routers), self._lost)
        for channel, handler in (
            (channels.LOADS, self._loads_came),
            (channels.PLACEMENTS, self._placements_came),
            (channels.ROUTERS, self._here_came),
            (channels.ENDS, self._ends_came),
        ):
            bus.listen(channel, self._guarded(channel, handler))

    @property
    def ends_are_told(self) -> bool:
        """Whether we hear from others how our answers end: they did so before, and still can."""
        told = self._clock() - self._our_ends_come_s <= self._settings.silence_s
        return told and self._bus.connected and self._routers.hears_ends

    def connected(self) -> None:
        """The bus was reached, or again: say so at once, and everything. To be given to `Bus.open`. Never raises."""
        try:
            self._say_here(is_new=True)
            self._ends_told.again()
            self._tell_all()
        except Exception:  # noqa: BLE001
            self._fault()

    async def run(self) -> None:
        """Tell and take until it is cancelled. Faults of ours are counted, and it goes on."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._each_look())
            both.create_task(self._each_placement())

    def leave(self) -> None:
        """This router ends: the others forget what it had. It says nothing more. Never raises."""
        try:
            self._ends_told.flush(WAITING_MAX)
            self._send(channels.ROUTERS, wire.here_bytes(Here(self._router, leaves=True)))
        except Exception:  # noqa: BLE001
            self._fault()
        self._gone = True

    def ended(self, answered: Answered) -> None:
        """Envoy told us how a request fared, of whichever router's: where that is one that was heard, it is told."""
        router = endswire.router_of(answered.request_id)
        if router is not None and router != self._router and self._routers.was_heard(router):
            self._ends_told.tell(router, answered)

    def state(self, now_s: float) -> ExchangeState:
        """As the page shows it."""
        told = {one.router: one for one in self._balancer.peers(now_s)}
        rows = []
        for router in self._routers.names():
            age_s, requests = (round(one.age_s, 3), one.requests) if (one := told.get(router)) else (None, None)
            rows.append(PeerRow(router, age_s, requests, self._routers.same_key(router)))
        return ExchangeState(
            router=self._router,
            connected=self._bus.connected,
            reason=self._bus.reason or self._bus.refused,
            for_s=round(now_s - self._connected_since_s, 3),
            way_s=round(self._bus.way_s, 6) or None,
            ends_are_told=self.ends_are_told,
            peers=rows,
            messages=self._metrics.exchange.counts,
        )

    async def _each_look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self.look()
            except Exception:  # noqa: BLE001
                self._fault()

    async def _each_placement(self) -> None:
        while True:
            try:
                await self._placements_taken.run()
            except Exception:  # noqa: BLE001
                self._fault()
                await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Say what is due now; `run` asks it every `LOOK_S`."""
        now_s = self._clock()
        if self._bus.connected != self._connected:
            self._connected, self._connected_since_s = self._bus.connected, now_s
        self._routers.expire(now_s)
        if self.ends_are_told:
            self._our_ends_come_s = now_s
        if self._gone:
            return
        self._ends_told.flush()
        if self._bus.connected and now_s - self._here_at_s >= HERE_S:
            self._say_here()
        if self._somebody_is_new and now_s - self._all_at_s >= ALL_AGAIN_S:
            self._tell_all()
        elif self._bus.connected and (word := self._balancer.word(now_s)) is not None:
            self._say_word(word, now_s)
        if self._settings.placements and now_s - self._placements_at_s >= self._settings.interval_s:
            self._placements_at_s = now_s
            for message in self._placements_told.messages(self._balancer.placed(), now_s):
                self._send(channels.PLACEMENTS, message)

    def _tell_all(self) -> None:
        now_s = self._clock()
        self._somebody_is_new, self._all_at_s = False, now_s
        self._placements_told.newcomer()
        word = self._balancer.word(now_s, everything=True)
        assert word is not None, "it was asked for everything"
        self._say_word(word, now_s)

    def _say_word(self, word: Word, now_s: float) -> None:
        for message in wire.loads_bytes(
            word, self._router, lambda: next(self._sequences), self._bus.way_s, now_s, hears_ends=self._hears_ends()
        ):
            self._send(channels.LOADS, message)

    def _say_here(self, *, is_new: bool = False) -> None:
        self._here_at_s = self._clock()
        self._send(channels.ROUTERS, wire.here_bytes(Here(self._router, is_new=is_new, key=self._key)))

    def _send(self, channel: str, message: bytes) -> None:
        if self._gone:
            return
        if not self._bus.connected:
            self._metrics.exchange.dropped("disconnected")
            return
        self._bus.publish(channel, message)
        self._metrics.exchange.message(SENT, channel, len(message))

    def _guarded(self, channel: str, handler: Callable[[bytes], str | None]) -> Callable[[str, bytes], None]:
        """A handler that counts, and never raises. `handler` gives why it refuses a message, or `None`.

        What we said ourselves comes too, and ends of others' answers: that is not for us, and is known without a look.
        """

        def heard(_: str, message: bytes) -> None:
            try:
                named = wire.named_in(message)
                if named is not None and (named == self._router) != (channel == channels.ENDS):
                    return
                self._metrics.exchange.message(RECEIVED, channel, len(message))
                reason = handler(message)
                if reason is not None:
                    self._complaints.refused(channel, reason)
            except Exception:  # noqa: BLE001
                self._fault()

        return heard

    def _loads_came(self, message: bytes) -> str | None:
        now_s = self._clock()
        loads = wire.loads_of(message, self._bus.way_s, now_s)
        if isinstance(loads, str):
            return loads
        told = loads.told
        heard = told.router != self._router and self._routers.heard(told.router, now_s, hears_ends=loads.hears_ends)
        if not heard or not self._balancer.peer(told, now_s):
            self._metrics.exchange.dropped("late")
        return None

    def _placements_came(self, message: bytes) -> str | None:
        if self._settings.placements:
            self._placements_taken.came(message)
        return None

    def _here_came(self, message: bytes) -> str | None:
        now_s = self._clock()
        here = wire.here_of(message)
        if isinstance(here, str):
            return here
        if here.router == self._router:
            return None
        if here.leaves:
            self._routers.left(here.router, now_s)
            self._balancer.peer(PeerLeft(here.router), now_s)
        elif self._routers.heard(here.router, now_s, key=here.key) and here.is_new:
            self._somebody_is_new = True
            self._ends_told.again(here.router)
        return None

    def _ends_came(self, message: bytes) -> str | None:
        now_s = self._clock()
        ends = endswire.ends_of(message, self._router, now_s)
        if ends is None or isinstance(ends, str):
            return ends
        self._our_ends_come_s = now_s
        for one in ends:
            if self._ends_heard.is_new(one):
                self._balancer.answered(one, now_s)
        return None

    def _reached(self, router: str) -> bool:
        return self._bus.connected and router in self._routers

    def _prompts_count(self, router: str) -> bool:
        """Whether prompts that it tells are taken."""
        if router not in self._routers:
            self._metrics.exchange.dropped("unheard")
        elif self._routers.same_key(router) is False:
            self._complaints.other_key(router)
        else:
            return True
        return False

    def _lost(self) -> dict[str, int]:
        counts = self._bus.counts
        return {"slow": counts.dropped_slow, "unsent": counts.dropped_unsent, "long": counts.dropped_long}

    def _fault(self) -> None:
        self._log.exception("error of ours in the exchange with other routers; it goes on")
        self._metrics.our_error("exchange")
