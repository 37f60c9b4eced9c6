"""Engines that show more than can be read in time, or something new each time."""

import pytest

from extproc.agent.engines import exposition, kinds, pagevalues
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.exposition import TooManySamples, samples_of
from extproc.agent.engines.pagevalues import Look, remembered, restarted
from extproc.agent.enginesettings import EngineConfig
from extproc.agent.gpu.dcgm import usage_of
from extproc.agent.scrape import EnginePages
from extproc.agent.settings import AgentConfig
from extproc.agent.watch import EngineWatch
from extproc.core.snapshot import NodeState
from tests.agent.engine import vllm_engine
from tests.agent.pages import sample, vllm_lines

OVER = "the page has over 10000 samples of the metrics that are read"


def lines(name: str, count: int) -> str:
    return "".join(f'{name}{{engine="{number}"}} 1\n' for number in range(count))


@pytest.mark.parametrize("others", [0, 3 * exposition.SAMPLES_MAX])
def test_so_many_samples_are_read_and_one_more_are_not(others: int) -> None:
    page = lines("other", others)
    most = page + lines("a", exposition.SAMPLES_MAX - 1) + "b 1\n"
    assert sum(map(len, samples_of(most, ("a", "b")).values())) == exposition.SAMPLES_MAX
    with pytest.raises(TooManySamples, match=OVER):
        samples_of(most + "b 2\n", ("a", "b"))


async def test_an_engine_whose_page_has_too_many_is_served_without_signals() -> None:
    async with vllm_engine() as engine, EnginePages(engine.url, 4 << 20) as pages:
        told = {"node_id": "n", "engine": engine.url}
        watch = EngineWatch(pages, EngineConfig.model_validate(told), 5.0, 3600)
        assert (await watch.look()).reading.requests_running is not None
        engine.pages["/metrics"] = lines("vllm:num_requests_running", exposition.SAMPLES_MAX + 1)
        seen = await watch.look()
        assert (seen.state, seen.reading.requests_running) == (NodeState.READY, None)
        assert set(dict(seen.reading.absent).values()) == {OVER}
        engine.pages["/metrics"] = vllm_lines(generated=1)
        assert (await watch.look()).reading.requests_running is not None


async def test_models_on_a_page_with_too_many_samples_are_not_listed() -> None:
    (metric,) = kinds.ADAPTERS[EngineKind.TRTLLM].lists[1:]
    async with vllm_engine() as engine, EnginePages(engine.url, 4 << 20) as pages:
        engine.pages[metric] = lines("trtllm_model_config_info", exposition.SAMPLES_MAX + 1)
        told = {"node_id": "n", "engine": engine.url, "engine_kind": EngineKind.TRTLLM}
        seen = await EngineWatch(pages, EngineConfig.model_validate(told), 5.0, 3600).look()
        assert (seen.state, seen.not_ready) == (NodeState.LOADING, OVER)


def test_gpus_on_a_page_with_too_many_samples_are_not_known() -> None:
    assert usage_of(lines("DCGM_FI_DEV_GPU_UTIL", exposition.SAMPLES_MAX + 1), ()).utilization == f"DCGM: {OVER}"


def test_the_default_has_room_for_a_vllm_of_64_engines() -> None:
    page = sample("vllm_0.32.0_cpu_after.prom").splitlines()
    many = [one.replace('engine="0"', f'engine="{number}"') for one in page for number in range(64)]
    room = AgentConfig.model_fields["page_bytes_max"].default
    assert len("\n".join(many)) < room
    samples_of("\n".join(many), ("vllm:num_requests_running", "vllm:kv_cache_usage_perc"))


def counters(first: int, count: int, value: float = 1.0) -> dict[tuple[str, str], float]:
    return {("a", str(number)): value for number in range(first, first + count)}


def test_counters_with_labels_that_are_new_each_time_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagevalues, "REMEMBERED_MAX", 30)
    look = Look(counters=remembered(counters(0, 10), None))
    for first in range(10, 200, 10):
        look = Look(counters=remembered(counters(first, 10), look))
        assert len(look.counters) <= 30
    assert dict(look.counters) == counters(170, 30), "the latest"
    assert restarted(None, counters(170, 10, 0.0), look)
    assert len(remembered(counters(500, 40), look)) == 40, "a page's own stay"


def test_counters_that_are_not_on_a_page_stay_known_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagevalues, "REMEMBERED_MAX", 30)
    look = Look(counters=counters(0, 20))
    look = Look(counters=remembered(counters(15, 15, 2.0), look))
    assert dict(look.counters) == {**counters(0, 15), **counters(15, 15, 2.0)}
    look = Look(counters=remembered(counters(29, 2, 3.0), look))
    assert dict(look.counters) == {**counters(1, 14), **counters(15, 14, 2.0), **counters(29, 2, 3.0)}
