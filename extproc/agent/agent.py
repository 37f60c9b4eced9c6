"""The agent: looks at every engine once an interval, and pushes what it saw to every router."""

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import structlog

from extproc.agent import credentials
from extproc.agent.engines.reading import FIRST_LOOK, MEASURED, NOT_TOLD, QUIET
from extproc.agent.enginesettings import EngineConfig
from extproc.agent.gpu.meter import GpuMeter, GpuMeters, open_driver
from extproc.agent.gpu.usage import NO_GPU, GpuUsage
from extproc.agent.push import RouterLink
from extproc.agent.resolve import resolve
from extproc.agent.scrape import EnginePages
from extproc.agent.settings import AgentConfig
from extproc.agent.watch import EngineWatch, Sighting
from extproc.agent.wire import Report
from extproc.core.snapshot import REASON_CHARS_MAX, SIGNALS, NodeState, Snapshot

_NOTHING_WRONG = frozenset({QUIET, FIRST_LOOK, NOT_TOLD, NO_GPU})

log: structlog.typing.FilteringBoundLogger = structlog.get_logger("agent")


async def run(config: AgentConfig, stop: asyncio.Event | None = None) -> None:
    """Report until SIGTERM, SIGINT, `stop` or cancellation; then say goodbye for every node."""
    loop = asyncio.get_running_loop()
    stopping = stop or asyncio.Event()
    driver = await asyncio.to_thread(open_driver)
    agent_id = secrets.token_hex(6)
    async with contextlib.AsyncExitStack() as ending:
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(RuntimeError, ValueError):  # not the main thread
                loop.add_signal_handler(number, stopping.set)
                ending.callback(loop.remove_signal_handler, number)
        gpus = await ending.enter_async_context(GpuMeters(driver, config.page_bytes_max, config.interval_s / 2))
        nodes = [_Node(engine, config, agent_id, gpus.of(engine)) for engine in config.engines]
        for node in nodes:
            await ending.enter_async_context(node.pages)
        read = partial(credentials.read, config)
        links = [RouterLink(router, config.reconnect_backoff_s_max, loop.time, log, read) for router in config.routers]
        pushing = [asyncio.create_task(link.run()) for link in links]
        looking = [asyncio.create_task(_keep_reporting(node, links, config.interval_s)) for node in nodes]
        waiting = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait((waiting, *pushing, *looking), return_when=asyncio.FIRST_COMPLETED)
            for task in (*pushing, *looking):
                if task.done():
                    task.result()  # none of them ends by itself, except by an error of ours
        finally:
            log.info("stopping", nodes=[node.node_id for node in nodes][:10])
            await _cancel([waiting, *looking])
            for link in links:
                link.leave()
            await asyncio.wait(pushing, timeout=config.goodbye_s)
            await _cancel(pushing)


async def sample_once(config: AgentConfig) -> list[dict[str, Any]]:
    """Look at every engine once; its snapshot ready for JSON, with the reasons of what is not there under `absent`."""
    driver = await asyncio.to_thread(open_driver)
    async with GpuMeters(driver, config.page_bytes_max, config.interval_s / 2) as gpus:
        nodes = [_Node(engine, config, secrets.token_hex(6), gpus.of(engine)) for engine in config.engines]
        return await asyncio.gather(*(_sample(node) for node in nodes))


async def _sample(node: "_Node") -> dict[str, Any]:
    async with node.pages:
        report = await node.look()
    absent = dict(node.absent)
    if report is None:
        return {"node_id": node.node_id, "absent": absent}
    values = asdict(report.snapshot, dict_factory=_known)
    del values["round_trip_s"]  # each router has its own
    age_s = asyncio.get_running_loop().time() - report.sampled_at_s
    return values | {"state": report.snapshot.state.value, "sample_age_s": round(age_s, 3), "absent": absent}


def _known(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if value is not None}


