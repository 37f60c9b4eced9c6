"""An engine that hangs: it is healthy, has work, and shows nothing new."""

import contextlib
from collections.abc import AsyncIterator

import pytest

from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.reading import MEASURED
from extproc.agent.scrape import EnginePages
from extproc.agent.watch import EngineWatch
from extproc.core.snapshot import NodeState, ServedModel
from tests.agent import engine as misbehaviour
from tests.agent.engine import Engine, vllm_engine
from tests.agent.pages import vllm_lines
from tests.agent.test_watch import engine_config

LOADING, READY = NodeState.LOADING, NodeState.READY
AT_ONCE = 1e-9


@contextlib.asynccontextmanager
async def watched(
    hung_s: float | None, kind: EngineKind = EngineKind.VLLM, timeout_s: float = 5.0
) -> AsyncIterator[tuple[Engine, EngineWatch]]:
    async with vllm_engine() as engine, EnginePages(engine.url, 100_000) as pages:
        yield engine, EngineWatch(pages, engine_config(engine, kind), timeout_s, 3600, hung_s=hung_s)


@pytest.mark.parametrize("work", [{"running": 2}, {"waiting": 3}])
async def test_an_engine_with_work_that_stands_still_is_loading_until_it_moves(work: dict[str, float]) -> None:
    async with watched(AT_ONCE) as (engine, watch):
        engine.pages["/metrics"] = vllm_lines(generated=5, **work)  # type: ignore[arg-type]
        first = await watch.look()
        assert first.state is READY
        for _ in range(2):
            seen = await watch.look()
            assert seen.state is LOADING
            assert seen.not_ready == "the engine hangs: for 1e-09 s it has work, and nothing moves"
            assert seen.sampled_at_s > first.sampled_at_s  # routers take no reports of old samples
            assert all(getattr(seen.reading, name) is None for name in MEASURED)
        engine.pages["/metrics"] = vllm_lines(generated=6, **work)  # type: ignore[arg-type]
        back = await watch.look()
        assert (back.state, back.generation) == (READY, first.generation)


@pytest.mark.parametrize("hung_s", [3600.0, None])
async def test_a_long_step_is_no_hang(hung_s: float | None) -> None:
    async with watched(hung_s) as (engine, watch):
        engine.pages["/metrics"] = vllm_lines(running=2, generated=5)
        assert {(await watch.look()).state for _ in range(4)} == {READY}


async def test_an_idle_engine_does_not_hang() -> None:
    async with watched(AT_ONCE) as (engine, watch):
        engine.pages["/metrics"] = vllm_lines(generated=5)
        assert {(await watch.look()).state for _ in range(4)} == {READY}


async def test_an_engine_whose_metrics_do_not_come_any_more_hangs() -> None:
    async with watched(AT_ONCE, timeout_s=0.2) as (engine, watch):
        assert (await watch.look()).state is READY
        engine.pages["/metrics"] = misbehaviour.never
        seen = await watch.look()
        assert (seen.state, seen.not_ready) == (
            LOADING,
            "the engine hangs: for 1e-09 s its metrics do not come",
        )
        engine.pages["/metrics"] = vllm_lines()
        watch._timeout_s = 5.0
        assert (await watch.look()).state is READY


async def test_an_engine_whose_metrics_never_came_is_ready_without_signals() -> None:
    async with watched(AT_ONCE, timeout_s=0.2) as (engine, watch):
        engine.pages["/metrics"] = misbehaviour.never
        watch._models_due_s = float("inf")
        watch._models, watch._listed = (ServedModel("m"),), True  # by `models` of its configuration, say
        assert {(await watch.look()).state for _ in range(2)} == {READY}


async def test_metrics_that_are_refused_are_no_hang() -> None:
    async with watched(AT_ONCE) as (engine, watch):
        await watch.look()
        engine.pages["/metrics"] = 404
        assert {(await watch.look()).state for _ in range(2)} == {READY}


def llamacpp_pages(steps: int, tokens: int, *, slots: bool = True) -> dict[str, str | int]:
    slot = f'{{"n_ctx": 50, "is_processing": true, "id_task": 7, "n_prompt_tokens": {tokens}}}'
    metrics = f"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\nllamacpp:n_decode_total {steps}\n"
    return {"/metrics": metrics, "/slots": f"[{slot}]" if slots else 501}


@pytest.mark.parametrize(
    ("before", "after", "hangs"),
    [
        (llamacpp_pages(5, 9), llamacpp_pages(5, 9), True),
        (llamacpp_pages(5, 9), llamacpp_pages(6, 9), False),
        (llamacpp_pages(5, 9), llamacpp_pages(5, 10), False),
        (llamacpp_pages(5, 9, slots=False), llamacpp_pages(5, 9, slots=False), True),
        # From a million on numbers are rounded: it may have moved.
        (llamacpp_pages(1_000_000, 9, slots=False), llamacpp_pages(1_000_000, 9, slots=False), False),
        (llamacpp_pages(999_999, 9, slots=False), llamacpp_pages(999_999, 9, slots=False), True),
        (llamacpp_pages(2_000_000, 9), llamacpp_pages(2_000_000, 9), True),
    ],
)
async def test_a_llamacpp_hangs_likewise(
    before: dict[str, str | int], after: dict[str, str | int], hangs: bool
) -> None:
    async with watched(AT_ONCE, EngineKind.LLAMACPP) as (engine, watch):
        engine.pages |= before
        assert (await watch.look()).state is READY
        engine.pages |= after
        assert (await watch.look()).state is (LOADING if hangs else READY)
