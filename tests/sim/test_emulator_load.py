"""The emulated engine with many clients, and with clients that leave."""

import asyncio
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from extproc.sim.counters import FinishReason
from extproc.sim.emulator import Emulator, emulated
from tests.sim.emulating import CHAT, post, said, settings, streamed
from tests.waiting import until


@pytest.fixture
async def slow() -> AsyncIterator[Emulator]:
    """A step lasts 0.4 s: whatever is started stays open for the whole test."""
    async with emulated(settings(speed=0.05)) as engine:
        yield engine


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_aborts_its_request(
    http: aiohttp.ClientSession, slow: Emulator, stream: bool
) -> None:
    async with aiohttp.ClientSession() as leaving:
        asking = asyncio.create_task(post(leaving, slow, CHAT, said("hi", max_tokens=500, n=2, stream=stream)))
        await until(lambda: slow.engine.requests_running == 2)
        asking.cancel()
        await asyncio.wait([asking])
    await until(lambda: slow.engine.requests_open == 0)
    # The gauges follow when the step in flight ends.
    await until(lambda: slow.engine.requests_running == slow.engine.counters.num_requests_running == 0)
    assert set(slow.engine.counters.request_success.values()) == {0}
    assert slow.engine.pool.usage == 0.0
    assert slow.engine.counters.request_params_n.count == 0


async def test_a_client_that_leaves_the_queue_frees_its_place(http: aiohttp.ClientSession) -> None:
    async with emulated(settings(speed=0.05, sequences_max=1)) as engine, aiohttp.ClientSession() as leaving:
        staying = asyncio.create_task(post(http, engine, CHAT, said("hi", max_tokens=500)))
        await until(lambda: engine.engine.requests_running == 1)
        asking = asyncio.create_task(post(leaving, engine, CHAT, said("hi", max_tokens=500)))
        await until(lambda: engine.engine.requests_waiting == 1)
        asking.cancel()
        await until(lambda: engine.engine.requests_waiting == 0)
        assert engine.engine.requests_running == 1
        staying.cancel()
        await asyncio.wait([asking, staying])


async def test_many_streams_on_a_full_engine_all_get_their_whole_answers(http: aiohttp.ClientSession) -> None:
    async with emulated(settings(kv_blocks=40, context_length_tokens=512, sequences_max=16)) as engine:
        bodies = [said(f"question {index} " * 10, max_tokens=60) for index in range(60)]
        streams = await asyncio.gather(*(streamed(http, engine, CHAT, body) for body in bodies))
        counters = engine.engine.counters
        assert all(len(stream) == 62 for stream in streams)
        assert len({"".join(c["choices"][0]["delta"]["content"] for c in stream[:-1]) for stream in streams}) == 60
        assert counters.preemptions > 0
        assert counters.request_success[FinishReason.LENGTH] == 60
        await until(lambda: engine.engine.requests_open == 0)
        assert engine.engine.pool.usage == 0.0


async def test_the_next_turn_hits_the_prefix_cache(http: aiohttp.ClientSession, fast: Emulator) -> None:
    first = said("tell me something " * 20, max_tokens=64)
    _, body = await post(http, fast, CHAT, first)
    assert fast.engine.counters.prefix_cache_hits == 0
    turns = [*first["messages"], body["choices"][0]["message"], {"role": "user", "content": "more"}]
    await post(http, fast, CHAT, {"messages": turns, "max_tokens": 1})
    shared = (body["usage"]["total_tokens"] - 1) // 16 * 16
    assert fast.engine.counters.prefix_cache_hits == shared


async def test_an_answer_never_comes_before_the_model_says(http: aiohttp.ClientSession) -> None:
    async with emulated(settings(speed=1.0)) as engine:
        start_s = time.monotonic()
        await post(http, engine, CHAT, said("hi", max_tokens=4))
        taken_s = time.monotonic() - start_s
    modelled_s = engine.engine.counters.e2e_request_latency.sum
    assert 4 * 0.0188 <= modelled_s <= taken_s


async def test_two_engines_in_one_process_know_nothing_of_each_other(http: aiohttp.ClientSession) -> None:
    async with emulated(settings()) as one, emulated(settings(name="gpu-2")) as two:
        assert one.host != two.host
        await post(http, two, CHAT, said("hi", max_tokens=1))
        assert one.engine.counters.generation_tokens == 0
        assert two.engine.counters.generation_tokens == 1


async def test_open_streams_are_cut_off_when_the_engine_ends(http: aiohttp.ClientSession) -> None:
    async with emulated(settings(speed=0.05)) as engine:
        asking = asyncio.create_task(streamed(http, engine, CHAT, said("hi", max_tokens=500)))
        await until(lambda: engine.engine.requests_running == 1)
    with pytest.raises(aiohttp.ClientError):
        await asking
    assert engine.engine.requests_open == 0
