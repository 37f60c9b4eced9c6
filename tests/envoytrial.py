"""A real Envoy between a client, an external processor and two engines, to try what a configuration does."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
from aiohttp import web
from envoy.config.core.v3.base_pb2 import HeaderValueOption
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import (
    ExternalProcessorServicer,
    add_ExternalProcessorServicer_to_server,
)

from extproc.address import TcpAddress, UnixAddress
from extproc.children import Child, envoy_binary
from tests.bootstraps import DESTINATION, listener
from tests.waiting import until

Json = Any


class Processor(ExternalProcessorServicer):  # type: ignore[misc]
    """Names a host; or refuses, or says nothing, as the request's `x-does` wants it."""

    def __init__(self) -> None:
        self.host = ""
        self.open = 0
        """Streams."""

    async def Process(  # noqa: N802
        self, requests: AsyncIterator[ext_proc.ProcessingRequest], _: object
    ) -> AsyncIterator[ext_proc.ProcessingResponse]:
        self.open += 1
        does = ""
        try:
            async for request in requests:
                kind = str(request.WhichOneof("request"))
                if kind == "request_headers":
                    shown = {one.key: one.raw_value.decode() for one in request.request_headers.headers.headers}
                    does = shown.get("x-does", "")
                yield self._reply(kind, does)
        finally:
            self.open -= 1

    def _reply(self, kind: str, does: str) -> ext_proc.ProcessingResponse:
        reply = ext_proc.ProcessingResponse()
        if does == "refuse":
            reply.immediate_response.status.code = 429
            return reply
        getattr(reply, kind).SetInParent()
        if kind == "request_headers" and does == "upgrade":
            reply.mode_override.request_body_mode = 0
        if kind in ("request_headers", "request_body") and does not in ("nothing", "upgrade"):
            common = getattr(reply, kind).response
            common.clear_route_cache = True
            how, _, name = (does or f"header:{DESTINATION}").partition(":")
            if how in ("header", "both"):
                overwrite = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
                option = common.header_mutation.set_headers.add(append_action=overwrite)
                option.header.key, option.header.raw_value = name, self.host.encode()
            if how in ("metadata", "both"):
                reply.dynamic_metadata.update({"envoy.lb": {name: self.host}})
        return reply


class Trial:
    """What a test has in its hands."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.names = names
        self.processor = Processor()
        self.slow = 0
        self.go = asyncio.Event()
        """Until then answers to `/slow` are half sent."""
        self.chosen: TcpAddress
        """An engine that no cluster knows."""
        self.envoy: Child
        self._server: grpc.aio.Server

    def socket(self, name: str) -> str:
        """Of a listener, or of the admin page. Paths of sockets are short."""
        return f"{self.folder}/{name if name == 'admin' else self.names.index(name)}"

    async def ask(
        self, name: str, page: str = "/", body: bytes | None = b"a body", headers: Mapping[str, str] | None = None
    ) -> tuple[int | str, str]:
        """The status of a listener's answer, or `cut`, and its body."""
        method = "GET" if body is None else "POST"
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(self.socket(name))) as session,
                session.request(
                    method,
                    f"http://envoy{page}",
                    data=None if body is None else io.BytesIO(body),
                    headers=headers,
                ) as answer,
            ):
                return answer.status, await answer.text()
        except aiohttp.ClientPayloadError:
            return "cut", ""

    async def start_processor(self) -> None:
        self._server = grpc.aio.server()
        add_ExternalProcessorServicer_to_server(self.processor, self._server)
        self._server.add_insecure_port(f"unix:{self.folder / 'p'}")
        await self._server.start()

    async def stop_processor(self) -> None:
        """As a crash would: its streams break."""
        await self._server.stop(None)


@asynccontextmanager
async def trial(
    folder: Path, listeners: Mapping[str, Json], clusters: Callable[[UnixAddress, UnixAddress, TcpAddress], list[Json]]
) -> AsyncIterator[Trial]:
    """An Envoy with these connection managers, or listeners, each at a socket of its own.

    `clusters` are made of the addresses of the processor, of an engine that Envoy knows, and of one to be chosen.
    """
    made = Trial(folder, list(listeners))
    runner = web.AppRunner(application := web.Application(client_max_size=2**26))

    async def served(request: web.Request) -> web.StreamResponse:
        await request.read()
        by_unix = request.transport is not None and isinstance(request.transport.get_extra_info("sockname"), str)
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"known" if by_unix else b"chosen")
        if request.path == "/slow":
            made.slow += 1
            await made.go.wait()
        await answer.write(b".")
        return answer

    application.router.add_route("*", "/{path:.*}", served)
    await runner.setup()
    await web.UnixSite(runner, str(folder / "e")).start()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.chosen = TcpAddress("127.0.0.1", runner.addresses[-1][1])
    made.processor.host = str(made.chosen)
    document = {
        "admin": {"address": {"pipe": {"path": made.socket("admin")}}},
        "static_resources": {
            "listeners": [
                (listener(one) if "http_filters" in one else one) | {"address": {"pipe": {"path": made.socket(name)}}}
                for name, one in listeners.items()
            ],
            "clusters": clusters(UnixAddress(f"{folder}/p"), UnixAddress(f"{folder}/e"), made.chosen),
        },
    }
    (folder / "envoy.json").write_text(json.dumps(document))
    command: list[str | Path] = [envoy_binary(), "--config-path", folder / "envoy.json"]
    made.envoy = await Child.start("envoy", [*command, "--concurrency", "1", "--disable-hot-restart"], folder)

    async def is_ready() -> bool:
        made.envoy.check()
        try:
            return (await made.ask("admin", "/ready", None))[0] == 200
        except aiohttp.ClientError:
            return False

    try:
        await made.start_processor()
        await until(is_ready, within_s=30)
        yield made
    finally:
        made.go.set()
        await made.envoy.stop()
        await made.stop_processor()
        await runner.cleanup()
