"""What `extproc check --envoy` finds is what the real Envoy does."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
from aiohttp import web
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import (
    ExternalProcessorServicer,
    add_ExternalProcessorServicer_to_server,
)

from extproc.address import UnixAddress
from extproc.children import Child, envoy_binary
from extproc.envoycheck.timeouts import faults_in_bootstrap
from extproc.gateway import codec
from tests.bootstraps import DURATION, FILTER, HOLD, LONGEST, OPTIONS, ROUTE, bootstrap, cluster, listener, manager, put
from tests.waiting import until

Json = Any

HELD_SHORT = "1.2s"
SHORT, SHORTER = "0.4s", "0.1s"
"""Of those that end a request, and of those that do not: the others have been held for longer when all have ended."""
TRIED: dict[str, tuple[str, Json, int]] = {
    "nothing": ("stream_idle_timeout", LONGEST, 200),
    "message_timeout": (f"{FILTER}message_timeout", SHORT, 504),
    "message_timeout 0": (f"{FILTER}message_timeout", "0s", 504),
    "message_timeout absent": (f"{FILTER}message_timeout", None, 504),
    "max_message_timeout": (f"{FILTER}max_message_timeout", SHORTER, 200),
    "asks for more than it may": (f"{FILTER}max_message_timeout", SHORT, 504),
    "asks for as much as it may": (f"{FILTER}max_message_timeout", LONGEST, 200),
    "grpc_service.timeout": (f"{FILTER}grpc_service.timeout", SHORTER, 200),
    "cluster": (f"{FILTER}grpc_service.envoy_grpc.cluster_name", "short", 500),
    "stream_idle_timeout": ("stream_idle_timeout", SHORT, 504),
    "stream_idle_timeout 0": ("stream_idle_timeout", "0s", 200),
    "route.idle_timeout": (f"{ROUTE}route.idle_timeout", SHORT, 504),
    "route.timeout": (f"{ROUTE}route.timeout", SHORTER, 200),
    "request_timeout": ("request_timeout", SHORTER, 200),
    "max_stream_duration": (DURATION, SHORT, 504),
    "route.max_stream_duration": (f"{ROUTE}route.max_stream_duration.max_stream_duration", SHORT, 504),
    "connection": ("common_http_protocol_options", {"idle_timeout": SHORTER, "max_connection_duration": SHORTER}, 200),
}
"""One timeout each, and what a held request comes to."""
ASKING = ("asks for more than it may", "asks for as much as it may")
"""Of these the message_timeout is short as well, though longer than counting takes."""


def tried(name: str) -> Json:
    path, value, _ = TRIED[name]
    made = put(manager(), path, value)
    return put(made, f"{FILTER}message_timeout", HELD_SHORT) if name in ASKING else made


class Holding(ExternalProcessorServicer):  # type: ignore[misc]
    """Holds each request's body until it may go, and asks for the time as `serve` does."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.held = 0

    async def Process(  # noqa: N802
        self, requests: AsyncIterator[ext_proc.ProcessingRequest], _: object
    ) -> AsyncIterator[ext_proc.ProcessingResponse]:
        async for request in requests:
            if request.HasField("request_headers"):
                yield ext_proc.ProcessingResponse(request_headers=ext_proc.HeadersResponse())
            elif request.HasField("request_body"):
                self.held += 1
                yield codec.hold(HOLD.seconds)
                await self.go.wait()
                yield ext_proc.ProcessingResponse(request_body=ext_proc.BodyResponse())


async def test_what_is_found_is_what_ends_held_requests_in_the_real_envoy(tmp_path: Path) -> None:
    def socket(name: str) -> UnixAddress:
        return UnixAddress(f"{tmp_path}/{name}")

    async def served(_: web.Request) -> web.Response:
        return web.Response(text="served")

    clusters = [
        cluster("extproc", socket("p")),
        cluster("short", socket("p")),
        cluster("engines", socket("e"), http2=False),
    ]
    clusters[1] = put(clusters[1], f"{OPTIONS}.{DURATION}", SHORT)
    managers = [tried(name) for name in TRIED]
    sockets = {name: socket(str(number)).path for number, name in enumerate(TRIED)}
    pipes = [{"pipe": {"path": path}} for path in sockets.values()]
    listeners = [listener(one, pipe) for one, pipe in zip(managers, pipes, strict=True)]
    staying = {name for name, (_, _, wanted) in TRIED.items() if wanted == 200}
    document = {
        "admin": {"address": {"pipe": {"path": socket("admin").path}}},
        "static_resources": {"listeners": listeners, "clusters": clusters},
    }
    (tmp_path / "envoy.json").write_text(json.dumps(document))
    config: tuple[str | Path, ...] = ("--config-path", tmp_path / "envoy.json")
    command = [envoy_binary(), *config, "--concurrency", "1", "--disable-hot-restart"]
    envoy = await Child.start("envoy", command, tmp_path)
    holding, server = Holding(), grpc.aio.server()
    add_ExternalProcessorServicer_to_server(holding, server)
    server.add_insecure_port(str(socket("p")))
    application = web.Application()
    application.router.add_post("/", served)
    runner = web.AppRunner(application)

    async def status(path: str, method: str = "POST", page: str = "/") -> int:
        body = "{}" if method == "POST" else None
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session,
            session.request(method, f"http://envoy{page}", data=body) as answer,
        ):
            return answer.status

    async def is_ready() -> bool:
        envoy.check()
        try:
            return await status(socket("admin").path, "GET", "/ready") == 200
        except aiohttp.ClientError:
            return False

    try:
        await server.start()
        await runner.setup()
        await web.UnixSite(runner, socket("e").path).start()
        await until(is_ready, within_s=30)
        asked = {name: asyncio.create_task(status(sockets[name])) for name in staying}
        await until(lambda: holding.held == len(staying))
        ending = {name: asyncio.create_task(status(sockets[name])) for name in TRIED.keys() - staying}
        await asyncio.wait_for(asyncio.gather(*ending.values()), 20)
        holding.go.set()
        came = {name: await one for name, one in (asked | ending).items()}
    finally:
        await envoy.stop()
        await server.stop(None)
        await runner.cleanup()
    assert came == {name: wanted for name, (_, _, wanted) in TRIED.items()}
    for name, (_, _, wanted) in TRIED.items():
        faults = faults_in_bootstrap(bootstrap(tried(name), clusters=clusters), HOLD, socket("p"))
        assert bool(faults) == (wanted != 200), name
