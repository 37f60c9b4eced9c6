"""Websockets through extproc's filter: the body of an upgrade has no end, so nobody may wait for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from extproc.address import TcpAddress
from tests.e2e.edited import Edited, Gateway, gateway

HEARD_WITHIN_S = 10
BODY_MODES = ("BUFFERED", "FULL_DUPLEX_STREAMED", "STREAMED", "BUFFERED_PARTIAL", "NONE")
PATHS = ("/v1/realtime?model=demo", "/v1/audio/stream")


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[TcpAddress, list[str]]]:
    """A node that says everything back, and the paths that it was asked for."""
    asked: list[str] = []

    async def converse(request: web.Request) -> web.WebSocketResponse:
        asked.append(request.path_qs)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(f"heard {message.data}")
        return socket

    app = web.Application()
    app.add_routes([web.get("/health", _well), web.get("/{path:.*}", converse)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield TcpAddress("127.0.0.1", runner.addresses[0][1]), asked
    finally:
        await runner.cleanup()


async def _well(_: web.Request) -> web.Response:
    return web.Response()


def with_mode(mode: str) -> Edited:
    """The shipped bootstrap in another body mode, with upgrades allowed."""
    edited = Edited()
    edited.manager["upgrade_configs"] = [{"upgrade_type": "websocket"}]
    edited.ext_proc["allow_mode_override"] = True
    edited.ext_proc["processing_mode"]["request_body_mode"] = mode
    if mode == "FULL_DUPLEX_STREAMED":
        edited.ext_proc["processing_mode"]["request_trailer_mode"] = "SEND"
    return edited


async def converse(running: Gateway, path: str) -> None:
    """Two questions, each answered before the next is asked."""
    async with asyncio.timeout(HEARD_WITHIN_S), running.client.ws_connect(running.envoy.url + path) as socket:
        for text in ("one", "two"):
            await socket.send_str(text)
            assert await socket.receive_str() == f"heard {text}"


@pytest.mark.parametrize("mode", BODY_MODES)
async def test_a_conversation_is_held_with_a_node_of_ours(
    client: aiohttp.ClientSession, tmp_path: Path, mode: str
) -> None:
    async with AsyncExitStack() as stack:
        node, asked = await stack.enter_async_context(echoing())
        other, asked_other = await stack.enter_async_context(echoing())
        running = await stack.enter_async_context(gateway(client, tmp_path, with_mode(mode), [other]))
        await running.reporter.report("node", node)
        await running.ready("node")
        for path in PATHS:
            await converse(running, path)
        assert (asked, asked_other) == (list(PATHS), []), "the fallback's node, and not Envoy's own"
        await running.all_closed()


async def test_a_conversation_goes_on_when_extproc_dies(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        node, _ = await stack.enter_async_context(echoing())
        running = await stack.enter_async_context(gateway(client, tmp_path, with_mode("BUFFERED"), [node]))
        await running.reporter.report("node", node)
        await running.ready("node")
        async with asyncio.timeout(HEARD_WITHIN_S), client.ws_connect(running.envoy.url + PATHS[0]) as socket:
            await socket.send_str("before")
            assert await socket.receive_str() == "heard before"
            await running.all_closed()  # it is no inference request that a node's room could be counted by
            await running.fleet.kill(running.serve.child)
            await socket.send_str("after")
            assert await socket.receive_str() == "heard after"


async def test_without_extproc_a_conversation_is_held_with_a_known_node(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        known, asked = await stack.enter_async_context(echoing())
        running = await stack.enter_async_context(gateway(client, tmp_path, with_mode("BUFFERED"), [known]))
        await running.fleet.kill(running.serve.child)

        async def gone() -> bool:
            return await running.envoy_stat("cluster.extproc.membership_healthy") == 0

        await running.fleet.until("Envoy's sight of it", gone)
        await converse(running, PATHS[0])
        assert asked == [PATHS[0]]
