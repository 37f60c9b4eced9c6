"""Who listens while the system runs: a router that keeps every snapshot, and the way on which the agent reads pages."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

import aiohttp
import grpc
from aiohttp import web

from bench.realvllm.recording import ROUNDED, Recording, series_of
from extproc.config import Config
from extproc.core.snapshot import ServedModel, Snapshot
from extproc.nodes import wire
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, KvBlocks, RouterMessage
from extproc.pb.nodes_pb2_grpc import NodesServicer, add_NodesServicer_to_server

_ITS_OWN = ("node_id", "host", "sequence", "round_trip_s", "weight", "gpu_utilization")
"""Fields that say nothing of vLLM."""


class KeepingRouter(NodesServicer):
    """Takes what agents push, checked as `serve` does. `clock` gives the seconds of the recording."""

    def __init__(self, recording: Recording, clock: Callable[[], float]) -> None:
        self._recording = recording
        self._clock = clock
        self._models_of = ""
        self._models: tuple[ServedModel, ...] | None = None
        self.refused: list[str] = []
        """Why snapshots were malformed."""
        self.held: set[int] = set()
        """Numbers of the KV blocks that are there; none while that is not known."""

    async def Report(  # noqa: N802 - gRPC's name
        self, messages: AsyncIterator[AgentMessage], _: grpc.aio.ServicerContext[AgentMessage, RouterMessage]
    ) -> AsyncIterator[RouterMessage]:
        """One agent's stream."""
        async for message in messages:
            if message.HasField("kv_blocks"):
                self._keep_blocks(message.kv_blocks)
                continue  # only refusals are acknowledged
            if message.HasField("snapshot"):
                self._keep(message)
            about = Acknowledgement(node_id=message.snapshot.node_id, sequence=message.snapshot.sequence)
            about.verdict = Acknowledgement.VERDICT_APPLIED
            yield RouterMessage(acknowledgement=about)

    def _keep_blocks(self, told: KvBlocks) -> None:
        if told.all:
            self.held = set()
        self.held.difference_update(told.removed)
        self.held.update(told.stored)

    def _keep(self, message: AgentMessage) -> None:
        snapshot = wire.snapshot_of(message.snapshot, Config().hosts_allowed)
        if isinstance(snapshot, str):
            self.refused.append(snapshot)
            return
        if snapshot.models is None and snapshot.boot_id == self._models_of:  # told before: they are the same
            snapshot = replace(snapshot, models=self._models)
        self._models_of, self._models = snapshot.boot_id, snapshot.models
        self._recording.snapshots.append((self._clock(), fields_of(snapshot)))


def fields_of(snapshot: Snapshot) -> dict[str, Any]:
    """What a snapshot says of vLLM, ready for JSON."""
    fields = {name: value for name, value in asdict(snapshot).items() if value is not None and name not in _ITS_OWN}
    models = [[one.name, one.context_length_tokens] for one in snapshot.models or ()]
    absent = [list(pair) for pair in snapshot.absent if pair[0] not in _ITS_OWN]
    fields |= {name: round(value, ROUNDED) for name, value in fields.items() if isinstance(value, float)}
    return fields | {"state": snapshot.state.value, "models": models, "absent": absent}


@asynccontextmanager
async def keeping_router(recording: Recording, clock: Callable[[], float]) -> AsyncIterator[tuple[KeepingRouter, str]]:
    """A running one, and its address."""
    router, server = KeepingRouter(recording, clock), grpc.aio.server()
    add_NodesServicer_to_server(router, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield router, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def passed_on(metrics_url: str, recording: Recording, clock: Callable[[], float]) -> AsyncIterator[str]:
    """A URL that gives the page behind `metrics_url`, and keeps each page as it was given."""

    async def page(request: web.Request) -> web.Response:
        try:
            async with session.get(metrics_url) as response:
                text = await response.text()
        except aiohttp.ClientError:  # nobody there, and so nobody here
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)
        if response.status == 200:
            recording.pages.append((clock(), series_of(text)))
        return web.Response(status=response.status, text=text)

    app = web.Application()
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        async with aiohttp.ClientSession() as session:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()
