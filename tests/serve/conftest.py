"""Starting `python -m extproc serve` as its users do: a process, real gRPC and HTTP, real signals."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import yaml

from extproc.children import Child, ourselves
from tests.serve.served import ANY_PORTS, Serve, Served


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Child]]]:
    children: list[Child] = []

    async def start(config: dict[str, Any]) -> Child:
        name = f"serve{len(children) or ''}"
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"listen": ANY_PORTS} | config))
        children.append(await Child.start(name, ourselves("serve", "--config", str(path)), tmp_path))
        return children[-1]

    yield start
    for child in children:
        if child.running:
            await child.kill()


@pytest.fixture
async def serve(start: Callable[..., Awaitable[Child]]) -> AsyncIterator[Serve]:
    running: list[Served] = []

    async def serve(**config: Any) -> Served:
        child = await start(config)
        at = json.loads((await child.logged(r'^\{.*"event": ?"listening".*\}$', within_s=30))[0])
        path = at["admin"].removeprefix("unix:") if "unix" in at["admin"] else None
        served = Served(
            child,
            at,
            grpc.aio.insecure_channel(at["extproc"]),
            grpc.aio.insecure_channel(at["agents"]),
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(path) if path else None),
        )
        running.append(served)
        return served

    yield serve
    for served in running:
        await served.envoy.close()
        await served.agents.close()
        await served.http.close()
