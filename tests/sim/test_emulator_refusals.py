"""What the emulated engine does not answer, and how it says so."""

import json
from typing import Any

import aiohttp
import pytest

from extproc.sim.emulator import Emulator, emulated
from tests.sim.emulating import CHAT, post, said, sample, settings


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("bad model", said("hi") | {"model": "nope"}, 404),
        ("too long", said("x" * 4 * 9000), 400),
        ("bad json", b"{bad", 400),
    ],
)
async def test_errors_are_those_of_vllm(http: aiohttp.ClientSession, name: str, body: Any, status: int) -> None:
    async with emulated(settings(context_length_tokens=8192)) as engine:
        got, answer = await post(http, engine, CHAT, body)
    assert got == status
    (error,) = answer.values()
    expected = sample(name)
    assert error.keys() == expected.keys()
    assert [error[key] for key in ("type", "param", "code")] == [expected[key] for key in ("type", "param", "code")]
    # A JSON decoder has its own words for what is wrong.
    end = "JSON decode error" if name == "bad json" else None
    assert error["message"].split(end)[0] == expected["message"].split(end)[0]


async def test_unknown_paths_and_methods_name_the_engine_too(http: aiohttp.ClientSession, fast: Emulator) -> None:
    for method, path, status in (("GET", "/nope", 404), ("GET", CHAT, 405), ("POST", "/metrics", 405)):
        async with http.request(method, fast.url + path) as response:
            assert response.status == status
            assert response.headers["x-engine"] == "gpu-1"
            assert "detail" in await response.json()


async def test_a_body_may_be_as_large_as_the_limit_and_no_larger(http: aiohttp.ClientSession) -> None:
    body = json.dumps(said("hi", max_tokens=1)).encode()
    async with emulated(settings(body_bytes_max=len(body))) as engine:
        assert (await post(http, engine, CHAT, body))[0] == 200
        assert (await post(http, engine, CHAT, body + b" "))[0] == 413


async def test_more_open_sequences_than_allowed_are_503(http: aiohttp.ClientSession) -> None:
    async with emulated(settings(requests_open_max=3)) as engine:
        assert (await post(http, engine, CHAT, said("hi", max_tokens=1, n=3)))[0] == 200
        status, body = await post(http, engine, CHAT, said("hi", max_tokens=1, n=4))
        assert (status, body["error"]["type"], body["error"]["code"]) == (503, "ServiceUnavailableError", 503)
        assert engine.engine.counters.admission_rejections == 1
