"""One engine as a node: its watch, its GPU, its address, the numbering of its reports, and whether it drains."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Self

from extproc.agent.drain import Drain
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.reading import MEASURED
from extproc.agent.enginesettings import EngineConfig
from extproc.agent.gpu.meter import GpuMeter
from extproc.agent.gpu.usage import GpuUsage
from extproc.agent.kv.feed import KvFeed
from extproc.agent.nodelog import NOTHING_WRONG, NodeLog
from extproc.agent.pace import Pace
from extproc.agent.resolve import resolve
from extproc.agent.scrape import EnginePages
from extproc.agent.settings import AgentConfig
from extproc.agent.watch import EngineWatch, Sighting
from extproc.agent.wire import Report
from extproc.core.snapshot import SIGNALS, NodeState, Snapshot

DRAINING = "draining"
DRAIN_LOOK_S = 1.0
"""No longer than that is it between two looks at an engine that has to finish."""


class Node:
    """One engine that is looked at and reported. An async context manager, which holds the connection to the engine."""

    def __init__(self, engine: EngineConfig, config: AgentConfig, agent_id: str, gpu: GpuMeter) -> None:
        self.absent: dict[str, str] = {}
        """By field, why the latest look has no value for it; `ready` and `host` too."""
        self.emptied = asyncio.Event()
        """Set while it drains and its engine has no requests any more."""
        self._engine = engine
        self._agent_id = agent_id
        self._pages = EnginePages(engine.engine, config.page_bytes_max)
        self._watch = EngineWatch(
            self._pages,
            engine,
            config.scrape_timeout_s,
            config.models_interval_s,
            hung_s=config.hung_s,
            probe_timeout_s=config.probe_timeout_s,
        )
        self._gpu = gpu
        self._kv = None if engine.kv_events is None else KvFeed(engine.kv_events, engine.node_id)
        self._pace = Pace(engine.node_id, config.interval_s, config.idle_interval_s)
        self._drain = Drain()
        self._hurry = asyncio.Event()
        self._resolve_within_s = config.scrape_timeout_s
        self._host: str | None = None
        self._host_is_old = False
        self._sequence = 0
        self._seen: tuple[Sighting, GpuUsage] | None = None
        self._log = NodeLog(engine.node_id)
        self._tell: Callable[[Report], None] | None = None

    async def __aenter__(self) -> Self:
        if self._kv is not None:
            await self._kv.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kv is not None:
            await self._kv.__aexit__(kind, error, trace)
        await self._watch.close()
        await self._pages.__aexit__(kind, error, trace)

    @property
    def node_id(self) -> str:
        """As routers know it."""
        return self._engine.node_id

    @property
    def draining(self) -> bool:
        """Whether it takes nothing new, because somebody said so."""
        return self._drain.on

    async def keep_reporting(self, tell: Callable[[Report], None]) -> None:
        """Look and tell, again and again, as often as `Pace` says; never twice at a time."""
        loop = asyncio.get_running_loop()
        self._tell = tell
        while True:
            began_s = loop.time()
            report = await self.look()
            assert self._seen is not None
            self._log.changes(None if report is None else report.snapshot.state, self.absent)
            if report is not None:
                tell(self._with_kv(report))
            next_s = self._pace.next_s(self._seen[0], began_s)
            if self._drain.on and not self._drain.is_empty:
                next_s = min(next_s, began_s + DRAIN_LOOK_S)  # somebody waits
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(max(next_s, loop.time())):
                    await self._hurry.wait()
            self._hurry.clear()

    def _with_kv(self, report: Report) -> Report:
        if self._kv is None:
            return report
        snapshot = report.snapshot
        return replace(report, kv=self._kv.report(snapshot.boot_id, snapshot.first_tokens_total))

    async def look(self) -> Report | None:
        """One report; `None` while the node's host has no address. Fills `absent`."""
        began_s = asyncio.get_running_loop().time()
        if self._host is None or self._host_is_old:
            sighting, gpu, _ = await asyncio.gather(self._watch.look(), self._gpu.usage(), self._resolve())
        else:
            sighting, gpu = await asyncio.gather(self._watch.look(), self._gpu.usage())
        self._seen = sighting, gpu
        if self._drain.saw(sighting, began_s):
            self._log.drain_ended()
        if self._drain.is_empty:
            self.emptied.set()
        else:
            self.emptied.clear()
        # An engine that comes back may have come back elsewhere.
        self._host_is_old = sighting.state is not NodeState.READY
        self._sequence += 1
        return self._report()

    def drain(self, *, hold: bool = False) -> None:
        """Take nothing new from here on: told at once, until `undrain` or, without `hold`, the engine began anew."""
        was_on = self._drain.on
        self._drain.begin(asyncio.get_running_loop().time(), hold=hold)
        if not was_on:
            self._restate()

    def undrain(self) -> None:
        """Take requests again."""
        if self._drain.on:
            self._drain.end()
            self.emptied.clear()
            self._restate()

    def shown(self) -> dict[str, Any]:
        """The latest look, ready for JSON, with the reasons of what is not there under `absent`."""
        report = None if self._seen is None else self._report()
        shown: dict[str, Any] = {"node_id": self.node_id, "draining": self._drain.on}
        if self._seen is not None:
            sighting, _ = self._seen
            known = sighting.engine_kind is not EngineKind.AUTO
            shown |= {"engine_kind": sighting.engine_kind.value if known else None, "reached": sighting.reached}
        shown["absent"] = absent = _collapsed(self.absent)
        if self._kv is not None:
            blocks = self._kv.blocks_known()
            if isinstance(blocks, str):
                absent["kv_blocks"] = blocks
            else:
                shown["kv_blocks"] = blocks
        if report is None:
            return shown
        values = asdict(report.snapshot, dict_factory=_known)
        del values["round_trip_s"]  # each router has its own
        age_s = asyncio.get_running_loop().time() - report.sampled_at_s
        return values | shown | {"state": report.snapshot.state.value, "sample_age_s": round(age_s, 3)}

    async def _resolve(self) -> None:
        self._host = await resolve(self._engine.host, self._resolve_within_s) or self._host

    def _restate(self) -> None:
        """Tell what was seen last with the state that holds now, and look again at once."""
        self._hurry.set()
        self._sequence += 1
        if self._tell is not None and self._seen is not None and (report := self._report()) is not None:
            self._log.changes(report.snapshot.state, self.absent)
            self._tell(self._with_kv(report))

    def _report(self) -> Report | None:
        assert self._seen is not None
        sighting, gpu = self._seen
        state, not_ready = sighting.state, sighting.not_ready
        if self._drain.on and state is NodeState.READY:
            state, not_ready = NodeState.DRAINING, DRAINING
        absent = dict(sighting.reading.absent)
        for name, share in (("gpu_utilization", gpu.utilization), ("gpu_memory_usage", gpu.memory_usage)):
            if isinstance(share, str):
                absent[name] = share
        if sighting.models_fault is not None:
            absent["models"] = sighting.models_fault
        if not_ready is not None:
            absent["ready"] = not_ready
        self.absent = absent
        if self._host is None:
            absent["host"] = f"{self._engine.host.host} has no address"
            return None
        return Report(self._snapshot(self._host, sighting, gpu, state, not_ready), sighting.sampled_at_s)

    def _told_absent(self, state: NodeState) -> tuple[tuple[str, str], ...]:
        """What routers are told: signals that should be there. Of an engine that is not ready they know why already."""
        if state is not NodeState.READY:
            return ()
        wrong = {name: reason for name, reason in self.absent.items() if reason not in NOTHING_WRONG}
        return tuple(sorted((name, reason) for name, reason in wrong.items() if name in SIGNALS))

    def _snapshot(
        self, host: str, sighting: Sighting, gpu: GpuUsage, state: NodeState, not_ready: str | None
    ) -> Snapshot:
        measured: dict[str, Any] = {name: getattr(sighting.reading, name) for name in MEASURED}
        return Snapshot(
            node_id=self.node_id,
            host=host,
            boot_id=f"{self._agent_id}.{sighting.generation}",
            sequence=self._sequence,
            sample_age_s=0.0,
            state=state,
            models=sighting.models,
            gpu_utilization=None if isinstance(gpu.utilization, str) else gpu.utilization,
            gpu_memory_usage=None if isinstance(gpu.memory_usage, str) else gpu.memory_usage,
            weight=self._engine.weight,
            not_ready_reason=not_ready,
            absent=self._told_absent(state),
            **measured,
        )


def _collapsed(absent: Mapping[str, str]) -> dict[str, str]:
    """With `*` for everything that the engine's metrics should tell, where all of it is absent for one reason. What
    keeps the node out of use comes first.
    """
    first = {name: absent[name] for name in ("host", "ready") if name in absent}
    reasons = {absent.get(name) for name in MEASURED}
    (reason, *others) = reasons
    if reason is None or others:
        return first | dict(absent)
    rest = {name: why for name, why in absent.items() if name not in MEASURED}
    return first | {"*": reason} | rest


def _known(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if value is not None}
