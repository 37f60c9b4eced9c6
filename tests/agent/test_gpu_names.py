"""Which GPUs an engine has, and what several of them come to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.enginesettings import EngineConfig
from extproc.agent.gpu.usage import GPUS_MAX, GpuName, GpuUsage, Memory, OneGpu, name_of, share_of_percent, together
from extproc.agent.settings import parse
from extproc.core.settings import Fault

UUID = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"
ENGINE = {"node_id": "n", "engine": "http://127.0.0.1:8000"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("0", GpuName(0)),
        ("17", GpuName(17)),
        ("0:1", GpuName(0, 1)),
        (UUID, GpuName(uuid=UUID)),
        ("MIG-" + "a" * 36, GpuName(uuid="MIG-" + "a" * 36)),
        ("MIG-GPU-0ab1/3/0", GpuName(uuid="MIG-GPU-0ab1/3/0")),  # as drivers before R470 wrote them
    ],
)
def test_a_gpu_has_a_name_and_shows_it(text: str, name: GpuName) -> None:
    assert name_of(text) == name
    assert str(name) == text


@pytest.mark.parametrize("text", ["", "-1", "1.5", "0:", ":1", "0:1:2", "gpu0", "GPU-", "GPU-a b", "1000", "٣"])
def test_what_is_no_gpu_has_none(text: str) -> None:
    assert name_of(text) is None


@pytest.mark.parametrize(
    ("gpu", "names"),
    [
        (None, ()),
        ([], ()),
        (3, (GpuName(3),)),
        ("0:1", (GpuName(0, 1),)),
        ([0, "1:2", UUID], (GpuName(0), GpuName(1, 2), GpuName(uuid=UUID))),
        (list(range(GPUS_MAX)), tuple(GpuName(index) for index in range(GPUS_MAX))),
    ],
)
def test_an_engine_has_one_or_several(gpu: object, names: tuple[GpuName, ...]) -> None:
    assert EngineConfig.model_validate(ENGINE | {"gpu": gpu}).gpu == names


@pytest.mark.parametrize("gpu", [True, -1, 1.5, "x", [0, 0], [0, None], {"a": 1}, list(range(GPUS_MAX + 1))])
def test_other_gpus_are_a_fault_of_the_configuration(gpu: object) -> None:
    found = parse({"engines": [ENGINE | {"gpu": gpu}]})
    assert isinstance(found, list)
    (fault,) = found
    assert isinstance(fault, Fault)
    assert fault.path == "engines.0.gpu"
    assert fault.wanted.startswith("an index, index:instance")


def test_several_gpus_are_as_busy_as_they_are_on_average_and_share_their_memory() -> None:
    gpus = [OneGpu(0.5, Memory(10, 100)), OneGpu(1.0, Memory(90, 300))]
    assert together(gpus) == GpuUsage(0.75, 0.25)


def test_what_one_does_not_tell_they_do_not_tell_together() -> None:
    assert together([OneGpu(0.5, "no memory"), OneGpu("no time", Memory(1, 2))]) == GpuUsage("no time", "no memory")


@pytest.mark.parametrize("memory", [Memory(2, 1), Memory(0, 0), Memory(-1, 1)])
def test_memory_that_cannot_be_is_not_told(memory: Memory) -> None:
    assert together([OneGpu(0.0, memory)]).memory_usage == "more memory is used than there is"


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_share_is_in_its_bounds_or_a_reason(percent: float) -> None:
    share = share_of_percent(percent, "x")
    assert isinstance(share, str) or 0 <= share <= 1
    assert isinstance(share, str) != (0 <= percent <= 100)
