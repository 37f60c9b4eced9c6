import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from extproc.agent.gpu import GpuMeter, Nvml, open_nvml


class NVMLError(Exception):
    pass


def library(percents: list[int]) -> Any:
    """NVML's calls, for a machine with these GPUs: there is none here to ask."""

    def handle(index: int) -> int:
        if index >= len(percents):
            raise NVMLError("Invalid Argument")
        return index

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetCount=lambda: len(percents),
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetUtilizationRates=lambda index: SimpleNamespace(gpu=percents[index]),
    )


def test_without_a_driver_there_is_a_reason_and_no_exception() -> None:
    nvml = open_nvml()
    if isinstance(nvml, Nvml):
        pytest.skip("this machine has NVML")
    assert nvml.startswith("NVML: ")


async def test_a_missing_nvml_is_the_answer_of_every_meter() -> None:
    assert await GpuMeter("NVML: no", None).utilization() == "NVML: no"


@pytest.mark.parametrize(("percents", "index", "share"), [([37], None, 0.37), ([0, 100], 1, 1.0), ([5, 100], 0, 0.05)])
async def test_utilisation_is_a_share(percents: list[int], index: int | None, share: float) -> None:
    assert await GpuMeter(Nvml(library(percents)), index).utilization() == share


@pytest.mark.parametrize(
    ("percents", "index", "reason"),
    [([1, 2], None, "2 GPUs"), ([], None, "0 GPUs"), ([1], 5, "Invalid Argument"), ([101], 0, "0..100")],
)
async def test_what_cannot_be_told_is_a_reason(percents: list[int], index: int | None, reason: str) -> None:
    answer = await GpuMeter(Nvml(library(percents)), index).utilization()
    assert isinstance(answer, str)
    assert reason in answer


async def test_a_driver_that_hangs_is_asked_once_at_a_time() -> None:
    calls, free = [], threading.Event()
    hanging = library([50])

    def hang(index: int) -> SimpleNamespace:
        calls.append(index)
        free.wait(30)
        return SimpleNamespace(gpu=50)

    hanging.nvmlDeviceGetUtilizationRates = hang
    meter = GpuMeter(Nvml(hanging), 0)
    try:
        answers = [await meter.utilization(), await meter.utilization()]
        assert answers == ["NVML does not answer in time"] * 2
        assert calls == [0]
    finally:
        free.set()
    assert await asyncio.wait_for(meter.utilization(), 5) == 0.5
