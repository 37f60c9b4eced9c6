"""A bus within the process, whose state the test sets, and routers on it whose time it sets."""

from collections.abc import Callable
from typing import Any

import structlog

from extproc.bus.bus import BusCounts, Handler
from extproc.core.balancer import Balancer
from extproc.core.exchangesettings import ExchangeSettings
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import BalancerSettings
from extproc.exchange.exchange import Exchange
from extproc.ops.metrics import Metrics
from tests.core.fleet import NOW_S, balancer, request, snapshot


class Line:
    """What is published on it reaches all at once, in order; `heard` keeps it."""

    def __init__(self) -> None:
        self.ends: list[ScriptedBus] = []
        self.said: list[tuple[str, bytes]] = []

    def of(self, channel: str) -> list[bytes]:
        return [message for said, message in self.said if said == channel]


class ScriptedBus:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._handlers: list[tuple[str, Handler]] = []
        self._on_connected: Callable[[], None] | None = None
        self.counts = BusCounts()
        self.connected = False
        self.stalled = False
        """Whether all that is said is lost, in both directions, and nobody knows."""
        self.reason: str | None = None
        self.refused: str | None = None
        self.way_s = 0.0
        self.closed = False
        line.ends.append(self)

    def publish(self, channel: str, message: bytes, below: str = "") -> None:
        if self.connected and not self.stalled:
            self._line.said.append((channel, message))
            for end in self._line.ends:
                end.hear(channel, message, below)

    def hear(self, channel: str, message: bytes, below: str = "") -> None:
        for listened, handler in self._handlers if self.connected and not self.stalled else ():
            if listened == channel:
                handler(below, message)

    def listen(self, channel: str, handler: Handler) -> None:
        self._handlers.append((channel, handler))

    async def open(self, on_connected: Callable[[], None]) -> None:
        self._on_connected = on_connected
        self.connect()

    def connect(self) -> None:
        self.connected = True
        if self._on_connected is not None:
            self._on_connected()

    async def close(self) -> None:
        self.connected = False
        self.closed = True


class Told:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **values: Any) -> None:
        self.lines.append((event, values))

    exception = info = warning


class Router:
    """One on a line, with two nodes that it knows."""

    def __init__(self, line: Line, name: str, fleet: Balancer | None = None, *, key: str = "", **settings: Any) -> None:
        self.now_s = NOW_S
        self.balancer = (
            fleet
            if fleet is not None
            else balancer(
                snapshot("a"), snapshot("b"), settings=BalancerSettings(exchange=ExchangeSettings(**settings))
            )
        )
        self.bus = ScriptedBus(line)
        self.metrics = Metrics()
        self.log = Told()
        self.hears_ends = False
        log: structlog.typing.FilteringBoundLogger = self.log  # type: ignore[assignment]
        self.exchange = Exchange(
            self.balancer,
            self.bus,
            name,
            ExchangeSettings(**settings),
            lambda: self.now_s,
            self.metrics,
            log,
            key=key,
            hears_ends=lambda: self.hears_ends,
        )

    def connect(self) -> None:
        self.bus.connected = True
        self.exchange.connected()

    def route(self, request_id: str, **fields: Any) -> str:
        outcome = self.balancer.route(request(request_id, **fields), RoutingPolicy(), self.now_s).outcome
        return outcome.node_id  # type: ignore[union-attr]

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics._registry.get_sample_value(name, labels) or 0.0


def pass_time(seconds: float, *routers: Router) -> None:
    """In looks, as `run` takes them."""
    for _ in range(round(seconds / 0.05)):
        for router in routers:
            router.now_s += 0.05
            router.exchange.look()
