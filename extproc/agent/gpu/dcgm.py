"""GPUs by the page of a DCGM exporter, as it runs beside every GPU of many clusters.

Utilisation is `DCGM_FI_PROF_GR_ENGINE_ACTIVE`, a share, which instances of MIG have too; without profiling it is
`DCGM_FI_DEV_GPU_UTIL`, in percent. Memory is `DCGM_FI_DEV_FB_USED`, `_FREE` and, where it is told, `_RESERVED`, in MiB.
"""

import asyncio
from collections.abc import Callable, Sequence

from extproc.agent.engines.exposition import Page, Sample, TooManySamples, samples_of
from extproc.agent.gpu.usage import GpuName, GpuUsage, Memory, OneGpu, share_of_percent, together, unknown
from extproc.agent.scrape import Answer, EnginePages

_ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
_BUSY = "DCGM_FI_DEV_GPU_UTIL"
_USED, _FREE, _RESERVED = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"
_WANTED = frozenset({_ACTIVE, _BUSY, _USED, _FREE, _RESERVED})


def usage_of(text: str, names: Sequence[GpuName]) -> GpuUsage:
    """How busy these GPUs are, by a page. Without a name: the only one on it. Raises for no input."""
    try:
        page = samples_of(text, _WANTED)
    except TooManySamples as error:
        return unknown(f"DCGM: {error}")
    if not names:
        known = {_place(sample) for samples in page.values() for sample in samples}
        if len(known) != 1:
            return unknown(f"DCGM: {len(known)} GPUs and none is named")
    return together([_one(page, name) for name in names or (None,)])


class DcgmExporter:
    """One exporter, asked once for all engines that look at about the same time."""

    def __init__(self, pages: EnginePages, path: str, clock: Callable[[], float], fresh_s: float) -> None:
        """An answer serves everybody for `fresh_s`."""
        self._pages = pages
        self._path = path
        self._clock = clock
        self._fresh_s = fresh_s
        self._asking = asyncio.Lock()
        self._page: str | None = None
        self._fault = ""
        self._until_s = float("-inf")

    async def usage(self, names: Sequence[GpuName], within_s: float) -> GpuUsage:
        """How busy these GPUs are, or why that is not known."""
        async with self._asking:
            if self._clock() >= self._until_s:
                answer = await self._pages.get(self._path, self._clock() + within_s)
                self._until_s = self._clock() + self._fresh_s
                sound = isinstance(answer, Answer) and answer.status == 200
                self._page = answer.text if isinstance(answer, Answer) and sound else None
                reason = f"answers {answer.status}" if isinstance(answer, Answer) else "the exporter does not answer"
                self._fault = f"DCGM: {reason}"
        return unknown(self._fault) if self._page is None else usage_of(self._page, names)


def _one(page: Page, name: GpuName | None) -> OneGpu:
    active, busy, used, free, reserved = (
        _value(page, metric, name) for metric in (_ACTIVE, _BUSY, _USED, _FREE, _RESERVED)
    )
    utilization: float | str
    if active is not None:
        utilization = active if 0 <= active <= 1 else f"DCGM: {_ACTIVE} is not in 0..1"
    elif busy is not None:
        utilization = share_of_percent(busy, "DCGM")
    else:
        utilization = f"DCGM: {_ACTIVE} and {_BUSY} are missing"
    if used is None or free is None or not (0 <= used < _BLANK_MIN and 0 <= free < _BLANK_MIN):
        return OneGpu(utilization, f"DCGM: {_USED} or {_FREE} is missing")
    return OneGpu(utilization, Memory(used, used + free + max(0.0, reserved or 0.0)))


_BLANK_MIN = float(2**31 - 16)
"""DCGM writes numbers from here on, and from 2^63 - 16 on, for what it does not know."""


def _value(page: Page, metric: str, name: GpuName | None) -> float | None:
    """The GPU's own sample: where it is cut by MIG, samples of instances stand beside that of the whole."""
    for sample in page.get(metric, ()):
        index, instance, uuid = _place(sample)
        if name is None or (name.uuid is not None and name.uuid == uuid and not instance):
            return sample.value
        if (
            name.uuid is None
            and index == str(name.index)
            and instance == ("" if name.instance is None else str(name.instance))
        ):
            return sample.value
    return None


def _place(sample: Sample) -> tuple[str, str, str]:
    labels = sample.labels
    return labels.get("gpu", ""), labels.get("GPU_I_ID", ""), labels.get("UUID", labels.get("uuid", ""))
