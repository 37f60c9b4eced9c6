"""Which GPUs an engine computes on, and how busy they are: values only."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

GPUS_MAX: Final = 64
"""GPUs of one engine."""
NO_GPU: Final = "no GPU of NVIDIA or AMD was found"
"""Reason on a machine where there is nothing to ask, and nobody said that there is."""

_PLACE = re.compile(r"([0-9]{1,3})(?::([0-9]{1,3}))?")
_UUID = re.compile(r"(?:GPU|MIG)-[A-Za-z0-9/-]{1,120}")


@dataclass(frozen=True, slots=True)
class GpuName:
    """One GPU, or one of the instances into which MIG cuts it."""

    index: int | None = None
    """Its number on the machine, by its driver's own order."""
    instance: int | None = None
    """The id of the GPU instance, where it is cut."""
    uuid: str | None = None
    """NVIDIA's name for it, instead of both."""

    def __str__(self) -> str:
        """As it is configured."""
        return self.uuid or (f"{self.index}" if self.instance is None else f"{self.index}:{self.instance}")


def name_of(text: str) -> GpuName | None:
    """A GPU out of `0`, `0:1`, `GPU-…` or `MIG-…`; `None` if it is none of them."""
    if _UUID.fullmatch(text) is not None:
        return GpuName(uuid=text)
    place = _PLACE.fullmatch(text)
    if place is None:
        return None
    return GpuName(int(place[1]), None if place[2] is None else int(place[2]))


@dataclass(frozen=True, slots=True)
class Memory:
    """A GPU's memory, in bytes or another unit that is the same for all GPUs of an engine."""

    used: float
    total: float


@dataclass(frozen=True, slots=True)
class OneGpu:
    """How busy one GPU is; a text is why that is not known."""

    utilization: float | str
    """Share 0..1 of the time."""
    memory: Memory | str


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """How busy all GPUs of an engine are; a text is why that is not known."""

    utilization: float | str
    """Share 0..1 of the time, their mean."""
    memory_usage: float | str
    """Share 0..1 of their memory together."""


def unknown(reason: str) -> GpuUsage:
    """Nothing is known."""
    return GpuUsage(reason, reason)


def together(gpus: Sequence[OneGpu]) -> GpuUsage:
    """All GPUs of an engine, one at least: what one of them does not tell, they do not tell together."""
    shares = [one.utilization for one in gpus]
    utilization = next((share for share in shares if isinstance(share, str)), None)
    memories = [one.memory for one in gpus]
    fault = next((memory for memory in memories if isinstance(memory, str)), None)
    return GpuUsage(
        sum(share for share in shares if not isinstance(share, str)) / len(gpus)
        if utilization is None
        else utilization,
        _share_of([memory for memory in memories if isinstance(memory, Memory)]) if fault is None else fault,
    )


def share_of_percent(percent: float, who: str) -> float | str:
    """A share out of 0..100 %."""
    return percent / 100 if 0 <= percent <= 100 else f"{who}: utilisation is not in 0..100 %"


def _share_of(memories: Sequence[Memory]) -> float | str:
    used, total = sum(one.used for one in memories), sum(one.total for one in memories)
    return used / total if 0 <= used <= total and total > 0 else "more memory is used than there is"
