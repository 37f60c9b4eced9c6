"""Faults of an emulated engine that a client orders."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from extproc.sim.emulator import Emulator, emulated
from extproc.sim.emulatorsettings import EmulatorSettings
from tests.sim.emulating import CHAT
from tests.waiting import until

SPEED = 50.0


@pytest.fixture
async def engine() -> AsyncIterator[Emulator]:
    async with emulated(EmulatorSettings(name="gpu-1", model="tiny", speed=SPEED)) as emulator:
        yield emulator


async def order(http: aiohttp.ClientSession, engine: Emulator, fault: Any) -> tuple[int, Any]:
    async with http.put(engine.url + "/fault", json=fault) as response:
        return response.status, await response.json() if response.status != 204 else None


async def chat(http: aiohttp.ClientSession, engine: Emulator, tokens: int) -> tuple[int, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens}
    async with http.post(engine.url + CHAT, json=body) as response:
        return response.status, await response.json()


async def test_an_engine_with_errors_refuses_what_is_new_and_ends_what_runs(
    http: aiohttp.ClientSession, engine: Emulator
) -> None:
    running = asyncio.create_task(chat(http, engine, 200))
    await until(lambda: engine.engine.requests_running == 1)
    assert await order(http, engine, {"kind": "error", "for_s": 60}) == (204, None)
    status, body = await chat(http, engine, 1)
    assert (status, body["error"]["type"], body["error"]["code"]) == (503, "ServiceUnavailableError", 503)
    assert (await running)[1]["usage"]["completion_tokens"] == 200


@pytest.mark.parametrize("kind", ["error", "hang", "slow"])
async def test_a_fault_shows_on_no_page_that_agents_read_and_ends_by_itself(
    http: aiohttp.ClientSession, engine: Emulator, kind: str
) -> None:
    fault: dict[str, Any] = {"kind": kind, "for_s": 0.3} | ({"factor": 5} if kind == "slow" else {})
    assert (await order(http, engine, fault))[0] == 204
    for path in ("/health", "/metrics", "/v1/models"):
        async with http.get(engine.url + path) as response:
            assert response.status == 200
    assert engine.faults.left_s > 0
    await until(lambda: not engine.faults.left_s)
    await until(lambda: engine.engine.settings.speed == SPEED)
    assert (await chat(http, engine, 1))[0] == 200


async def test_an_engine_that_hangs_takes_requests_and_goes_on_where_it_stood(
    http: aiohttp.ClientSession, engine: Emulator
) -> None:
    running = asyncio.create_task(chat(http, engine, 400))
    await until(lambda: engine.engine.counters.generation_tokens > 0)
    begun_s = time.monotonic()
    await order(http, engine, {"kind": "hang", "for_s": 0.5})
    new = asyncio.create_task(chat(http, engine, 1))
    await until(lambda: engine.engine.requests_open == 2)
    # What was due before the order is counted by now.
    stood_at = engine.engine.counters.generation_tokens
    for _ in range(20):
        async with http.get(engine.url + "/health") as response:
            assert response.status == 200
    assert engine.engine.counters.generation_tokens == stood_at < 400
    assert (await new)[0] == 200
    assert time.monotonic() - begun_s >= 0.5
    assert (await running)[1]["usage"]["completion_tokens"] == 400
    # Held up, and none the worse for it: its own clock stood still.
    assert engine.engine.counters.e2e_request_latency.sum < 0.5 + 401 * 0.0193 / SPEED


async def test_a_client_may_leave_an_engine_that_hangs(http: aiohttp.ClientSession, engine: Emulator) -> None:
    await order(http, engine, {"kind": "hang", "for_s": 60})
    async with aiohttp.ClientSession() as leaving:
        asking = asyncio.create_task(chat(leaving, engine, 5))
        await until(lambda: engine.engine.requests_open == 1)
        asking.cancel()
        await asyncio.wait([asking])
    await until(lambda: engine.engine.requests_open == 0)


async def test_every_step_of_a_slow_engine_lasts_as_many_times_as_long(
    http: aiohttp.ClientSession, engine: Emulator
) -> None:
    gaps = engine.engine.counters.inter_token_latency
    await chat(http, engine, 21)
    usual_s = gaps.sum
    await order(http, engine, {"kind": "slow", "for_s": 60, "factor": 4})
    await chat(http, engine, 21)
    assert gaps.sum - usual_s == pytest.approx(4 * usual_s)


async def test_one_fault_at_a_time(http: aiohttp.ClientSession, engine: Emulator) -> None:
    await order(http, engine, {"kind": "error", "for_s": 60})
    status, body = await order(http, engine, {"kind": "hang", "for_s": 60})
    assert status == 409
    assert "another fault lasts for" in body["detail"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({}, "kind: wanted a value, got nothing"),
        ({"kind": "burn", "for_s": 1}, "kind: wanted 'error', 'hang' or 'slow', got 'burn'"),
        ({"kind": "hang", "for_s": 0}, "for_s: wanted greater than 0, got 0"),
        ({"kind": "hang", "for_s": 601}, "for_s: wanted less than or equal to 600, got 601"),
        ({"kind": "hang", "for_s": 1, "seconds": 2}, "seconds: wanted a known key, got 2"),
        ({"kind": "hang", "for_s": 1, "factor": 2}, "a factor with slow, and none with error and hang"),
        ({"kind": "slow", "for_s": 1}, "a factor with slow, and none with error and hang"),
        ({"kind": "slow", "for_s": 1, "factor": 1}, "factor: wanted greater than 1, got 1"),
        ({"kind": "slow", "for_s": 1, "factor": 1001}, "factor: wanted less than or equal to 1000, got 1001"),
        ([], "(top): wanted"),
        ("hang", "(top): wanted"),
    ],
)
async def test_an_order_that_makes_no_sense_is_refused_with_reasons(
    http: aiohttp.ClientSession, engine: Emulator, fault: Any, said: str
) -> None:
    status, body = await order(http, engine, fault)
    assert status == 400
    assert any(said in one for one in body["detail"]), body
    assert not engine.faults.left_s


@pytest.mark.parametrize("body", [b"", b"{", b'{"kind": "hang", "for_s": NaN}', b'{"kind": "hang", "for_s": 1e999}'])
async def test_an_order_that_is_no_json_is_refused(http: aiohttp.ClientSession, engine: Emulator, body: bytes) -> None:
    async with http.put(engine.url + "/fault", data=body) as response:
        assert response.status == 400
    assert not engine.faults.left_s
