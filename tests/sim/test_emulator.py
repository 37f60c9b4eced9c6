"""The emulated engine over real HTTP."""

import asyncio
import base64
import json
import os
import signal
import struct
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.sim.counters import FinishReason
from extproc.sim.emulator import Emulator, emulated, run
from extproc.sim.emulatorsettings import EmulatorSettings
from extproc.sim.engine import Engine
from tests.waiting import until

SAMPLES = Path(__file__).parents[1] / "samples" / "vllm_http_samples.txt"
CHAT = "/v1/chat/completions"


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **fields}


def settings(**fields: Any) -> EmulatorSettings:
    chosen: dict[str, Any] = {"name": "gpu-1", "model": "tiny", "speed": 50.0} | fields
    return EmulatorSettings(**chosen)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest.fixture
async def fast() -> AsyncIterator[Emulator]:
    async with emulated(settings()) as engine:
        yield engine


@pytest.fixture
async def slow() -> AsyncIterator[Emulator]:
    """A step lasts 0.4 s: whatever is started stays open for the whole test."""
    async with emulated(settings(speed=0.05)) as engine:
        yield engine


async def post(http: aiohttp.ClientSession, engine: Emulator, path: str, body: Any) -> tuple[int, Any]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http.post(engine.url + path, data=raw) as response:
        assert response.headers["x-engine"] == engine.settings.name
        return response.status, await response.json()


async def streamed(http: aiohttp.ClientSession, engine: Emulator, path: str, body: dict[str, Any]) -> list[Any]:
    """The `data:` of each event; `[DONE]` as that text."""
    async with http.post(engine.url + path, json=body | {"stream": True}) as response:
        assert response.status == 200
        assert response.headers["x-engine"] == engine.settings.name
        assert response.content_type == "text/event-stream"
        text = await response.text()
    assert text.endswith("\n\n")
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def sample(name: str) -> Any:
    """An error body captured from vLLM."""
    line = SAMPLES.read_text().split(f"== {name}\n")[1].splitlines()[0]
    return json.loads(line.rsplit(" [", 1)[0])["error"]


async def test_chat_is_answered_in_the_shape_of_the_api(http: aiohttp.ClientSession, fast: Emulator) -> None:
    status, body = await post(http, fast, CHAT, said("hello", max_tokens=5))
    assert status == 200
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "tiny")
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 20
    assert choice["finish_reason"] == "length"
    prompt_tokens = 2 + 2 + 3
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 5,
        "total_tokens": prompt_tokens + 5,
    }


async def test_a_stream_brings_the_same_answer_piece_by_piece(http: aiohttp.ClientSession, fast: Emulator) -> None:
    _, whole = await post(http, fast, CHAT, said("hello", max_tokens=5))
    *chunks, done = await streamed(http, fast, CHAT, said("hello", max_tokens=5))
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(chunks) == 1 + 5
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 5 + ["length"]


async def test_usage_is_streamed_only_when_asked_for(http: aiohttp.ClientSession, fast: Emulator) -> None:
    body = said("hello", max_tokens=2, stream_options={"include_usage": True})
    *chunks, done = await streamed(http, fast, CHAT, body)
    assert done == "[DONE]"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    assert all("usage" not in chunk for chunk in chunks[:-1])


async def test_without_a_limit_an_answer_stops_by_itself(http: aiohttp.ClientSession, fast: Emulator) -> None:
    answers = [(await post(http, fast, CHAT, said("hello")))[1] for _ in range(2)]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["choices"][0]["finish_reason"] == "stop"
    assert answers[0]["usage"]["completion_tokens"] >= 32


async def test_several_answers_are_told_apart_by_index(http: aiohttp.ClientSession, fast: Emulator) -> None:
    _, whole = await post(http, fast, CHAT, said("hello", max_tokens=3, n=3))
    *chunks, _ = await streamed(http, fast, CHAT, said("hello", max_tokens=3, n=3))
    texts = [""] * 3
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"]["content"]
    assert texts == [choice["message"]["content"] for choice in whole["choices"]]
    assert len(set(texts)) == 3
    assert fast.engine.counters.request_success[FinishReason.LENGTH] == 6
    assert fast.engine.counters.request_params_n.sum == 6
    assert fast.engine.counters.request_params_max_tokens.sum == 6
    assert fast.engine.counters.request_max_num_generation_tokens.count == 2


