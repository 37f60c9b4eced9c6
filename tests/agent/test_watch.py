import contextlib
import dataclasses
from collections.abc import AsyncIterator

import pytest

from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.reading import MEASURED
from extproc.agent.enginesettings import EngineConfig
from extproc.agent.scrape import EnginePages
from extproc.agent.watch import LATE_LOOKS_MAX, EngineWatch
from extproc.core.snapshot import NodeState, ServedModel
from tests.agent import engine as misbehaviour
from tests.agent.engine import Engine, Handler, vllm_engine
from tests.agent.pages import started, vllm_lines

LOADING, READY = NodeState.LOADING, NodeState.READY
SLEEPS_AT_LEVEL_2 = "".join(
    f'vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="{state}"}} {value}\n'
    for state, value in [("awake", 0.0), ("weights_offloaded", 0.0), ("discard_all", 1.0)]
)


def engine_config(engine: Engine, kind: EngineKind = EngineKind.AUTO, **more: object) -> EngineConfig:
    return EngineConfig.model_validate({"node_id": "n", "engine": engine.url, "engine_kind": kind, **more})


@contextlib.asynccontextmanager
async def watched(
    kind: EngineKind = EngineKind.AUTO, timeout_s: float = 5.0, models_interval_s: float = 3600
) -> AsyncIterator[tuple[Engine, EngineWatch]]:
    async with vllm_engine() as engine, EnginePages(engine.url, 100_000) as pages:
        yield engine, EngineWatch(pages, engine_config(engine, kind), timeout_s, models_interval_s)


async def test_an_engine_that_is_healthy_and_lists_a_model_is_ready() -> None:
    async with watched() as (engine, watch):
        engine.pages["/metrics"] = vllm_lines(running=3, first_tokens=1, kv_usage=0.5)
        seen = await watch.look()
        assert (seen.state, seen.not_ready, seen.models_fault) == (READY, None, None)
        assert seen.models == (ServedModel("m", context_length_tokens=4096),)
        assert (seen.reading.requests_running, seen.reading.kv_usage) == (3, 0.5)


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("/health", 503),
        ("/health", 302),
        ("/v1/models", 503),
        ("/v1/models", "garbage"),
        ("/v1/models", '{"data": []}'),
        ("/metrics", vllm_lines() + 'vllm:engine_sleep_state{sleep_state="awake"} 0\n'),
        ("/metrics", vllm_lines() + SLEEPS_AT_LEVEL_2),
    ],
)
async def test_any_less_is_loading_with_a_reason(path: str, page: str | int) -> None:
    async with watched() as (engine, watch):
        sound = engine.pages[path]
        engine.pages[path] = page
        seen = await watch.look()
        assert seen.state is LOADING
        assert seen.not_ready
        engine.pages[path] = sound
        assert (await watch.look()).state is READY


async def test_a_killed_engine_is_loading_at_the_next_look_and_anew_when_it_is_back() -> None:
    async with watched() as (engine, watch):
        before = await watch.look()
        await engine.kill()
        down = await watch.look()
        assert (down.state, down.not_ready) == (LOADING, "the engine cannot be reached")
        assert down.models == before.models
        assert all(getattr(down.reading, name) is None for name in MEASURED)
        await engine.start()
        back = await watch.look()
        assert (back.state, back.generation) == (READY, before.generation + 1)
        assert engine.asked.count("/v1/models") == 2


async def test_a_busy_engine_whose_health_is_late_stays_ready_for_a_few_looks() -> None:
    async with watched(timeout_s=0.2) as (engine, watch):
        first = await watch.look()
        engine.pages |= {"/health": misbehaviour.never, "/metrics": misbehaviour.never}
        late = [await watch.look() for _ in range(LATE_LOOKS_MAX)]
        assert [seen.state for seen in late] == [READY] * (LATE_LOOKS_MAX - 1) + [LOADING]
        assert {seen.sampled_at_s for seen in late[:-1]} == {first.sampled_at_s}
        engine.pages |= {"/health": 200, "/metrics": vllm_lines()}
        watch._timeout_s = 5.0
        assert (await watch.look()).state is READY
        engine.pages["/health"] = 503
        assert (await watch.look()).state is LOADING


