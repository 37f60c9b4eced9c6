"""Nodes that fail, as clients see it through the real Envoy, and what is counted of their requests afterwards."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
import pytest_asyncio

from tests.e2e.scripted import (
    CONFIG,
    GOOD,
    PIECE,
    STREAM_HEAD,
    UNAVAILABLE,
    Behaviour,
    Scripted,
    Streaming,
    answering,
    chunk,
    hang,
    reset,
    running,
)
from tests.waiting import until


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def scripted(client: aiohttp.ClientSession, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scripted]:
    async with running(client, tmp_path_factory.mktemp("statuses")) as found:
        yield found


async def no_http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
    await writer.drain()


def trials_max(seconds: float) -> int:
    """How often a node that goes on failing can have been tried again."""
    return int(math.log2(1 + seconds / CONFIG["ejection"]["first_s"]))


async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer that breaks off."""
    writer.write(STREAM_HEAD + chunk(PIECE))
    await writer.drain()
    writer.transport.abort()


@pytest.mark.parametrize("behaviour", [UNAVAILABLE, answering("502 Bad Gateway"), reset, cut])
async def test_a_node_that_fails_is_seen_once_then_left_out_probed_and_back_when_it_is_well(
    scripted: Scripted, behaviour: Behaviour
) -> None:
    async with scripted.nodes(GOOD, behaviour, GOOD) as (model, nodes):
        failing = nodes[1]
        begun_s = time.monotonic()

        async def ejected() -> bool:
            await scripted.ask_and_tell(model)
            return await scripted.is_out(failing)

        await until(ejected)
        # Where nothing of an answer came, Envoy tried the same node again.
        assert failing.requests == (2 if behaviour is reset else 1)
        answers = [await scripted.ask(model) for _ in range(20)]
        failed = sum(answer.status != 200 or not answer.whole for answer in answers)
        assert failed <= trials_max(time.monotonic() - begun_s)
        failing.behaviour = GOOD

        async def back() -> bool:
            await scripted.ask(model)
            return not await scripted.is_out(failing)

        await until(back)
        before = failing.requests
        answers = [await scripted.ask(model) for _ in range(20)]
        assert [answer.status for answer in answers] == [200] * 20
        assert failing.requests > before
        await scripted.freed(*nodes)


async def test_of_many_clients_at_once_only_those_that_were_under_way_see_a_failing_node(scripted: Scripted) -> None:
    async with scripted.nodes(GOOD, UNAVAILABLE, GOOD) as (model, nodes):
        statuses: list[int] = []
        begun_s = time.monotonic()

        async def client() -> None:
            for _ in range(10):
                statuses.append((await scripted.ask(model)).status)

        await asyncio.gather(*(client() for _ in range(8)))
        assert len(statuses) == 80
        assert set(statuses) == {200, 503}
        assert statuses.count(503) <= 8 + trials_max(time.monotonic() - begun_s)
        await scripted.freed(*nodes)


async def test_a_node_that_is_gone_is_left_out(scripted: Scripted) -> None:
    async with scripted.nodes(GOOD, GOOD) as (model, nodes):
        (gone,) = [node for node in nodes if node.name.endswith("b")]
        closed = gone.address
        await scripted.reporter.report(gone.name, type(closed)("127.0.0.1", 1), model=model)

        async def ejected() -> bool:
            await scripted.ask_and_tell(model)
            return await scripted.is_out(gone)

        await until(ejected)
        assert (await scripted.ask(model)).status == 200
        await scripted.freed(*nodes)


@pytest.mark.parametrize(("behaviour", "status"), [(reset, 503), (no_http, 502)])
async def test_what_envoy_says_of_a_broken_node_is_an_error_that_clients_can_read(
    scripted: Scripted, behaviour: Behaviour, status: int
) -> None:
    async with scripted.nodes(behaviour, behaviour) as (model, nodes):
        answer = await scripted.ask_and_tell(model)
        assert (answer.status, json.loads(answer.text)["error"]["code"]) == (status, "node_unreachable")
        assert [await scripted.is_out(node) for node in nodes] == [node.requests > 0 for node in nodes]
        await scripted.freed(*nodes)


async def test_errors_of_a_nodes_own_count_when_they_come_in_a_row(scripted: Scripted) -> None:
    async with scripted.nodes(GOOD, answering("500 Internal Server Error")) as (model, nodes):
        failing = nodes[1]
        statuses = []

        async def ejected() -> bool:
            statuses.append((await scripted.ask_and_tell(model)).status)
            return await scripted.is_out(failing)

        await until(ejected)
        assert statuses.count(500) == failing.requests == 5
        assert (await scripted.ask(model)).status == 200


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "429 Too Many Requests"])
async def test_what_a_node_refuses_is_not_held_against_it(scripted: Scripted, status: str) -> None:
    async with scripted.nodes(answering(status), answering(status)) as (model, nodes):
        answers = [await scripted.ask(model) for _ in range(12)]
        assert {answer.status for answer in answers} == {int(status[:3])}
        assert all(node.requests for node in nodes)
        await scripted.freed(*nodes)
        assert not any([await scripted.is_out(node) for node in nodes])


async def test_clients_of_a_node_that_hangs_give_up_and_the_others_go_elsewhere(scripted: Scripted) -> None:
    async with scripted.nodes(GOOD, hang) as (model, nodes):
        good, hanging = nodes
        stuck: list[asyncio.Task[object]] = []
        while not hanging.requests:
            stuck.append(asyncio.create_task(scripted.ask(model)))
            await until(lambda: good.requests + hanging.requests == len(stuck))
        assert await scripted.own(hanging) == (1, 4)
        answers = [await scripted.ask(model) for _ in range(10)]
        assert [answer.status for answer in answers] == [200] * 10
        assert hanging.requests == 1, "what waits there speaks against it"
        stuck[-1].cancel()
        await scripted.freed(*nodes)
        assert not await scripted.is_out(hanging), "a client that leaves proves nothing"


@pytest.mark.parametrize("pieces", [0, 1, 3])
async def test_a_client_that_leaves_frees_the_node_at_once_and_proves_nothing(scripted: Scripted, pieces: int) -> None:
    streaming = Streaming()
    async with scripted.nodes(streaming, streaming) as (model, nodes):  # one alone is never left out
        response = await scripted.stream(model)
        for _ in range(pieces):
            streaming.go()
            await response.content.readexactly(len(PIECE))
        (node,) = [one for one in nodes if one.requests]
        assert await scripted.own(node) == (1, 4), "no piece is shown as shipped"

        async def leave() -> None:
            response.close()
            await until(streaming.gone.is_set)

        await scripted.told(leave())
        await scripted.freed(*nodes)
        assert not await scripted.is_out(node)


@pytest.mark.parametrize("ends", [Streaming.end, Streaming.cut])
async def test_the_end_of_a_stream_however_it_ends_frees_the_node(
    scripted: Scripted, ends: Callable[[Streaming], None]
) -> None:
    streaming = Streaming()
    async with scripted.nodes(streaming) as (model, nodes):
        response = await scripted.stream(model)
        streaming.go()
        await response.content.readexactly(len(PIECE))
        assert (await scripted.own(nodes[0]))[0] == 1
        ends(streaming)
        if ends is Streaming.end:
            assert await response.read() == b""
        else:
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        await scripted.freed(*nodes)
