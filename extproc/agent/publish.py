"""Telling all routers at once: each report is published on a bus, on the subject of its node.

Nothing published is kept for who is not there. So everything is told again when the bus is back, and when a router says
that it is new. Lists of models go with every report: nobody says that he has one.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import structlog
from google.protobuf.message import DecodeError

from extproc.agent.buswatch import BusWatch
from extproc.agent.standby import ROUTER_CHARS_MAX
from extproc.agent.wire import Report, goodbye_message, node_snapshot
from extproc.bus.bus import MESSAGE_BYTES_MAX, NODES, ROUTERS, Bus
from extproc.pb.exchange_pb2 import RouterHere
from extproc.pb.nodes_pb2 import AgentMessage

HEARD_S = 2.5
"""A router says that it is there each second; after so long without that it is not heard any more."""
LOOK_S = 0.25
"""How often it is looked whether all that were heard still are."""
ANEW_S_MAX = 0.1
"""Agents that are to tell everything shall not all do so in the same moment."""
ANEW_AGAIN_S = 0.5
"""Everything is told no more often than that, however many routers are new."""
ROUTERS_HEARD_MAX = 1024
"""Names that are remembered: anyone may use any number on a bus. The one heard of longest ago is forgotten."""


class Publisher:
    """An agent's end of a bus. State: each node's latest report, and when each router was last heard."""

    def __init__(
        self, bus: Bus, fleet: str, clock: Callable[[], float], log: structlog.typing.FilteringBoundLogger
    ) -> None:
        """`fleet`: who is on the bus."""
        self._bus = bus
        self._clock = clock
        self._log = log
        self._latest: dict[str, Report] = {}
        self._heard_s: dict[str, float] = {}
        self._too_long: set[str] = set()
        self._anew = asyncio.Event()
        self._leaving = asyncio.Event()
        self._watch = BusWatch(bus, fleet, clock, log)
        bus.listen(ROUTERS, self._router_here)

    def offer(self, report: Report) -> None:
        """Publish this, if the bus is there."""
        self._latest[report.snapshot.node_id] = report
        self._publish(report)

    def is_heard(self, router: str) -> bool:
        """Whether a router spoke on the bus lately, and the bus is there."""
        heard_s = self._heard_s.get(router)
        return heard_s is not None and self._bus.connected and self._clock() - heard_s < HEARD_S

    def shown(self) -> dict[str, Any]:
        """How it is with the bus, how far it is, and which routers are heard on it, ready for JSON."""
        heard = [router for router in self._heard_s if self.is_heard(router)]
        self._watch.look(is_any_heard=bool(heard))
        way_ms = round(self._bus.way_s * 1000, 3) or None  # not measured yet
        return {"bus": "nats"} | self._watch.shown() | {"way_ms": way_ms, "routers_heard": heard}

    def leave(self) -> None:
        """Say goodbye for every node, if the bus is there, and let `run` end."""
        self._leaving.set()
        self._anew.set()

    async def run(self, look: Callable[[], None]) -> None:
        """Keep the connection until `leave`. `look` is called each `LOOK_S`: `is_heard` may have another answer."""
        await self._bus.open(self._anew.set)
        try:
            await asyncio.gather(self._tell_anew(), self._look(look))
            for report in self._latest.values():
                self._send(report.snapshot.node_id, goodbye_message(report))
        finally:
            await self._bus.close()

    async def _tell_anew(self) -> None:
        while not self._leaving.is_set():
            await self._anew.wait()
            await self._pause(random.SystemRandom().uniform(0, ANEW_S_MAX))
            self._anew.clear()
            if not self._leaving.is_set():
                for report in self._latest.values():
                    self._publish(report)
            await self._pause(ANEW_AGAIN_S)

    async def _look(self, look: Callable[[], None]) -> None:
        while not self._leaving.is_set():
            await self._pause(LOOK_S)
            self._watch.look(is_any_heard=any(map(self.is_heard, self._heard_s)))
            look()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._leaving.wait(), seconds)

    def _publish(self, report: Report) -> None:
        now_s, round_trip_s = self._clock(), 2 * self._bus.way_s
        message = AgentMessage(snapshot=node_snapshot(report, now_s, round_trip_s), quiet=True)
        self._send(report.snapshot.node_id, message)

    def _send(self, node_id: str, message: AgentMessage) -> None:
        content = message.SerializeToString()
        if len(content) > MESSAGE_BYTES_MAX:
            self._too_long_told(node_id, len(content))
            message.snapshot.ClearField("models")
            content = message.SerializeToString()
        self._bus.publish(NODES, content, below=node_id)

    def _too_long_told(self, node_id: str, length: int) -> None:
        """Once for each node."""
        if node_id not in self._too_long:
            self._too_long.add(node_id)
            told = {"node_id": node_id, "message_bytes": length, "message_bytes_max": MESSAGE_BYTES_MAX}
            self._log.warning("report too long for the bus: its list of models is left out", **told)

    def _router_here(self, _: str, message: bytes) -> None:
        """Whoever is on the bus may have written it."""
        try:
            here = RouterHere.FromString(message)
        except DecodeError:
            return
        if not 0 < len(here.router) <= ROUTER_CHARS_MAX:
            return
        self._heard_s.pop(here.router, None)
        if here.leaves:
            return
        self._heard_s[here.router] = self._clock()
        if len(self._heard_s) > ROUTERS_HEARD_MAX:
            del self._heard_s[next(iter(self._heard_s))]
        if here.is_new:
            self._anew.set()
