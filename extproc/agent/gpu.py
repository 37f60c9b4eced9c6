"""GPU utilisation by NVML, where there is an NVIDIA GPU; elsewhere the signal is absent.

NVML's calls block, for a millisecond usually and for seconds when a driver is in trouble, so they run in a thread.
"""

import asyncio
from typing import Any

import pynvml

_TIMEOUT_S = 0.5


class Nvml:
    """NVML of this machine, initialised. Its methods block. `library` is the module `pynvml`."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def utilization(self, index: int | None) -> float | str:
        """Share 0..1 of the last sampling period in which a kernel ran, or why it is not known.

        Without an index: the only GPU's.
        """
        try:
            if index is None:
                count = self._library.nvmlDeviceGetCount()
                if count != 1:
                    return f"the machine has {count} GPUs and none is named"
            device = self._library.nvmlDeviceGetHandleByIndex(index or 0)
            percent = self._library.nvmlDeviceGetUtilizationRates(device).gpu
        except self._library.NVMLError as error:
            return f"NVML: {error}"
        return percent / 100 if 0 <= percent <= 100 else "NVML: utilisation is not in 0..100 %"


def open_nvml() -> Nvml | str:
    """NVML, or why there is none. Blocks; call it once."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"NVML: {error}"
    return Nvml(pynvml)


class GpuMeter:
    """Asks for one GPU's utilisation, off the loop and never twice at a time."""

    def __init__(self, nvml: Nvml | str, index: int | None) -> None:
        self._nvml = nvml
        self._index = index
        self._asked: asyncio.Future[float | str] | None = None

    async def utilization(self) -> float | str:
        """Share 0..1, or why it is not known."""
        if isinstance(self._nvml, str):
            return self._nvml
        if self._asked is None:
            self._asked = asyncio.ensure_future(asyncio.to_thread(self._nvml.utilization, self._index))
        await asyncio.wait((self._asked,), timeout=_TIMEOUT_S)
        if not self._asked.done():
            return "NVML does not answer in time"
        share, self._asked = self._asked.result(), None
        return share
