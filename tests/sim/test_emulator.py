"""The emulated engine over real HTTP: the answers of each endpoint."""

import base64
import struct

import aiohttp
import pytest

from extproc.sim.counters import FinishReason
from extproc.sim.emulator import Emulator
from tests.sim.emulating import CHAT, post, said, streamed


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
