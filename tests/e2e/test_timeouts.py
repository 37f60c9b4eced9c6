"""An Envoy whose routes allow less time than answers take: what looks like a failing node to it, and is told so."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from extproc.fleet import BOOTSTRAP
from tests.e2e.scripted import PIECE, STREAM_HEAD, Behaviour, Scripted, chunk, hang, running
from tests.waiting import until

ERRORS_MAX = 5
"""As the configuration has it by default."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def scripted(client: aiohttp.ClientSession, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scripted]:
    shipped = BOOTSTRAP.read_text()
    assert shipped.count("timeout: 0s") == 4, "of two routes for each prefix"
    bootstrap = shipped.replace("timeout: 0s", "timeout: 0.2s")
    async with running(client, tmp_path_factory.mktemp("timeouts"), bootstrap) as found:
        yield found


async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer that begins in time and takes too long."""
    writer.write(STREAM_HEAD + chunk(PIECE))
    await hang(reader, writer)


@pytest.mark.parametrize("behaviour", [hang, begin])
async def test_answers_that_take_longer_than_the_route_allows_leave_a_node_out_when_they_come_in_a_row(
    scripted: Scripted, behaviour: Behaviour
) -> None:
    async with scripted.nodes(behaviour, behaviour) as (model, nodes):

        async def ejected() -> bool:
            answer = await scripted.told(scripted.ask(model))
            # A slow machine may not see the beginning in time either.
            assert (answer.status, answer.whole) in {(504, True)} | ({(200, False)} if behaviour is begin else set())
            out = [await scripted.is_out(node) for node in nodes]
            requests = [node.requests for node in nodes]
            assert out == [count >= ERRORS_MAX for count in requests]
            return any(out)

        await until(ejected, within_s=60)  # each answer takes as long as the route allows
        await scripted.freed(*nodes)