async def _keep_reporting(node: "_Node", links: list[RouterLink], interval_s: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        next_s = loop.time() + interval_s
        report = await node.look()
        node.log_changes(report)
        if report is not None:
            for link in links:
                link.offer(report)
        await asyncio.sleep(max(0.0, next_s - loop.time()))


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Node:
    """One engine as a node: its watch, its GPU, its address, and the numbering of its reports."""

    def __init__(self, engine: EngineConfig, config: AgentConfig, agent_id: str, gpu: GpuMeter) -> None:
        self.pages = EnginePages(engine.engine, config.page_bytes_max)
        self.absent: dict[str, str] = {}
        self._engine = engine
        self._agent_id = agent_id
        self._watch = EngineWatch(self.pages, engine, config.scrape_timeout_s, config.models_interval_s)
        self._gpu = gpu
        self._resolve_within_s = config.scrape_timeout_s
        self._host: str | None = None
        self._host_is_old = False
        self._sequence = 0
        self._state_logged = ""
        self._absent_logged: set[tuple[str, str]] = set()

    @property
    def node_id(self) -> str:
        return self._engine.node_id

    async def look(self) -> Report | None:
        """One report; `None` while the node's host has no address. Fills `absent`."""
        sighting, gpu, _ = await asyncio.gather(self._watch.look(), self._gpu.usage(), self._resolve())
        self.absent = dict(sighting.reading.absent)
        for name, share in (("gpu_utilization", gpu.utilization), ("gpu_memory_usage", gpu.memory_usage)):
            if isinstance(share, str):
                self.absent[name] = share
        if sighting.models_fault is not None:
            self.absent["models"] = sighting.models_fault
        if sighting.not_ready is not None:
            self.absent["ready"] = sighting.not_ready
        # An engine that comes back may have come back elsewhere.
        self._host_is_old = sighting.state is not NodeState.READY
        if self._host is None:
            self.absent["host"] = f"{self._engine.host.host} has no address"
            return None
        self._sequence += 1
        return Report(self._snapshot(self._host, sighting, gpu), sighting.sampled_at_s)

    def log_changes(self, report: Report | None) -> None:
        """Log a change of state, and every absent signal once per reason."""
        state = None if report is None else report.snapshot.state
        shown = "no address" if state is None else state.value
        if shown != self._state_logged:
            self._state_logged = shown
            tell = log.info if state is NodeState.READY else log.warning
            reason = self.absent.get("host") or self.absent.get("ready")
            tell("node state", node_id=self.node_id, state=shown, reason=reason)
        if state is not NodeState.READY:
            return  # all of it is absent or reaches nobody, for one reason that is logged
        for name, reason in self.absent.items():
            if reason in _NOTHING_WRONG or name == "ready" or (name, reason) in self._absent_logged:
                continue
            self._absent_logged.add((name, reason))
            log.warning("signal absent", node_id=self.node_id, signal=name, reason=reason)

    async def _resolve(self) -> None:
        if self._host is None or self._host_is_old:
            self._host = await resolve(self._engine.host, self._resolve_within_s) or self._host

    def _told_absent(self, sighting: Sighting) -> tuple[tuple[str, str], ...]:
        """What routers are told: signals that should be there. Of an engine that is not ready they know why already."""
        if sighting.state is not NodeState.READY:
            return ()
        wrong = {name: reason for name, reason in self.absent.items() if reason not in _NOTHING_WRONG}
        return tuple(sorted((name, reason[:REASON_CHARS_MAX]) for name, reason in wrong.items() if name in SIGNALS))

    def _snapshot(self, host: str, sighting: Sighting, gpu: GpuUsage) -> Snapshot:
        measured: dict[str, Any] = {name: getattr(sighting.reading, name) for name in MEASURED}
        return Snapshot(
            node_id=self.node_id,
            host=host,
            boot_id=f"{self._agent_id}.{sighting.generation}",
            sequence=self._sequence,
            sample_age_s=0.0,
            state=sighting.state,
            models=sighting.models,
            gpu_utilization=None if isinstance(gpu.utilization, str) else gpu.utilization,
            gpu_memory_usage=None if isinstance(gpu.memory_usage, str) else gpu.memory_usage,
            weight=self._engine.weight,
            not_ready_reason=sighting.not_ready,
            absent=self._told_absent(sighting),
            **measured,
        )
