"""GPUs by the page of a DCGM exporter."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.enginesettings import EngineConfig
from extproc.agent.gpu.dcgm import usage_of
from extproc.agent.gpu.meter import GpuMeters
from extproc.agent.gpu.usage import GpuName, GpuUsage, unknown
from tests.agent.engine import Engine, vllm_engine

PAGE = """
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",device="nvidia0",modelName="x",Hostname="h"} 80
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",device="nvidia1",modelName="x",Hostname="h"} 20
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a"} 75
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a"} 25
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-b"} 25
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-b"} 70
DCGM_FI_DEV_FB_RESERVED{gpu="1",UUID="GPU-b"} 5
"""
CUT = """
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-a",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"} 0.25
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-a",GPU_I_PROFILE="3g.40gb",GPU_I_ID="1"} 0.75
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-a"} 0.5
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a"} 99
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a",GPU_I_ID="7"} 9
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",GPU_I_ID="7"} 1
"""


@pytest.mark.parametrize(
    ("page", "names", "usage"),
    [
        (PAGE, (GpuName(0),), GpuUsage(0.8, 0.25)),
        (PAGE, (GpuName(uuid="GPU-b"),), GpuUsage(0.2, 0.7)),
        (PAGE, (GpuName(0), GpuName(1)), GpuUsage(0.5, 95 / 200)),
        (CUT, (GpuName(0, 7),), GpuUsage(0.25, 0.1)),
        (CUT, (GpuName(0),), GpuUsage(0.5, "DCGM: DCGM_FI_DEV_FB_USED or DCGM_FI_DEV_FB_FREE is missing")),
        (CUT, (GpuName(0, 1),), GpuUsage(0.75, "DCGM: DCGM_FI_DEV_FB_USED or DCGM_FI_DEV_FB_FREE is missing")),
        ('DCGM_FI_DEV_GPU_UTIL{gpu="3"} 50\nDCGM_FI_DEV_FB_FREE{gpu="3"} 1\nDCGM_FI_DEV_FB_USED{gpu="3"} 3', (), None),
    ],
)
def test_a_page_tells_both(page: str, names: tuple[GpuName, ...], usage: GpuUsage | None) -> None:
    assert usage_of(page, names) == (usage or GpuUsage(0.5, 0.75))


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (PAGE, "DCGM: 2 GPUs and none is named"),
        ("", "DCGM: 0 GPUs and none is named"),
        ('DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0"} 1.5', "DCGM: DCGM_FI_PROF_GR_ENGINE_ACTIVE is not in 0..1"),
        ('DCGM_FI_DEV_GPU_UTIL{gpu="0"} 9223372036854775794', "DCGM: utilisation is not in 0..100 %"),
        ('DCGM_FI_DEV_GPU_UTIL{gpu="0"} NaN', "DCGM: utilisation is not in 0..100 %"),
    ],
)
def test_what_it_cannot_tell_is_a_reason(page: str, reason: str) -> None:
    assert usage_of(page, ()).utilization == reason


@pytest.mark.parametrize("blank", ["2147483632", "9223372036854775794", "NaN", "-1"])
def test_blanks_are_no_memory(blank: str) -> None:
    page = f'DCGM_FI_DEV_FB_USED{{gpu="0"}} {blank}\nDCGM_FI_DEV_FB_FREE{{gpu="0"}} 5'
    assert isinstance(usage_of(page, ()).memory_usage, str)


@given(
    st.lists(
        st.builds(
            'DCGM_FI_{}{{gpu="{}"{}}} {}'.format,
            st.sampled_from(
                ["PROF_GR_ENGINE_ACTIVE", "DEV_GPU_UTIL", "DEV_FB_USED", "DEV_FB_FREE", "DEV_FB_RESERVED", "DEV_FB"]
            ),
            st.integers(0, 2),
            st.sampled_from(["", ',GPU_I_ID="1"', ',UUID="GPU-a"']),
            st.floats() | st.integers() | st.text(max_size=5),
        ),
        max_size=12,
    ),
    st.sampled_from([(), (GpuName(0),), (GpuName(0, 1), GpuName(1)), (GpuName(uuid="GPU-a"),)]),
)
def test_no_page_makes_it_raise_or_leave_its_bounds(lines: list[str], names: tuple[GpuName, ...]) -> None:
    seen = usage_of("\n".join(lines), names)
    for share in (seen.utilization, seen.memory_usage):
        assert isinstance(share, str) or 0 <= share <= 1


def configured(engine: Engine, gpu: int) -> EngineConfig:
    url = f"{engine.url}/metrics"
    return EngineConfig.model_validate({"node_id": "n", "engine": engine.url, "gpu": gpu, "dcgm": url})


async def test_one_asking_serves_all_engines_for_a_while() -> None:
    async with vllm_engine() as exporter, GpuMeters("none", 10_000, 3600) as meters:
        exporter.pages["/metrics"] = PAGE
        seen = await asyncio.gather(*(meters.of(configured(exporter, gpu)).usage() for gpu in (0, 1)))
        assert [one.utilization for one in seen] == [0.8, 0.2]
        assert exporter.asked == ["/metrics"]


async def test_an_exporter_that_is_gone_or_refuses_is_a_reason() -> None:
    async with vllm_engine() as exporter, GpuMeters("none", 10_000, 0) as meters:
        meter = meters.of(configured(exporter, 0))
        exporter.pages["/metrics"] = 503
        assert await meter.usage() == unknown("DCGM: answers 503")
        exporter.pages["/metrics"] = PAGE
        assert (await meter.usage()).utilization == 0.8
        await exporter.kill()
        assert (await meter.usage()).utilization == "DCGM: the exporter does not answer"
