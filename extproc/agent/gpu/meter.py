"""Asks for the GPUs of one engine, off the loop, never twice at a time and never for long.

Drivers' calls block: for a millisecond usually, and for seconds when a driver is in trouble.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from extproc.agent.enginesettings import EngineConfig
from extproc.agent.gpu.amdgpu import AmdGpus, open_amdgpu
from extproc.agent.gpu.dcgm import DcgmExporter
from extproc.agent.gpu.nvml import Nvml, open_nvml
from extproc.agent.gpu.usage import NO_GPU, GpuName, GpuUsage, unknown
from extproc.agent.scrape import EnginePages

TIMEOUT_S = 0.5

Driver = Nvml | AmdGpus


def open_driver() -> Driver | str:
    """The driver of this machine's GPUs, or why there is none. Blocks; call it once."""
    nvml = open_nvml()
    return nvml if isinstance(nvml, Nvml) else open_amdgpu() or nvml


class GpuMeter:
    """How busy the GPUs of one engine are."""

    def __init__(self, source: Driver | DcgmExporter | str, names: Sequence[GpuName]) -> None:
        """`source` may be the reason why there is none."""
        self._source = source
        self._names = names
        self._asked: asyncio.Future[GpuUsage] | None = None

    async def usage(self) -> GpuUsage:
        """How busy they are, or why that is not known. Where nobody named one, no driver is no fault."""
        if isinstance(self._source, str):
            return unknown(self._source if self._names else NO_GPU)
        if isinstance(self._source, DcgmExporter):
            return await self._source.usage(self._names, TIMEOUT_S)
        if self._asked is None:
            self._asked = asyncio.ensure_future(asyncio.to_thread(self._source.usage, self._names))
        await asyncio.wait((self._asked,), timeout=TIMEOUT_S)
        if not self._asked.done():
            return unknown("the GPU's driver does not answer in time")
        usage, self._asked = self._asked.result(), None
        return usage


class GpuMeters:
    """The meters of an agent's engines, with what they share: the machine's driver, and one look at each exporter.

    An async context manager.
    """

    def __init__(self, driver: Driver | str, page_bytes_max: int, fresh_s: float) -> None:
        """An exporter's answer serves all engines for `fresh_s`."""
        self._driver = driver
        self._page_bytes_max = page_bytes_max
        self._fresh_s = fresh_s
        self._exporters: dict[str, tuple[EnginePages, DcgmExporter]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pages, _ in self._exporters.values():
            await pages.__aexit__(kind, error, trace)

    def of(self, engine: EngineConfig) -> GpuMeter:
        """The meter of one engine."""
        if engine.dcgm is None:
            return GpuMeter(self._driver, engine.gpu)
        if engine.dcgm not in self._exporters:
            path = urlsplit(engine.dcgm).path
            base = engine.dcgm.removesuffix(path)
            pages = EnginePages(base, self._page_bytes_max)
            clock = asyncio.get_running_loop().time
            self._exporters[engine.dcgm] = (pages, DcgmExporter(pages, path or "/metrics", clock, self._fresh_s))
        return GpuMeter(self._exporters[engine.dcgm][1], engine.gpu)
