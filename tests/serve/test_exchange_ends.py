"""An Envoy with two routers, whose access log goes to one of them: the other's requests end all the same."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage
from envoy.service.accesslog.v3.als_pb2_grpc import AccessLogServiceStub

from tests.gateway.entries import OURS, USAGE, entry
from tests.gateway.wire import ask, response_body, response_head
from tests.natsserver import NatsServer, nats_server
from tests.serve.served import Serve, Served
from tests.serve.test_exchange import NODES, agent_of, open_at, peers, sent
from tests.waiting import until

TOKEN = b'data: {"choices":[{"text":" a"}]}\n\n'


@pytest.fixture
async def nats() -> AsyncIterator[NatsServer]:
    async with nats_server() as server:
        yield server


def log_of(request_id: str) -> StreamAccessLogsMessage:
    """An Envoy's entry about a request that is over."""
    return StreamAccessLogsMessage(http_logs={"log_entry": [entry(OURS | {"request_id": request_id}, USAGE)]})


async def request_of(served: Served) -> str:
    """The id of the latest request that it decided about."""
    decisions = (await served.get("/decisions?limit=1"))[1]["decisions"]
    request_id: str = decisions[0]["request_id"]
    return request_id


async def ends_are_told(served: Served) -> bool:
    told: bool = (await served.get("/peers"))[1]["ends_are_told"]
    return told


async def test_an_end_that_one_router_hears_frees_what_another_has_sent(serve: Serve, nats: NatsServer) -> None:
    settings: Any = {
        "nats": {"servers": nats.url},
        "nodes": NODES,
        "policies": {"default": {"leave_after_first_token": True}},
    }
    one, other = await serve(**settings), await serve(**settings)
    await agent_of(one)
    log = AccessLogServiceStub(other.envoy).StreamAccessLogs()
    await until(lambda: peers(other))
    first = await sent(one)
    await log.write(log_of(await request_of(one)))
    await until(lambda: ends_are_told(one))
    assert await until(lambda: _none(open_at(one, "own")))
    first.cancel()

    second = await sent(one)
    await ask(second, response_head(200))
    await second.write(response_body(TOKEN))
    assert await second.read() is grpc.aio.EOF, "it is left, for its end will be told"
    assert await second.code() is grpc.StatusCode.OK
    assert await open_at(one, "own") == 1
    await log.write(log_of(await request_of(one)))
    await until(lambda: _none(open_at(one, "own")))
    assert 'extproc_answers_total{status="2xx"} 2.0' in await other.page("/metrics")
    log.cancel()
    await until(lambda: _none(ends_are_told(one)))


async def _none(found: Any) -> bool:
    return not await found
