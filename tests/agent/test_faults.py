"""Engines whose pages fail in some way: what their node shows, why, and that nothing else suffers."""

import asyncio
import contextlib
import tracemalloc

import pytest
from aiohttp import web

from extproc.agent.engines.reading import MEASURED
from extproc.agent.scrape import EnginePages
from extproc.agent.watch import EngineWatch
from extproc.core.snapshot import NodeState
from tests.agent import engine as misbehaviour
from tests.agent.engine import Engine, Handler, vllm_engine
from tests.agent.pages import vllm_lines
from tests.agent.test_agent_loopback import configured, running
from tests.agent.test_watch import engine_config
from tests.nodes.loopback import router
from tests.waiting import until

LOADING, READY = NodeState.LOADING, NodeState.READY
PAGE_BYTES_MAX = 100_000
TIMEOUT_S = 0.3
PIECE = b"x" * 65536
HUNDRED_MB = 100_000_000


async def byte_a_second(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        for byte in vllm_lines().encode():
            await response.write(bytes([byte]))
            await asyncio.sleep(1)
    return response


async def hundred_megabytes(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-length": str(HUNDRED_MB)})
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        for _ in range(HUNDRED_MB // len(PIECE)):
            await response.write(PIECE)
    return response


async def hundred_megabytes_of_a_head(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(b"HTTP/1.1 200 OK\r\nx: ")
    with contextlib.suppress(ConnectionError):
        for _ in range(HUNDRED_MB // len(PIECE)):
            if request.transport.is_closing():
                break
            request.transport.write(PIECE)
            await asyncio.sleep(0)
    raise ConnectionError


KEPT = None
"""The sample of before."""


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (misbehaviour.never, KEPT),
        (byte_a_second, KEPT),
        (misbehaviour.cut, KEPT),
        (hundred_megabytes, KEPT),
        (hundred_megabytes_of_a_head, KEPT),
        (500, "/metrics answers 500"),
        (misbehaviour.elsewhere, "/metrics answers 302"),
        ("", "vllm:num_requests_running is missing"),
        ("<html>", "vllm:num_requests_running is missing"),
    ],
)
async def test_metrics_that_fail_leave_the_node_ready_and_its_signals_old_or_absent(
    page: str | int | Handler, reason: str | None
) -> None:
    async with vllm_engine() as engine, EnginePages(engine.url, PAGE_BYTES_MAX) as pages:
        watch = EngineWatch(pages, engine_config(engine), 5.0, 3600)
        engine.pages["/metrics"] = vllm_lines(running=3)
        first = await watch.look()
        watch._timeout_s = TIMEOUT_S
        engine.pages["/metrics"] = page
        seen = await watch.look()
        assert seen.state is READY
        if reason is KEPT:
            assert (seen.reading, seen.sampled_at_s) == (first.reading, first.sampled_at_s)
        else:
            assert seen.reading.absent["requests_running"] == reason
            assert [name for name in MEASURED if getattr(seen.reading, name) is not None] == []
        watch._timeout_s = 5.0
        engine.pages["/metrics"] = vllm_lines(running=1)
        seen = await watch.look()
        assert (seen.state, seen.reading.requests_running) == (READY, 1)
        assert seen.generation == first.generation


@pytest.mark.parametrize("page", [hundred_megabytes, misbehaviour.endless, misbehaviour.bomb])
async def test_a_page_takes_no_more_memory_than_it_may(page: Handler) -> None:
    async with vllm_engine() as engine, EnginePages(engine.url, PAGE_BYTES_MAX) as pages:
        engine.pages["/metrics"] = page
        tracemalloc.start()
        try:
            for _ in range(3):
                await pages.get("/metrics", asyncio.get_running_loop().time() + 5)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 5_000_000  # the engine's buffers are in this process, too


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (misbehaviour.cut, "/metrics is no HTTP answer"),
        (hundred_megabytes, "/metrics has over 100000 bytes"),
    ],
)
async def test_a_sample_is_kept_no_longer_than_routers_call_it_fresh(
    monkeypatch: pytest.MonkeyPatch, page: Handler, reason: str
) -> None:
    monkeypatch.setattr("extproc.agent.watch.KEPT_S", 0.0)
    async with vllm_engine() as engine, EnginePages(engine.url, PAGE_BYTES_MAX) as pages:
        watch = EngineWatch(pages, engine_config(engine), 5.0, 3600)
        first = await watch.look()
        engine.pages["/metrics"] = page
        seen = await watch.look()
        assert seen.state is READY
        assert seen.reading.absent == dict.fromkeys(MEASURED, reason)
        assert seen.sampled_at_s > first.sampled_at_s


async def test_names_that_go_are_absent_one_by_one_and_come_back() -> None:
    async with vllm_engine() as engine, EnginePages(engine.url, PAGE_BYTES_MAX) as pages:
        watch = EngineWatch(pages, engine_config(engine), 5.0, 3600)
        whole = vllm_lines(running=3, kv_usage=0.5)
        engine.pages["/metrics"] = whole
        first = await watch.look()
        engine.pages["/metrics"] = whole.replace("vllm:kv_cache_usage_perc", "vllm:renamed")
        seen = await watch.look()
        assert (seen.state, seen.reading.kv_usage, seen.reading.requests_running) == (READY, None, 3)
        assert seen.reading.absent["kv_usage"] == "vllm:kv_cache_usage_perc is missing"
        engine.pages["/metrics"] = whole
        seen = await watch.look()
        assert (seen.reading.kv_usage, seen.generation) == (0.5, first.generation)


@pytest.mark.parametrize(
    "fault",
    [
        {"/metrics": misbehaviour.never},
        {"/health": misbehaviour.never},
        {"/metrics": byte_a_second},
        {"/metrics": hundred_megabytes},
        {"/v1/models": misbehaviour.never},
    ],
)
async def test_other_engines_of_the_agent_are_not_delayed(fault: dict[str, Handler]) -> None:
    async with contextlib.AsyncExitStack() as held:
        bad: list[Engine] = [await held.enter_async_context(vllm_engine()) for _ in range(3)]
        good = await held.enter_async_context(vllm_engine())
        to = await held.enter_async_context(router())
        for engine in bad:
            engine.pages |= fault
        # A look at a bad engine takes longer than this test may.
        config = configured([good, *bad], [to], scrape_timeout_s=30, page_bytes_max=PAGE_BYTES_MAX)
        await held.enter_async_context(running(config))
        await until(lambda: to.state("gpu-1") is READY)
        seen = to.snapshot("gpu-1")
        assert seen is not None
        await until(lambda: to.snapshot("gpu-1").sequence > seen.sequence + 5)  # type: ignore[union-attr]
