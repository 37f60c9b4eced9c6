"""How requests ended, as a real Envoy tells the real services, with what engines say of tokens turned on."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from extproc.fleet import Fleet
from extproc.gateway import endings
from extproc.traffic import Ask, ask, chat, completion
from tests.e2e.conftest import MODEL, PROBE
from tests.e2e.watched import GONE, SCRIPTED, SILENT, Watched, add_node, asking, watching
from tests.waiting import until


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def watched(client: aiohttp.ClientSession, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    async with watching(client, tmp_path_factory.mktemp("usage")) as found:
        yield found


async def test_a_whole_answers_usage_status_node_and_timings_are_told(watched: Watched) -> None:
    answer, ended = await watched.ask(
        Ask("chat", "/v1/chat/completions", chat(MODEL, "Hello", output_tokens=7, stream=False))
    )
    (decision,) = watched.balancer.decisions(1)
    assert (ended.request_id, ended.counted_tokens) == (decision.request_id, decision.prompt_tokens)
    assert (ended.status, ended.details, ended.upstream_host) == (200, "via_upstream", str(watched.known[0]))
    usage = json.loads(answer.text)["usage"]
    assert (ended.prompt_tokens, ended.completion_tokens) == (usage["prompt_tokens"], 7)
    assert ended.first_byte_s is not None
    assert ended.duration_s is not None
    assert 0 < ended.first_byte_s <= ended.duration_s


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_streams_usage_is_told_where_the_client_asked_for_it(watched: Watched, path: str) -> None:
    body = (
        chat(MODEL, "Hello", output_tokens=40, stream=True)
        if path.endswith("chat/completions")
        else completion(MODEL, "Hello", output_tokens=40, stream=True)
    )
    answer, ended = await watched.ask(Ask("stream", path, body | {"stream_options": {"include_usage": True}}))
    assert answer.whole
    said = json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))["usage"]
    assert (ended.prompt_tokens, ended.completion_tokens) == (said["prompt_tokens"], 40)
    answer, ended = await watched.ask(Ask("stream", path, body))
    assert answer.whole
    assert (ended.status, ended.prompt_tokens, ended.completion_tokens) == (200, None, None)


async def test_usage_of_embeddings_and_responses_is_told(watched: Watched) -> None:
    answer, ended = await watched.ask(Ask("embedding", "/v1/embeddings", {"model": MODEL, "input": ["one", "two"]}))
    assert (ended.prompt_tokens, ended.completion_tokens) == (json.loads(answer.text)["usage"]["prompt_tokens"], 0)
    for stream in (False, True):
        body = {"model": MODEL, "input": "Hello", "max_output_tokens": 6, "stream": stream}
        answer, ended = await watched.ask(Ask("response", "/v1/responses", body))
        assert answer.whole
        assert ended.prompt_tokens is not None
        assert f'"input_tokens":{ended.prompt_tokens},' in answer.text
        assert ended.completion_tokens == 6


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompts", "n", "sequences"), [("one", 4, 4), (["one", "two"], 1, 2), (["one", "two"], 3, 6)])
async def test_usage_of_several_answers_is_their_sum_and_told_with_their_number(
    watched: Watched, prompts: str | list[str], n: int, sequences: int, stream: bool
) -> None:
    body = {"model": MODEL, "prompt": prompts, "n": n, "max_tokens": 7, "ignore_eos": True, "stream": stream}
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    answer, ended = await watched.ask(Ask("several", "/v1/completions", body | usage))
    assert answer.whole
    assert (ended.completion_tokens, ended.sequences) == (7 * sequences, sequences)
    assert endings.of_entry(ended).output_tokens == 7


async def test_a_request_that_is_refused_is_told_with_its_status(watched: Watched) -> None:
    answer, ended = await watched.ask(Ask("wrong", "/v1/completions", {"model": MODEL, "prompt": {}}))
    assert (answer.status, ended.status, ended.details) == (400, 400, "extproc_invalid_request")
    assert (ended.upstream_host, ended.first_byte_s, ended.counted_tokens) == (None, None, None)


async def test_an_engine_that_is_gone_is_told_with_the_status_that_the_client_got(watched: Watched) -> None:
    answer, ended = await watched.ask(asking(GONE))
    assert (answer.status, ended.status, ended.upstream_host) == (503, 503, watched.gone)
    assert "connection_failure" in ended.details
    assert ended.first_byte_s is None
    assert (ended.prompt_tokens, ended.completion_tokens) == (None, None)


async def test_an_error_of_the_engine_is_told(watched: Watched) -> None:
    watched.scripted.pieces = [b"HTTP/1.1 500 Oh no\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"]
    answer, ended = await watched.ask(asking(SCRIPTED))
    assert (answer.status, ended.status, ended.details) == (500, 500, "via_upstream")


async def test_a_client_that_leaves_before_the_answer_is_told_without_a_status(watched: Watched) -> None:
    before = len(watched.ended)
    asked = asyncio.create_task(ask(watched.client, watched.envoy.url, asking(SILENT)))
    await until(lambda: watched.silent.requests)
    asked.cancel()
    await until(lambda: len(watched.ended) > before)
    (ended,) = watched.ended[before:]
    assert (ended.status, ended.details, ended.first_byte_s) == (0, "downstream_remote_disconnect", None)


TEXT = json.dumps({"text": 'so "usage": {"prompt_tokens": 1, "completion_tokens": 1} it was'})
LONG = "a" * 300_000


@pytest.mark.parametrize(
    ("answer", "prompt_tokens", "completion_tokens"),
    [
        pytest.param(f'{{"choices":[{TEXT}],"usage":{{"prompt_tokens":3,"completion_tokens":4}}}}', 3, 4, id="faked"),
        pytest.param(f'{{"usage":null,"choices":[{TEXT}]}}', None, None, id="faked and none"),
        pytest.param(
            f'{{"a":"{LONG}","usage": {{"prompt_tokens" : 3 , "completion_tokens" : 4 }} , "kv": null}}',
            3,
            4,
            id="long",
        ),
        pytest.param(f'{{"usage":{{"prompt_tokens":3}},"a":"{LONG}"}}', None, None, id="at the beginning"),
        pytest.param(
            '{"usage":{"completion_tokens":4,"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}},"x":{}}',
            3,
            4,
            id="details",
        ),
        pytest.param('{"usage":{"prompt_tokens":3}}', 3, None, id="half"),
        pytest.param(
            '[{"usage":{"prompt_tokens":1,"completion_tokens":2}},{"usage":{"prompt_tokens":3}}]', 3, None, id="twice"
        ),
        pytest.param('{"usage":{"input_tokens":3,"output_tokens":4}}', 3, 4, id="other names"),
        pytest.param('{"usage":{"prompt_tokens":-3,"completion_tokens":1e300}}', None, None, id="negative and huge"),
        pytest.param('{"usage":{"prompt_tokens":"3","completion_tokens":4.5}}', None, None, id="text and a fraction"),
        pytest.param('{"usage":{"prompt_tokens":NaN,"completion_tokens":true}}', None, None, id="not a number"),
        pytest.param(f'{{"usage":{{"prompt_tokens":{"9" * 400},"completion_tokens":4}}}}', None, 4, id="endless"),
        pytest.param('{"usage":{"prompt_tokens":3,"completion_tokens":4', None, None, id="cut"),
        pytest.param('{"usage":' * 400, None, None, id="deep"),
        pytest.param('"usage":{' * 400, None, None, id="unbalanced"),
        pytest.param("\x00\xff" * 3000, None, None, id="no text"),
    ],
)
async def test_usage_is_read_from_the_end_of_whatever_an_engine_says(
    watched: Watched, answer: str, prompt_tokens: int | None, completion_tokens: int | None
) -> None:
    ended = await watched.answered(answer.encode())
    assert (ended.status, ended.prompt_tokens, ended.completion_tokens) == (200, prompt_tokens, completion_tokens)


async def test_a_compressed_answer_has_no_usage_that_could_be_read(watched: Watched) -> None:
    answer = gzip.compress(b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}')
    ended = await watched.answered(answer, head="content-type: application/json\r\ncontent-encoding: gzip")
    assert (ended.status, ended.prompt_tokens, ended.completion_tokens) == (200, None, None)


async def test_an_answer_is_passed_on_piece_by_piece_and_read_all_the_same(watched: Watched) -> None:
    pieces = [b'{"usage":{"prompt_', b'tokens":3,"compl', b'etion_tokens"', b":4}}"]
    passed_on, before = asyncio.Semaphore(0), len(watched.ended)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        length = sum(map(len, pieces))
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n".encode())
        for piece in pieces:
            writer.write(piece)
            await passed_on.acquire()
        writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    add_node(watched.balancer, "slow", f"127.0.0.1:{running.sockets[0].getsockname()[1]}")
    try:
        async with watched.client.post(watched.envoy.url + "/v1/completions", json=asking("slow").body) as response:
            for piece in pieces:
                assert await response.content.readexactly(len(piece)) == piece
                passed_on.release()
    finally:
        running.close()
    await until(lambda: len(watched.ended) > before)
    (ended,) = watched.ended[before:]
    assert (ended.prompt_tokens, ended.completion_tokens) == (3, 4)


async def test_a_request_that_extproc_was_not_asked_about_is_not_told(watched: Watched) -> None:
    async with watched.client.get(watched.envoy.url + "/metrics") as response:
        assert response.status == 404
    _, ended = await watched.ask(asking(MODEL))  # and only this one
    assert ended.status == 200


async def test_as_shipped_ends_are_told_without_usage(watched: Watched, tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        envoy = await fleet.envoy(watched.serve, watched.known)

        async def chosen() -> bool:
            return (await ask(watched.client, envoy.url, PROBE)).chosen is not None

        await fleet.until("choices", chosen)
        before = len(watched.ended)
        answer = await ask(watched.client, envoy.url, asking(MODEL))
        assert "usage" in json.loads(answer.text)
        await until(lambda: len(watched.ended) > before)
        ended = watched.ended[-1]
        assert (ended.status, ended.model, ended.upstream_host) == (200, MODEL, str(watched.known[0]))
        assert (ended.prompt_tokens, ended.completion_tokens) == (None, None)
        async with watched.client.get(f"{envoy.admin_url}/stats?filter=lua.executions") as page:
            assert not (await page.text()).strip(), "no script runs"
