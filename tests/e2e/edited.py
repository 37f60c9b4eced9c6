"""A real `serve` behind a real Envoy whose bootstrap a test has edited."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from extproc.address import TcpAddress
from extproc.fleet import BOOTSTRAP, Envoy, Fleet, Serve
from extproc.traffic import Answer, Ask, ask, completion
from tests.e2e.reporter import Reporter
from tests.e2e.scripted import CONFIG
from tests.rendered import mapping_of, rendered
from tests.waiting import until

Json = dict[str, Any]
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
EXT_PROC = "envoy.filters.http.ext_proc"
ENDPOINT = "x-gateway-destination-endpoint"
HOSTS_MAX = 3
"""In the list, which is the policy's default."""


class Edited:
    """A bootstrap as a mapping, and its parts by their names; `None`: the shipped one."""

    def __init__(self, text: str | None = None) -> None:
        # Anchors would make one object of what is written twice, and an edit of one place would change the other.
        self.mapping: Json = _unshared(mapping_of(BOOTSTRAP.read_text() if text is None else text))
        self.clusters: list[Json] = self.mapping["static_resources"]["clusters"]
        (listener,) = self.mapping["static_resources"]["listeners"]
        self.manager: Json = listener["filter_chains"][0]["filters"][0]["typed_config"]
        self.host: Json = self.manager["route_config"]["virtual_hosts"][0]
        (self.ext_proc,) = (one["typed_config"] for one in self.manager["http_filters"] if one["name"] == EXT_PROC)

    def cluster(self, name: str) -> Json:
        (found,) = (one for one in self.clusters if one["name"] == name)
        return found

    def routes_to(self, cluster: str) -> list[Json]:
        """The actions of all routes to a cluster."""
        actions = (one["route"] for one in self.host["routes"] if "route" in one)
        found = [one for one in actions if one.get("cluster") == cluster]
        assert found, f"no route to {cluster}"
        return found

    def upstream_options(self, cluster: str) -> Json:
        found: Json = self.cluster(cluster)["typed_extension_protocol_options"][HTTP_OPTIONS]
        return found


@dataclass
class Gateway:
    """What runs; nodes are what the test reports."""

    client: aiohttp.ClientSession
    fleet: Fleet
    serve: Serve
    envoy: Envoy
    reporter: Reporter

    async def ask(self, model: str) -> Answer:
        body = completion(model, "Once upon a time", output_tokens=5, stream=False)
        return await ask(self.client, self.envoy.url, Ask("completion", "/v1/completions", body))

    async def ready(self, *names: str) -> None:
        """Until serve takes these nodes for ready, and Envoy has found serve."""

        async def nodes() -> bool:
            return await self.fleet.nodes_ready(self.serve, names)

        async def found() -> bool:
            return await self.envoy_stat("cluster.extproc.membership_healthy") == 1

        await self.fleet.until("the nodes", nodes)
        await self.fleet.until("Envoy's sight of serve", found)

    async def envoy_stat(self, name: str) -> int:
        async with self.client.get(f"{self.envoy.admin_url}/stats?filter=^{name}$") as response:
            return int((await response.text()).split(": ")[1])

    async def log_of(self, path: str, count: int = 1) -> Json:
        """The last of so many lines of Envoy's access log for a path."""

        def lines() -> list[str]:
            return [one for one in self.envoy.child.log.read_text().splitlines() if f'"path":"{path}"' in one]

        await until(lambda: len(lines()) >= count)
        found: Json = yaml.safe_load(lines()[count - 1])
        return found

    async def open_requests(self) -> dict[str, int]:
        """By the nodes that have any."""
        nodes = (await self.fleet.json(f"http://{self.serve.admin}/nodes"))["nodes"]
        counted = {one["node_id"]: one["own"]["sequences_open"] for one in nodes}
        return {name: count for name, count in counted.items() if count}

    async def open_are(self, **expected: int) -> None:
        """Until these nodes have so many requests open, and no others any."""

        async def are() -> bool:
            return await self.open_requests() == expected

        await until(are)

    async def all_closed(self) -> None:
        await self.open_are()


@asynccontextmanager
async def gateway(
    client: aiohttp.ClientSession,
    folder: Path,
    edited: Edited,
    known: Sequence[TcpAddress],
    config: Mapping[str, Any] = CONFIG,
) -> AsyncIterator[Gateway]:
    """Start both."""
    bootstrap = folder / "edited.yaml"
    bootstrap.write_text(json.dumps(edited.mapping))
    async with Fleet(folder) as fleet:
        serve = await fleet.serve(config)
        envoy = await fleet.envoy(serve, known, bootstrap=bootstrap)
        async with Reporter(serve.agents) as reporter:
            yield Gateway(client, fleet, serve, envoy, reporter)


@asynccontextmanager
async def engine(
    name: str, *, status: int = 200, tls: ssl.SSLContext | None = None, ends: asyncio.Event | None = None
) -> AsyncIterator[tuple[TcpAddress, list[Json]]]:
    """An engine that answers every POST, and what it got: the body's size, the headers, and the peer's certificate.

    With `ends` an answer's head goes out at once, and the rest when that is set.
    """
    got: list[Json] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        peer = request.transport.get_extra_info("peercert") if request.transport else None
        got.append({"bytes": len(await request.read()), "headers": dict(request.headers), "peer": peer})
        response = web.StreamResponse(status=status, headers={"x-engine": name})
        await response.prepare(request)
        if ends is not None:
            await ends.wait()
        await response.write(b"{}")
        return response

    async def healthy(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=2**25)
    app.add_routes([web.get("/health", healthy), web.post("/{path:.*}", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield TcpAddress("127.0.0.1", runner.addresses[0][1]), got
    finally:
        await runner.cleanup()


@asynccontextmanager
async def refusing() -> AsyncIterator[TcpAddress]:
    """An address where nobody listens, and nobody else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield TcpAddress("127.0.0.1", taken.getsockname()[1])


@asynccontextmanager
async def silent() -> AsyncIterator[TcpAddress]:
    """An address that never answers a connection: its queue of connections is full, as a machine that is off."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        try:
            for one in fillers:
                one.setblocking(False)
                one.connect_ex(listening.getsockname())
            yield TcpAddress("127.0.0.1", listening.getsockname()[1])
        finally:
            for one in fillers:
                one.close()


@asynccontextmanager
async def resetting() -> AsyncIterator[TcpAddress]:
    """An engine that reads a request's head and breaks off."""

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    server = await asyncio.start_server(break_off, "127.0.0.1", 0)
    try:
        yield TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()


def _unshared(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unshared(one) for key, one in value.items()}
    return [_unshared(one) for one in value] if isinstance(value, list) else value


def by_override(**changes: Any) -> Edited:
    """Rendered, with hosts named by the endpoint picker's protocol. No health checks: one that a test breaks stays."""
    policy = {"name": "hosts", "destination": "override-host"}
    fields: Json = {"destination": "override-host", "policy": policy, "destinations_max": HOSTS_MAX}
    return Edited(rendered(**fields, routes=[{"prefix": "/v1/"}], health_path=None, **changes))
