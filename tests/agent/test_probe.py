import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from extproc.agent import probe
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.scrape import EnginePages
from extproc.agent.watch import EngineWatch
from extproc.core.snapshot import NodeState
from tests.agent import engine as misbehaviour
from tests.agent.engine import Engine, vllm_engine
from tests.agent.pages import started, vllm_lines
from tests.agent.test_watch import engine_config

LOADING, READY = NodeState.LOADING, NodeState.READY
COMPLETIONS, CHAT = probe.COMPLETIONS, probe.CHAT
TOKEN = '{"choices": [{"text": "b"}]}'


@contextlib.asynccontextmanager
async def probed(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float = 5.0, probe_timeout_s: float = 5.0
) -> AsyncIterator[tuple[Engine, EngineWatch]]:
    monkeypatch.setattr(probe, "PAUSE_S", 0.0)
    async with vllm_engine() as engine, EnginePages(engine.url, 100_000) as pages:
        config = engine_config(engine, EngineKind.VLLM, probe=True, adapters_loadable=["sql"])
        watch = EngineWatch(pages, config, timeout_s, 3600, probe_timeout_s=probe_timeout_s)
        try:
            yield engine, watch
        finally:
            await watch.close()


async def test_an_engine_is_ready_once_it_answered_one_token_and_is_asked_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bodies = []

    async def complete(request: web.Request) -> web.Response:
        bodies.append((request.method, await request.json()))
        return web.Response(text=TOKEN)

    async with probed(monkeypatch) as (engine, watch):
        engine.pages[COMPLETIONS] = complete
        assert [(await watch.look()).state for _ in range(3)] == [READY] * 3
    assert bodies == [("POST", {"model": "m", "prompt": "a", "max_tokens": 1, "temperature": 0, "stream": False})]


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (500, f"the one-token probe failed: {COMPLETIONS} answers 500"),
        (302, f"the one-token probe failed: {COMPLETIONS} answers 302"),
        ("", f"the one-token probe failed: {COMPLETIONS} answers without choices"),
        ('{"choices": []}', f"the one-token probe failed: {COMPLETIONS} answers without choices"),
        ("[" * 5000, f"the one-token probe failed: {COMPLETIONS} answers without choices"),
        (misbehaviour.cut, f"the one-token probe failed: {COMPLETIONS} is no HTTP answer"),
        (misbehaviour.endless, f"the one-token probe failed: {COMPLETIONS} has over 100000 bytes"),
        (404, f"the one-token probe failed: {CHAT} answers 404"),
    ],
)
async def test_a_failure_is_told_and_the_next_probe_may_pass(
    monkeypatch: pytest.MonkeyPatch, page: object, reason: str
) -> None:
    async with probed(monkeypatch) as (engine, watch):
        engine.pages[COMPLETIONS] = page  # type: ignore[assignment]
        seen = await watch.look()
        assert (seen.state, seen.not_ready) == (LOADING, reason)
        assert seen.reading.requests_running == 0
        engine.pages[COMPLETIONS] = TOKEN
        assert (await watch.look()).state is READY


async def test_an_engine_without_completions_is_asked_by_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    async with probed(monkeypatch) as (engine, watch):
        engine.pages |= {COMPLETIONS: 405, CHAT: TOKEN}
        assert (await watch.look()).state is READY


async def test_a_probe_may_take_longer_than_a_look_and_is_asked_once_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async with probed(monkeypatch, timeout_s=0.3) as (engine, watch):
        engine.pages[COMPLETIONS] = misbehaviour.never
        reasons = [(await watch.look()).not_ready for _ in range(2)]
        assert reasons == ["the one-token probe is not answered yet"] * 2
        assert engine.asked.count(COMPLETIONS) == 1


async def test_a_probe_ends_at_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with probed(monkeypatch, probe_timeout_s=0.1) as (engine, watch):
        engine.pages[COMPLETIONS] = misbehaviour.never
        seen = await watch.look()
        assert seen.not_ready == f"the one-token probe failed: {COMPLETIONS} does not answer in time"


async def test_a_failed_probe_is_not_asked_again_at_once() -> None:
    async with vllm_engine() as engine, EnginePages(engine.url, 100_000) as pages:
        watch = EngineWatch(pages, engine_config(engine, EngineKind.VLLM, probe=True), 5.0, 3600)
        reasons = {(await watch.look()).not_ready for _ in range(3)}
    assert len(reasons) == 1
    assert engine.asked.count(COMPLETIONS) == 1


async def test_an_engine_is_asked_again_whenever_it_comes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with probed(monkeypatch) as (engine, watch):
        engine.pages |= {COMPLETIONS: TOKEN, "/metrics": started(1) + vllm_lines()}
        assert (await watch.look()).state is READY
        engine.pages |= {COMPLETIONS: 503, "/metrics": started(2) + vllm_lines()}
        assert (await watch.look()).state is LOADING
        engine.pages |= {COMPLETIONS: TOKEN, "/health": 503}
        assert (await watch.look()).not_ready == "/health answers 503"
        engine.pages["/health"] = 200
        assert (await watch.look()).state is READY
        assert engine.asked.count(COMPLETIONS) == 3


async def test_the_models_that_it_lists_are_asked_for_and_not_those_that_it_may_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def complete(request: web.Request) -> web.Response:
        asked.append(json.loads(await request.text())["model"])
        return web.Response(text=TOKEN)

    async with probed(monkeypatch) as (engine, watch):
        engine.pages |= {COMPLETIONS: complete, "/v1/models": '{"data": [{"id": "base"}]}'}
        assert (await watch.look()).state is READY
    assert asked == ["base"]
