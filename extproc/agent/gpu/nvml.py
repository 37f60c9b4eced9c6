"""NVIDIA's GPUs by NVML, the library of their driver.

Where a GPU is cut by MIG, NVML tells an instance's memory, and nobody's utilisation: DCGM does.
"""

from collections.abc import Sequence
from typing import Any

import pynvml

from extproc.agent.gpu.usage import GpuName, GpuUsage, Memory, OneGpu, share_of_percent, together, unknown


class Nvml:
    """NVML of this machine, initialised. Its methods block. `library` is the module `pynvml`."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def usage(self, names: Sequence[GpuName]) -> GpuUsage:
        """How busy these GPUs are. Without a name: the only one of the machine."""
        try:
            if not names:
                count = self._library.nvmlDeviceGetCount()
                if count != 1:
                    return unknown(f"the machine has {count} GPUs and none is named")
            return together([self._one(name) for name in names or (GpuName(0),)])
        except self._library.NVMLError as error:
            return unknown(f"NVML: {error}")

    def _one(self, name: GpuName) -> OneGpu:
        device = self._device(name)
        if device is None:
            fault = f"NVML: GPU {name.index} has no instance {name.instance}"
            return OneGpu(fault, fault)
        return OneGpu(self._utilization(device), self._memory(device))

    def _device(self, name: GpuName) -> Any:
        if name.uuid is not None:
            return self._library.nvmlDeviceGetHandleByUUID(name.uuid)
        device = self._library.nvmlDeviceGetHandleByIndex(name.index)
        if name.instance is None:
            return device
        for place in range(self._library.nvmlDeviceGetMaxMigDeviceCount(device)):
            try:
                one = self._library.nvmlDeviceGetMigDeviceHandleByIndex(device, place)
                if self._library.nvmlDeviceGetGpuInstanceId(one) == name.instance:
                    return one
            except self._library.NVMLError_NotFound:
                continue  # places between instances are empty
        return None

    def _utilization(self, device: Any) -> float | str:
        """Share 0..1 of the last sampling period in which a kernel ran."""
        try:
            percent = self._library.nvmlDeviceGetUtilizationRates(device).gpu
        except self._library.NVMLError_NotSupported:
            return "NVML tells no utilisation of this GPU; DCGM does where MIG cuts it"
        return share_of_percent(percent, "NVML")

    def _memory(self, device: Any) -> Memory | str:
        try:
            memory = self._library.nvmlDeviceGetMemoryInfo(device)
        except self._library.NVMLError_NotSupported:
            return "NVML tells no memory of this GPU"
        return Memory(memory.used, memory.total)


def open_nvml() -> Nvml | str:
    """NVML, or why there is none. Blocks; call it once."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"NVML: {error}"
    return Nvml(pynvml)
