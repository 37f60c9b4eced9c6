"""The drivers' own figures: NVML's calls are those of the real module, answered for GPUs that are not here."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from extproc.agent.gpu.amdgpu import AmdGpus, open_amdgpu
from extproc.agent.gpu.meter import GpuMeter
from extproc.agent.gpu.nvml import Nvml, open_nvml
from extproc.agent.gpu.usage import NO_GPU, GpuName, GpuUsage, unknown

GIB = 2**30
UUID = "MIG-a"


@dataclass
class Gpu:
    """A GPU, or an instance of one; `None` is what it does not tell."""

    percent: int | None = None
    memory: tuple[int, int] | None = (GIB, 4 * GIB)
    instances: dict[int, "Gpu"] = field(default_factory=dict)
    instance_id: int = 0


def error(name: str) -> Exception:
    made: Exception = pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))
    return made


def library(gpus: Sequence[Gpu]) -> Any:
    """NVML's calls and errors, for a machine with these GPUs. Instances stand at their keys, with gaps between."""

    def by_index(index: int) -> Gpu:
        if index >= len(gpus):
            raise error("INVALID_ARGUMENT")
        return gpus[index]

    def by_uuid(uuid: str) -> Gpu:
        if uuid != UUID:
            raise error("NOT_FOUND")
        return gpus[-1]

    def instance_at(gpu: Gpu, place: int) -> Gpu:
        if place not in gpu.instances:
            raise error("NOT_FOUND")
        return gpu.instances[place]

    def utilization(gpu: Gpu) -> SimpleNamespace:
        if gpu.percent is None:
            raise error("NOT_SUPPORTED")
        return SimpleNamespace(gpu=gpu.percent)

    def memory(gpu: Gpu) -> SimpleNamespace:
        if gpu.memory is None:
            raise error("NOT_SUPPORTED")
        return SimpleNamespace(used=gpu.memory[0], total=gpu.memory[1])

    return SimpleNamespace(
        NVMLError=pynvml.NVMLError,
        NVMLError_NotFound=pynvml.NVMLError_NotFound,
        NVMLError_NotSupported=pynvml.NVMLError_NotSupported,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetMaxMigDeviceCount=lambda _: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=instance_at,
        nvmlDeviceGetGpuInstanceId=lambda gpu: gpu.instance_id,
        nvmlDeviceGetUtilizationRates=utilization,
        nvmlDeviceGetMemoryInfo=memory,
    )


def test_every_call_and_error_is_one_of_the_real_module() -> None:
    for name in vars(library([])):
        assert hasattr(pynvml, name), name


def test_without_a_driver_there_is_a_reason_and_no_exception() -> None:
    nvml = open_nvml()
    if isinstance(nvml, Nvml):
        pytest.skip("this machine has NVML")
    assert nvml.startswith("NVML: ")


@pytest.mark.parametrize(
    ("gpus", "names", "usage"),
    [
        ([Gpu(37)], (), GpuUsage(0.37, 0.25)),
        ([Gpu(0), Gpu(100, (GIB, 2 * GIB))], (GpuName(1),), GpuUsage(1.0, 0.5)),
        ([Gpu(0), Gpu(100)], (GpuName(0), GpuName(1)), GpuUsage(0.5, 0.25)),
        ([Gpu(1), Gpu(5)], (GpuName(uuid=UUID),), GpuUsage(0.05, 0.25)),
    ],
)
def test_nvml_tells_both(gpus: list[Gpu], names: tuple[GpuName, ...], usage: GpuUsage) -> None:
    assert Nvml(library(gpus)).usage(names) == usage


def test_of_an_instance_nvml_tells_its_own_memory_and_no_utilisation() -> None:
    cut = Gpu(None, (0, 80 * GIB), {0: Gpu(None, (GIB, 10 * GIB), instance_id=7), 3: Gpu(None, (5, 10), instance_id=9)})
    nvml = Nvml(library([cut]))
    seen = nvml.usage((GpuName(0, 9),))
    assert seen.memory_usage == 0.5
    assert "DCGM" in str(seen.utilization)
    assert nvml.usage((GpuName(0, 3),)) == unknown("NVML: GPU 0 has no instance 3")