async def test_an_engine_that_never_answered_is_not_ready_for_being_late() -> None:
    async with watched(timeout_s=0.2) as (engine, watch):
        engine.pages["/health"] = misbehaviour.never
        assert (await watch.look()).state is LOADING


async def test_an_engine_that_was_down_is_not_ready_on_the_models_of_before() -> None:
    async with watched() as (engine, watch):
        await watch.look()
        engine.pages["/health"] = 503
        await watch.look()
        engine.pages |= {"/health": 200, "/v1/models": 500}
        assert (await watch.look()).state is LOADING


async def test_models_are_read_now_and_then_and_after_a_restart() -> None:
    async with watched() as (engine, watch):
        engine.pages["/metrics"] = started(1)
        first = await watch.look()
        engine.pages["/v1/models"] = '{"data": [{"id": "other"}]}'
        assert (await watch.look()).models == first.models
        engine.pages["/metrics"] = started(2) + vllm_lines()
        await watch.look()
        engine.pages["/metrics"] = started(3) + vllm_lines()
        seen = await watch.look()
        assert seen.models == (ServedModel("other"),)
        assert seen.generation > first.generation


async def test_adapters_that_may_be_loaded_are_loaded_once_the_engine_lists_them() -> None:
    async with vllm_engine() as engine, EnginePages(engine.url, 100_000) as pages:
        watch = EngineWatch(pages, engine_config(engine, adapters_loadable=["sql"]), 5.0, 0)
        base, adapter = ServedModel("m", context_length_tokens=4096), ServedModel("sql", context_length_tokens=4096)
        seen = await watch.look()
        assert (seen.models, seen.models_fault) == ((base, dataclasses.replace(adapter, loaded=False)), None)
        engine.pages["/v1/models"] = '{"data": [{"id": "m", "max_model_len": 4096}, {"id": "sql", "parent": "m"}]}'
        assert (await watch.look()).models == (base, adapter)


async def test_all_pages_come_over_one_connection_that_is_kept() -> None:
    async with watched(models_interval_s=0) as (engine, watch):
        engine.pages |= {"/metrics": "llamacpp:requests_processing 0\n", "/slots": "[]", "/props": "{}"}
        for _ in range(4):
            await watch.look()
        assert engine.asked[:5] == ["/health", "/metrics", "/slots", "/v1/models", "/props"]
        assert len(engine.callers) == 1


async def test_an_engine_whose_page_shows_that_it_computes_is_not_asked_whether_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def page(tokens: int) -> str:
        return vllm_lines(running=1, generated=tokens, decode=(tokens / 50, tokens))

    async with watched() as (engine, watch):
        for tokens in range(1, 5):
            engine.pages["/metrics"] = page(tokens)
            assert (await watch.look()).state is READY
        assert engine.asked.count("/health") == 2  # the second page has something to be compared with
        engine.pages["/metrics"] = page(4)
        await watch.look()
        await watch.look()
        assert engine.asked.count("/health") == 3  # it stood still
        engine.pages["/metrics"] = page(5)
        await watch.look()
        monkeypatch.setattr("extproc.agent.watch.HEALTH_S", 0.0)
        for tokens in range(6, 8):
            engine.pages["/metrics"] = page(tokens)
            watch._health_due_s = 0.0  # a while later
            await watch.look()
        assert engine.asked.count("/health") == 6


@pytest.mark.parametrize("page", [500, misbehaviour.cut])
async def test_an_engine_that_computed_and_whose_page_fails_is_asked_whether_it_lives(page: int | Handler) -> None:
    async with watched() as (engine, watch):
        for tokens in range(1, 4):
            engine.pages["/metrics"] = vllm_lines(running=1, generated=tokens, decode=(tokens / 50, tokens))
            await watch.look()
        engine.pages |= {"/metrics": page, "/health": 503}
        assert (await watch.look()).not_ready == "/health answers 503"


