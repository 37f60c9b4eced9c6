"""First tokens as they pass, and streams that are left then: the option of a route, through the real Envoy."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import yaml

from extproc.traffic import Answer
from tests.e2e.scripted import (
    GOOD,
    PIECE,
    STREAM_HEAD,
    UNAVAILABLE,
    Scripted,
    Streaming,
    answering,
    chunk,
    hang,
    reset,
    running,
)
from tests.rendered import first_tokens_shown
from tests.waiting import until

COMMENT = b":\n\n"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def scripted(client: aiohttp.ClientSession, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scripted]:
    bootstrap = first_tokens_shown()
    async with running(client, tmp_path_factory.mktemp("first"), bootstrap) as found:
        async with found.nodes(GOOD) as (model, _):
            await found.ask_and_tell(model)  # before a log comes no stream is left
        yield found


async def streams_open(scripted: Scripted) -> float:
    return await scripted.metric("extproc_streams_open")


async def left(scripted: Scripted) -> bool:
    return await streams_open(scripted) == 0


async def test_the_first_token_is_noted_and_the_stream_left_and_the_end_is_told(scripted: Scripted) -> None:
    streaming = Streaming()
    async with scripted.nodes(streaming) as (model, (node,)):
        response = await scripted.stream(model)
        assert response.status == 200
        assert await scripted.own(node) == (1, 4)
        streaming.go(COMMENT)
        assert await response.content.readexactly(len(COMMENT)) == COMMENT
        assert await scripted.own(node) == (1, 4), "a comment is no token"
        assert await streams_open(scripted) == 1
        streaming.go()
        assert await response.content.readexactly(len(PIECE)) == PIECE
        assert await scripted.own(node) == (1, 0)
        await until(lambda: left(scripted))
        for _ in range(3):
            streaming.go()
            assert await response.content.readexactly(len(PIECE)) == PIECE
        assert await scripted.own(node) == (1, 0), "it is still running"
        streaming.end()
        assert await response.read() == b""
        await scripted.freed(node)


async def test_a_client_that_leaves_before_the_first_token_frees_the_node(scripted: Scripted) -> None:
    for behaviour in (hang, Streaming()):
        async with scripted.nodes(behaviour, behaviour) as (model, nodes):  # one alone is never left out
            asked = asyncio.create_task(scripted.ask(model))
            await until(lambda nodes=nodes: any(one.requests for one in nodes))  # type: ignore[misc]
            (node,) = [one for one in nodes if one.requests]
            assert await scripted.own(node) == (1, 4)

            async def leave(asked: "asyncio.Task[Answer]" = asked) -> None:
                asked.cancel()

            await scripted.told(leave())
            await scripted.freed(*nodes)
            assert not await scripted.is_out(node)


async def test_a_client_that_leaves_after_the_stream_was_left_frees_the_node(scripted: Scripted) -> None:
    streaming = Streaming()
    async with scripted.nodes(streaming, streaming) as (model, nodes):  # one alone is never left out
        response = await scripted.stream(model)
        streaming.go()
        await response.content.readexactly(len(PIECE))
        await until(lambda: left(scripted))
        (node,) = [one for one in nodes if one.requests]
        assert await scripted.own(node) == (1, 0)
        response.close()
        await scripted.freed(*nodes)  # by the log alone
        await until(streaming.gone.is_set)
        assert not await scripted.is_out(node)


async def test_a_node_that_breaks_off_after_the_stream_was_left_is_free_and_left_out(scripted: Scripted) -> None:
    streaming = Streaming()
    async with scripted.nodes(streaming, streaming) as (model, nodes):
        response = await scripted.stream(model)
        streaming.go()
        await response.content.readexactly(len(PIECE))
        await until(lambda: left(scripted))
        (node,) = [one for one in nodes if one.requests]
        streaming.cut()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
        await scripted.freed(*nodes)
        assert await scripted.is_out(node)


async def test_the_text_of_an_error_is_no_first_token_and_its_node_is_left_out_at_once(scripted: Scripted) -> None:
    async with scripted.nodes(GOOD, UNAVAILABLE) as (model, nodes):
        statuses = [(await scripted.ask(model)).status for _ in range(12)]
        assert statuses.count(503) == nodes[1].requests == 1
        assert await scripted.is_out(nodes[1])
        await scripted.freed(*nodes)


@pytest.mark.parametrize(
    "behaviour",
    [
        GOOD,
        answering("200 OK", b""),
        answering("404 Not Found", b'{"error": {}}'),
        answering("200 OK", b"x" * 300_000),
        answering("204 No Content", b""),
    ],
    ids=["short", "empty", "an error", "long", "no content"],
)
async def test_answers_that_are_no_streams_free_the_node_too(
    scripted: Scripted, behaviour: Callable[..., object]
) -> None:
    async with scripted.nodes(behaviour) as (model, (node,)):  # type: ignore[arg-type]
        answer = await scripted.ask(model)
        assert answer.whole
        assert (answer.status, len(answer.text)) in {(200, 2), (200, 0), (404, 13), (200, 300_000), (204, 0)}
        await scripted.freed(node)


async def test_answers_pass_unchanged_however_many_and_however_cut(scripted: Scripted) -> None:
    sent: dict[bytes, str] = {}

    async def burst(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(sent)
        seed = b"%d" % number
        sent[seed] = ""
        digest = hashlib.sha256()
        writer.write(STREAM_HEAD + chunk(seed + b"\n"))
        for step in range(40):
            data = hashlib.sha512(b"%d %d" % (number, step)).digest() * (1 + (number * 7 + step * step) % 400)
            digest.update(data)
            writer.write(chunk(data))
            await writer.drain()
        sent[seed] = digest.hexdigest()
        writer.write(chunk(b""))
        await writer.drain()

    async with scripted.nodes(burst) as (model, (node,)):

        async def passes_unchanged() -> None:
            async with await scripted.stream(model) as response:
                seed, _, rest = (await response.read()).partition(b"\n")
            assert hashlib.sha256(rest).hexdigest() == sent[seed]

        await asyncio.gather(*(passes_unchanged() for _ in range(40)))
        assert node.requests == 40
        await scripted.freed(node)


async def test_many_streams_with_every_fate_leave_nothing_behind(scripted: Scripted) -> None:
    async def pieces(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for _piece in range(20):
            writer.write(chunk(PIECE))
            await writer.drain()
        writer.write(chunk(b""))
        await writer.drain()

    async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(PIECE))
        await writer.drain()
        writer.transport.abort()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(PIECE))
        await hang(reader, writer)

    fates = (pieces, cut, slow, hang, GOOD, UNAVAILABLE, reset)

    async def fate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await fates[node.requests % len(fates)](reader, writer)

    async with scripted.nodes(fate) as (model, (node,)):
        seen: set[object] = set()

        async def client() -> None:
            try:
                async with asyncio.timeout(2), await scripted.stream(model) as response:
                    await response.read()
                    seen.add(response.status)
            except (TimeoutError, aiohttp.ClientError) as error:
                seen.add(type(error))

        await asyncio.gather(*(client() for _ in range(70)))
        # 502: it was cut while its head was still shown to us.
        assert {200, 503, TimeoutError} <= seen <= {200, 502, 503, TimeoutError, aiohttp.ClientPayloadError}
        await scripted.freed(node)
        await until(lambda: left(scripted))


async def test_where_no_end_would_be_told_no_stream_is_left(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    bootstrap = first_tokens_shown()
    asked = "path: [{key: request_id}]"
    assert bootstrap.count(asked) == 2, "one for each log"
    bootstrap = bootstrap.replace(asked, "path: [{key: nothing_of_that_name}]")
    async with running(client, tmp_path, bootstrap) as scripted:
        streaming = Streaming()
        async with scripted.nodes(streaming) as (model, (node,)):
            response = await scripted.stream(model)
            for _ in range(3):
                streaming.go()
                await response.content.readexactly(len(PIECE))
            assert await scripted.own(node) == (1, 0)
            assert await streams_open(scripted) == 1
            streaming.end()
            assert await response.read() == b""
            await scripted.freed(node)


async def test_requests_beyond_a_limit_of_envoys_own_speak_against_no_node(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    bootstrap = yaml.safe_load(first_tokens_shown())
    (chosen,) = [one for one in bootstrap["static_resources"]["clusters"] if one["name"] == "chosen-node"]
    chosen["circuit_breakers"] = {"thresholds": [{"max_requests": 1}]}
    async with (
        running(client, tmp_path, yaml.safe_dump(bootstrap)) as scripted,
        scripted.nodes(hang, hang) as (model, nodes),
    ):
        waiting = asyncio.create_task(scripted.ask(model))
        await until(lambda: any(one.requests for one in nodes))
        for _ in range(3):
            answer = await scripted.told(scripted.ask(model))
            assert (answer.status, "overflow" in answer.text) == (503, True)
        assert sum(one.requests for one in nodes) == 1
        assert not any([await scripted.is_out(node) for node in nodes])
        waiting.cancel()
        await scripted.freed(*nodes)
