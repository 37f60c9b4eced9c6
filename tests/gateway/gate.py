"""A fleet at which requests wait, for tests of when it is looked whether they may go."""

import asyncio
import time

from extproc.core.admissionsettings import PriorityClass
from extproc.core.balancer import Balancer
from extproc.core.decision import Decision, Queued
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import BalancerSettings, NodeLimits
from extproc.core.snapshot import NodeReported
from extproc.gateway.waiting import WaitingRequests
from tests.core.fleet import request, snapshot

FOR_EVER_MS, SHORT_MS = 3_600_000, 30
CLASSES = {"patient": PriorityClass(queue_ms_max=FOR_EVER_MS), "short": PriorityClass(queue_ms_max=SHORT_MS)}
SETTINGS = BalancerSettings(
    nodes=NodeLimits(fresh_s=3000, stale_s=3000, member_s=3000), classes=CLASSES, default_class="patient"
)


class Fleet(Balancer):
    """One node, which has no room at first. It counts how often somebody looks."""

    def __init__(self) -> None:
        super().__init__(SETTINGS, time.monotonic() - 60)
        self.looks = 0
        self.took_s = 0.0
        self.takes_s = 0.0
        """What a look costs, beside what it does."""
        self.fails = False
        self._sequence = 0
        self.report(requests_waiting=100)

    def report(self, **fields: object) -> None:
        self._sequence += 1
        self.observe(NodeReported(snapshot("a", sequence=self._sequence, **fields)), time.monotonic())

    def admit(self, now_s: float) -> list[Decision]:
        self.looks += 1
        began_s = time.perf_counter()
        if self.fails:
            msg = "broken for the test"
            raise RuntimeError(msg)
        decisions = super().admit(now_s)
        while time.perf_counter() < began_s + self.takes_s:
            pass
        self.took_s += time.perf_counter() - began_s
        return decisions

    def queue(self, request_id: str, priority: str = "patient") -> None:
        one = request(request_id, priority=priority)
        decision = self.route(one, RoutingPolicy(), time.monotonic())
        assert isinstance(decision.outcome, Queued)


class Gate:
    """Those who wait at a fleet, each in a task of its own, as the server has them."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.faults = 0
        self.waiting = WaitingRequests(self.fleet, time.monotonic, self._fault)
        self.tasks: dict[str, asyncio.Task[Decision]] = {}

    def _fault(self) -> None:
        self.faults += 1

    async def come(self, *request_ids: str, priority: str = "patient") -> None:
        before = len(self.waiting)
        for request_id in request_ids:
            self.tasks[request_id] = asyncio.create_task(self._wait(request_id, priority))
        await asyncio.sleep(0)
        assert len(self.waiting) == before + len(request_ids)

    async def _wait(self, request_id: str, priority: str) -> Decision:
        self.fleet.queue(request_id, priority)
        try:
            return await self.waiting.decision(request_id)
        finally:
            self.fleet.finish(request_id, time.monotonic())

    async def decided(self, request_id: str) -> Decision:
        return await asyncio.wait_for(asyncio.shield(self.tasks[request_id]), 10)


async def turn(times: int = 20) -> None:
    """Let the loop go round, so that all that is due now has been done."""
    for _ in range(times):
        await asyncio.sleep(0)