@pytest.mark.parametrize(
    ("gpus", "names", "utilization", "memory"),
    [
        ([Gpu(1), Gpu(2)], (), "2 GPUs", "2 GPUs"),
        ([], (), "0 GPUs", "0 GPUs"),
        ([Gpu(1)], (GpuName(5),), "Invalid Argument", "Invalid Argument"),
        ([Gpu(1)], (GpuName(uuid="GPU-b"),), "Not Found", "Not Found"),
        ([Gpu(101, None)], (), "0..100", "no memory"),
    ],
)
def test_what_nvml_cannot_tell_is_a_reason(
    gpus: list[Gpu], names: tuple[GpuName, ...], utilization: str, memory: str
) -> None:
    seen = Nvml(library(gpus)).usage(names)
    assert utilization in str(seen.utilization)
    assert memory in str(seen.memory_usage)


def card(drm: Path, place: str, busy: str = "37\n", used: str = "25\n", total: str = "100\n") -> None:
    """A card as the kernel shows it: `card0` leads to its PCI device."""
    number = len(list(drm.glob("card?")))
    device = drm.parent / "devices" / place
    device.mkdir(parents=True)
    for name, text in (("gpu_busy_percent", busy), ("mem_info_vram_used", used), ("mem_info_vram_total", total)):
        (device / name).write_text(text)
    (drm / f"card{number}").mkdir()
    (drm / f"card{number}" / "device").symlink_to(device)
    (drm / f"card{number}-DP-1").mkdir()  # a display at it


@pytest.fixture
def drm(tmp_path: Path) -> Path:
    (tmp_path / "drm").mkdir()
    return tmp_path / "drm"


def opened(drm: Path) -> AmdGpus:
    found = open_amdgpu(drm)
    assert found is not None
    return found


def test_amds_driver_tells_both(drm: Path) -> None:
    card(drm, "0000:0a:00.0")
    assert opened(drm).usage(()) == GpuUsage(0.37, 0.25)


def test_amds_cards_are_numbered_by_their_pci_addresses(drm: Path) -> None:
    card(drm, "0000:c1:00.0", busy="90")
    card(drm, "0000:0a:00.0", busy="10")
    assert opened(drm).usage((GpuName(0),)).utilization == 0.1
    assert opened(drm).usage((GpuName(0), GpuName(1))).utilization == 0.5


@pytest.mark.parametrize("name", [GpuName(2), GpuName(0, 1), GpuName(uuid="GPU-a")])
def test_a_card_that_is_not_there_is_a_reason(drm: Path, name: GpuName) -> None:
    card(drm, "a")
    card(drm, "b")
    assert "there is no GPU" in str(opened(drm).usage((name,)).utilization)
    assert "2 GPUs" in str(opened(drm).usage(()).memory_usage)


@pytest.mark.parametrize("text", ["", "x", "-1", "1" * 30, "²"])
def test_files_without_a_number_are_a_reason(drm: Path, text: str) -> None:
    card(drm, "a", text, text, text)
    seen = opened(drm).usage(())
    assert seen == GpuUsage("amdgpu: gpu_busy_percent cannot be read", "amdgpu: mem_info_vram_* cannot be read")


def test_a_machine_without_cards_has_none(drm: Path) -> None:
    assert open_amdgpu(drm) is None
    assert open_amdgpu(drm / "nowhere") is None
    (drm / "card0" / "device").mkdir(parents=True)  # another maker's
    assert open_amdgpu(drm) is None


async def test_without_a_driver_it_is_a_fault_only_where_somebody_named_a_gpu() -> None:
    assert await GpuMeter("NVML: no", ()).usage() == unknown(NO_GPU)
    assert await GpuMeter("NVML: no", (GpuName(0),)).usage() == unknown("NVML: no")


async def test_a_driver_that_hangs_is_asked_once_at_a_time() -> None:
    calls, free = [], threading.Event()

    class Hanging(Nvml):
        def usage(self, names: Sequence[GpuName]) -> GpuUsage:
            calls.append(names)
            free.wait(30)
            return super().usage(names)

    meter = GpuMeter(Hanging(library([Gpu(50)])), ())
    try:
        answers = [await meter.usage(), await meter.usage()]
        assert answers == [unknown("the GPU's driver does not answer in time")] * 2
        assert calls == [()]
    finally:
        free.set()
    assert (await asyncio.wait_for(meter.usage(), 5)).utilization == 0.5