async def test_an_engine_that_computed_and_is_gone_is_down_at_once() -> None:
    async with watched() as (engine, watch):
        for tokens in range(1, 4):
            engine.pages["/metrics"] = vllm_lines(running=1, generated=tokens, decode=(tokens / 50, tokens))
            await watch.look()
        await engine.kill()
        seen = await watch.look()
        assert (seen.state, seen.gone) == (LOADING, True)
        await engine.start()


async def test_an_engine_that_lists_no_model_is_not_ready_for_what_it_may_load() -> None:
    async with vllm_engine() as engine, EnginePages(engine.url, 100_000) as pages:
        engine.pages["/v1/models"] = '{"data": []}'
        seen = await EngineWatch(pages, engine_config(engine, adapters_loadable=["sql"]), 5.0, 0).look()
        assert (seen.state, seen.models) == (LOADING, ())


async def test_models_that_are_due_are_read_and_a_failure_keeps_the_ones_of_before() -> None:
    async with watched(models_interval_s=0) as (engine, watch):
        first = await watch.look()
        engine.pages["/v1/models"] = 500
        seen = await watch.look()
        assert (seen.state, seen.models) == (READY, first.models)
        assert seen.models_fault == "/v1/models answers 500"


async def test_metrics_that_do_not_come_in_time_leave_the_sample_of_before() -> None:
    async with watched(timeout_s=0.3) as (engine, watch):
        engine.pages["/metrics"] = vllm_lines(running=2)
        first = await watch.look()
        engine.pages["/metrics"] = misbehaviour.never
        seen = await watch.look()
        assert seen.state is READY
        assert (seen.reading.requests_running, seen.sampled_at_s) == (2, first.sampled_at_s)


async def test_an_engine_in_a_long_step_keeps_the_time_of_its_last_one() -> None:
    async with watched() as (engine, watch):
        engine.pages["/metrics"] = vllm_lines(running=2, generated=10)
        first = await watch.look()
        assert (await watch.look()).sampled_at_s == first.sampled_at_s
        engine.pages["/metrics"] = vllm_lines(running=2, generated=11)
        assert (await watch.look()).sampled_at_s > first.sampled_at_s


async def test_metrics_that_are_off_make_every_signal_absent_and_not_the_node() -> None:
    async with watched(EngineKind.VLLM) as (engine, watch):
        engine.pages["/metrics"] = 404
        seen = await watch.look()
        assert seen.state is READY
        assert seen.reading.absent == dict.fromkeys(MEASURED, "/metrics answers 404")


async def test_the_kind_is_found_again_when_another_engine_takes_the_port() -> None:
    async with watched() as (engine, watch):
        first = await watch.look()
        engine.pages |= {
            "/metrics": "llamacpp:requests_processing 1\nllamacpp:requests_deferred 4\n",
            "/slots": '[{"n_ctx": 50, "is_processing": true, "n_prompt_tokens": 5}]',
        }
        seen = await watch.look()
        assert (seen.reading.requests_waiting, seen.reading.kv_usage) == (4, 0.1)
        assert seen.generation == first.generation + 1


async def test_an_engine_of_no_known_kind_is_ready_without_signals() -> None:
    async with watched() as (engine, watch):
        engine.pages["/metrics"] = "other_metric 1\n"
        seen = await watch.look()
        assert seen.state is READY
        assert seen.reading.absent.keys() == set(MEASURED)


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models"])
@pytest.mark.parametrize(
    "handler",
    [misbehaviour.never, misbehaviour.endless, misbehaviour.drip, misbehaviour.cut, misbehaviour.bomb],
)
async def test_a_hostile_page_does_not_stop_the_watch(path: str, handler: Handler) -> None:
    async with watched(timeout_s=0.3) as (engine, watch):
        sound = engine.pages[path]
        engine.pages[path] = handler
        await watch.look()
        engine.pages[path] = sound
        watch._timeout_s = 5.0
        seen = await watch.look()
        assert (seen.state, seen.reading.requests_running) == (READY, 0)
