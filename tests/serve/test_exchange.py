"""Two routers of one fleet and a real NATS server: what one sends the other knows of."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from extproc.pb import nodes_pb2
from tests.natsserver import NatsServer, nats_server
from tests.nodes.messages import snapshot_message
from tests.serve.served import Serve, Served, asked
from tests.waiting import until

NODES = {"report_interval_s": 0.01, "fresh_s": 60, "stale_s": 60}


@pytest.fixture
async def nats() -> AsyncIterator[NatsServer]:
    async with nats_server() as server:
        yield server


async def agent_of(served: Served, *node_ids: str) -> Any:
    """An agent's stream, which tells of idle nodes once."""
    stream = served.agent()
    for number, node_id in enumerate(node_ids or ("gpu-1",)):
        idle = snapshot_message(
            node_id=node_id,
            host=f"10.0.0.{1 + number}:8000",
            sample_age_ms=0,
            requests_running=None,
            running_count=0,
            waiting_queue_size=0,
            pending_prefill_count=0,
            active_decode_count=0,
        )
        await stream.write(nodes_pb2.AgentMessage(snapshot=idle))
        assert (await stream.read()).acknowledgement.verdict == nodes_pb2.Acknowledgement.VERDICT_APPLIED
    return stream


async def sent(served: Served, prompt: str = "hello") -> Any:
    """A request that is at a node: its stream stays open."""

    async def stream() -> Any:
        found = served.stream()
        reply = await asked(found, prompt=prompt)
        if reply.request_body.response.header_mutation.set_headers:
            return found
        await found.done_writing()  # two report intervals have not passed yet
        return None

    return await until(stream)


async def open_at(served: Served, whose: str) -> int:
    nodes = (await served.get("/nodes"))[1]["nodes"]
    return sum(one[whose]["sequences_open"] for one in nodes)


async def nodes_of(served: Served) -> set[str]:
    """Where a router itself has something."""
    nodes = (await served.get("/nodes"))[1]["nodes"]
    return {one["node_id"] for one in nodes if one["own"]["sequences_open"]}


async def peers(served: Served) -> list[str]:
    return [one["router"] for one in (await served.get("/peers"))[1]["peers"]]


async def metric(served: Served, line: str) -> bool:
    return line in (await served.page("/metrics")).splitlines()


async def test_two_routers_know_each_others_load_within_a_second_of_a_start(serve: Serve, nats: NatsServer) -> None:
    settings = {"nats": {"servers": nats.url}, "nodes": NODES, "exchange": {"interval_s": 10.0, "silence_s": 20.0}}
    one = await serve(**settings)
    await agent_of(one)
    streams = [await sent(one) for _ in range(3)]
    other = await serve(**settings)
    came_s = asyncio.get_running_loop().time()
    await agent_of(other)
    await until(lambda: _is(open_at(other, "peers"), 3), within_s=10)
    assert asyncio.get_running_loop().time() - came_s < 1.0
    assert await open_at(other, "own") == 0
    (mine,) = await peers(one)
    assert mine == (await other.get("/peers"))[1]["router"]
    page = (await other.get("/peers"))[1]
    assert (page["connected"], page["peers"][0]["requests"]) == (True, 3)
    assert await metric(other, "extproc_bus_connected 1.0")
    assert await metric(other, "extproc_peers 1.0")
    assert await metric(other, 'extproc_node_peers_sequences_open{node="gpu-1"} 3.0')
    for stream in streams:
        stream.cancel()


async def _is(found: Any, wanted: object) -> bool:
    return bool(await found == wanted)


async def test_requests_go_where_the_other_router_has_sent_nothing(serve: Serve, nats: NatsServer) -> None:
    settings = {"nats": {"servers": nats.url}, "nodes": NODES}
    one, other = await serve(**settings), await serve(**settings)
    for served in (one, other):
        await agent_of(served, "gpu-1", "gpu-2")
    await until(lambda: _is(_count(peers(one)), 1))
    streams = [await sent(one, prompt="hello " * 20_000)]
    await until(lambda: _is(open_at(other, "peers"), 1))
    streams += [await sent(other)]
    assert await nodes_of(one) | await nodes_of(other) == {"gpu-1", "gpu-2"}
    for stream in streams:
        stream.cancel()


async def _count(found: Any) -> int:
    return len(await found)


async def test_the_share_of_a_router_that_is_killed_is_gone_when_it_has_been_silent(
    serve: Serve, nats: NatsServer
) -> None:
    settings = {"nats": {"servers": nats.url}, "nodes": NODES}
    one, other = await serve(**settings), await serve(**settings)
    for served in (one, other):
        await agent_of(served)
    streams = [await sent(one) for _ in range(3)]
    await until(lambda: _is(open_at(other, "peers"), 3))
    await one.child.kill()
    killed_s = asyncio.get_running_loop().time()
    await until(lambda: _is(open_at(other, "peers"), 0))
    assert 1.5 < asyncio.get_running_loop().time() - killed_s < 2.5 + 2.0 + 1.0
    await until(lambda: _is(peers(other), []))
    assert await metric(other, "extproc_peers 0.0")
    for stream in streams:
        stream.cancel()


async def test_a_router_that_drains_says_goodbye(serve: Serve, nats: NatsServer) -> None:
    settings = {"nats": {"servers": nats.url}, "exchange": {"interval_s": 10.0, "silence_s": 60.0}}
    one, other = await serve(**settings), await serve(**settings)
    await until(lambda: _is(_count(peers(other)), 1))
    assert await one.child.stop() == 0
    await until(lambda: _is(peers(other), []))


async def test_nats_killed_stops_nothing_and_back_it_heals(serve: Serve, nats: NatsServer) -> None:
    settings = {"nats": {"servers": nats.url}, "nodes": NODES}
    one, other = await serve(**settings), await serve(**settings)
    for served in (one, other):
        await agent_of(served)
    streams = [await sent(one)]
    await until(lambda: _is(open_at(other, "peers"), 1))
    await nats.kill()
    await until(lambda: metric(other, "extproc_bus_connected 0.0"))
    streams += [await sent(one)]
    await until(lambda: _is(peers(other), []))
    assert (await other.get("/peers"))[1]["connected"] is False
    await until(lambda: _is(open_at(other, "peers"), 0))
    await nats.start()
    await until(lambda: _is(open_at(other, "peers"), 2), within_s=20)
    assert await metric(other, "extproc_bus_connected 1.0")
    for stream in streams:
        stream.cancel()


async def test_a_router_starts_without_its_bus_and_finds_it_later(serve: Serve, nats: NatsServer) -> None:
    await nats.kill()
    settings = {"nats": {"servers": nats.url}, "nodes": NODES}
    one, other = await serve(**settings), await serve(**settings)
    await agent_of(one)
    stream = await sent(one)
    assert await metric(one, "extproc_bus_connected 0.0")
    await nats.start()
    await until(lambda: _is(_count(peers(other)), 1), within_s=20)
    stream.cancel()
