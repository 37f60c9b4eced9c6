"""Real serves and a real agent with a real NATS server between them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.children import Child, ourselves
from tests.agent.engine import vllm_engine
from tests.natsserver import NatsServer, nats_server
from tests.serve.served import Serve, Served
from tests.waiting import until


@pytest.fixture
async def nats() -> AsyncIterator[NatsServer]:
    async with nats_server() as server:
        yield server


async def agent(folder: Path, url: str, **settings: Any) -> Child:
    file = folder / "agent.yaml"
    engines = [{"node_id": "gpu/1", "engine": url}]
    file.write_text(yaml.safe_dump({"engines": engines, "drain_s": 0, **settings}))
    return await Child.start("agent", ourselves("agent", "--config", str(file)), folder)


async def node(served: Served) -> dict[str, Any] | None:
    nodes = (await served.get("/nodes"))[1]["nodes"]
    return next((one for one in nodes if one["node_id"] == "gpu/1"), None)


async def ready(served: Served) -> bool:
    one = await node(served)
    return one is not None and one["state"] == "ready"


async def test_an_agent_tells_all_routers_by_nats_alone(nats: NatsServer, serve: Serve, tmp_path: Path) -> None:
    to = {"nats": {"servers": [nats.url], "fleet": "prod"}}
    early = [await serve(**to) for _ in range(2)]
    other = await serve(nats={"servers": [nats.url], "fleet": "test"})
    async with vllm_engine() as engine:
        speaks = await agent(tmp_path, engine.url, **to, idle_interval_s=3, interval_s=30)
        for served in early:
            await until(lambda: ready(served), within_s=20)  # noqa: B023
        late = await serve(**to)
        await until(lambda: ready(late), within_s=1)
        assert await node(other) is None
        assert '_snapshots_total{verdict="refused"} 0.0\n' in await late.page("/metrics")
        await speaks.stop()
        for served in (*early, late):
            await until(lambda: gone(served))  # noqa: B023


async def gone(served: Served) -> bool:
    return await node(served) is None


async def test_no_node_gets_stale_when_nats_is_killed_and_comes_back(
    nats: NatsServer, serve: Serve, tmp_path: Path
) -> None:
    to = {"nats": {"servers": nats.url}}
    served = [await serve(**to) for _ in range(2)]
    loop = asyncio.get_running_loop()
    async with vllm_engine() as engine:
        speaks = await agent(tmp_path, engine.url, **to, routers=[one.at["agents"] for one in served])
        for one in served:
            await until(lambda: ready(one), within_s=20)  # noqa: B023

        async def stays_fresh(seconds: float) -> None:
            until_s = loop.time() + seconds
            while loop.time() < until_s:
                for one in served:
                    seen = await node(one)
                    assert seen is not None
                    assert seen["freshness"] == "fresh", seen
                await asyncio.sleep(0.05)

        await stays_fresh(3)
        await nats.kill()
        await stays_fresh(7)
        await nats.start()
        await stays_fresh(7)
        assert await speaks.stop() == 0
