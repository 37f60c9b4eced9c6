"""What is no inference request, as polls of models: what it says of the nodes, through the real Envoy."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from extproc.address import TcpAddress
from tests.e2e.scripted import GOOD, UNAVAILABLE, Behaviour, Scripted, answering, hang, reset, running
from tests.waiting import until


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def scripted(client: aiohttp.ClientSession, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scripted]:
    async with running(client, tmp_path_factory.mktemp("polls")) as found:
        yield found


async def test_a_poller_that_hangs_up_is_no_reason_to_leave_a_node_out(scripted: Scripted) -> None:
    async with scripted.nodes(hang, hang) as (_, nodes):
        for number in range(1, 7):  # more than errors of a node's own are borne

            async def hang_up(number: int = number) -> None:
                polling = asyncio.create_task(scripted.poll())
                await until(lambda: sum(node.requests for node in nodes) == number)
                polling.cancel()

            await scripted.told(hang_up())
        assert all(node.requests for node in nodes)
        assert not any([await scripted.is_out(node) for node in nodes])


@pytest.mark.parametrize("status", ["500 Internal Server Error", "501 Not Implemented", "504 Gateway Timeout"])
async def test_errors_of_paths_that_are_no_inference_say_nothing_about_it(scripted: Scripted, status: str) -> None:
    async with scripted.nodes(answering(status), answering(status)) as (_, nodes):
        seen = {await scripted.told(scripted.poll("/v1/audio/voices")) for _ in range(12)}
        assert seen == {int(status[:3])}
        assert [node.requests for node in nodes] == [6, 6]
        assert not any([await scripted.is_out(node) for node in nodes])


@pytest.mark.parametrize("behaviour", [UNAVAILABLE, reset])
async def test_a_node_that_is_not_there_for_a_poll_is_not_there_for_inference(
    scripted: Scripted, behaviour: Behaviour
) -> None:
    async with scripted.nodes(GOOD, behaviour) as (model, nodes):
        statuses = {await scripted.told(scripted.poll()) for _ in range(2)}
        assert statuses == {200, 503}
        assert [await scripted.is_out(node) for node in nodes] == [False, True]
        nodes[1].behaviour = GOOD

        async def back() -> bool:
            assert (await scripted.ask(model)).status == 200
            return not await scripted.is_out(nodes[1])

        await until(back)


async def test_a_node_that_refuses_connections_of_polls_is_left_out(scripted: Scripted) -> None:
    async with scripted.nodes(GOOD, GOOD) as (model, nodes):
        await scripted.reporter.report(nodes[1].name, TcpAddress("127.0.0.1", 1), model=model)
        statuses = {await scripted.told(scripted.poll()) for _ in range(2)}
        assert statuses == {200, 503}
        assert [await scripted.is_out(node) for node in nodes] == [False, True]