async def test_completions_take_several_prompts(http: aiohttp.ClientSession, fast: Emulator) -> None:
    status, body = await post(http, fast, "/v1/completions", {"prompt": ["one", "two"], "max_tokens": 3})
    assert status == 200
    assert body["object"] == "text_completion"
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert all(len(choice["text"]) == 12 for choice in body["choices"])
    *chunks, done = await streamed(http, fast, "/v1/completions", {"prompt": "one", "max_tokens": 3})
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == body["choices"][0]["text"]


async def test_embeddings_are_numbers_or_base64_and_have_no_first_token(
    http: aiohttp.ClientSession, fast: Emulator
) -> None:
    _, body = await post(http, fast, "/v1/embeddings", {"input": ["one", "two"]})
    first, second = (item["embedding"] for item in body["data"])
    assert first != second
    assert body["usage"]["completion_tokens"] == 0
    _, encoded = await post(http, fast, "/v1/embeddings", {"input": "one", "encoding_format": "base64"})
    assert struct.unpack("<8f", base64.b64decode(encoded["data"][0]["embedding"])) == pytest.approx(first)
    assert fast.engine.counters.time_to_first_token.count == 0
    assert fast.engine.counters.request_success[FinishReason.STOP] == 3


async def test_responses_are_whole_or_a_stream_of_numbered_events(http: aiohttp.ClientSession, fast: Emulator) -> None:
    _, whole = await post(http, fast, "/v1/responses", {"input": "hi", "max_output_tokens": 4})
    (item,) = whole["output"]
    (part,) = item["content"]
    assert len(part["text"]) == 16
    assert whole["usage"]["output_tokens"] == 4
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    events = await streamed(http, fast, "/v1/responses", {"input": "hi", "max_output_tokens": 4})
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][0]["content"] == item["content"]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == part["text"]
    assert len(deltas) == 4
    _, stopped = await post(http, fast, "/v1/responses", {"input": "hi"})
    assert (stopped["status"], stopped["incomplete_details"]) == ("completed", None)


async def test_the_model_list_tells_the_context_length(http: aiohttp.ClientSession, fast: Emulator) -> None:
    async with http.get(fast.url + "/v1/models") as response:
        (model,) = (await response.json())["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("tiny", "model", 32_768)


async def test_health_is_an_empty_200(http: aiohttp.ClientSession, fast: Emulator) -> None:
    async with http.get(fast.url + "/health") as response:
        assert (response.status, await response.read()) == (200, b"")
        assert response.headers["x-engine"] == "gpu-1"


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


async def test_run_does_not_outlive_its_engine(http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[object]:
        raise ZeroDivisionError

    monkeypatch.setattr(Engine, "advance", broken)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(run(settings()), 10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_run_says_where_it_listens_and_ends_at_a_signal(http: aiohttp.ClientSession, number: int) -> None:
    code = (
        "import asyncio, structlog\n"
        "from extproc.sim.emulator import run\n"
        "from extproc.sim.emulatorsettings import EmulatorSettings\n"
        "structlog.configure(processors=[structlog.processors.JSONRenderer()])\n"
        "asyncio.run(run(EmulatorSettings(name='gpu-9', model='tiny')))"
    )
    root = str(Path(__file__).parents[2])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, cwd=root, env=os.environ | {"PYTHONPATH": root}
    )
    assert process.stdout is not None
    try:
        line = json.loads(await asyncio.wait_for(process.stdout.readline(), 20))
        assert (line["event"], line["name"], line["model"]) == ("emulated engine listening", "gpu-9", "tiny")
        async with http.get(f"http://{line['host']}/health") as response:
            assert response.headers["x-engine"] == "gpu-9"
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    ("wrong", "said_of"),
    [
        ({"listen": "8000"}, "listen"),
        ({"listen": "127.0.0.1:"}, "listen"),
        ({"listen": "127.0.0.1:65536"}, "listen"),
        ({"listen": "127.0.0.1:-1"}, "listen"),
        ({"name": ""}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "a\r\nb"}, "name"),
        ({"model": ""}, "model"),
        ({"speed": 0.0}, "speed"),
        ({"kv_blocks": 2048}, "2049 kv_blocks, got 2048"),
        ({"requests_open_max": 0}, "requests_open_max"),
        ({"body_bytes_max": 0}, "body_bytes_max"),
        ({"output_tokens_max": 0}, "output_tokens_max"),
    ],
)
def test_settings_that_could_not_run_are_refused(wrong: dict[str, Any], said_of: str) -> None:
    with pytest.raises(ValueError, match=said_of):
        settings(**wrong)


def test_settings_at_their_edges_are_allowed() -> None:
    settings(kv_blocks=2049, listen="[::1]:65535", name="x" * 64)
