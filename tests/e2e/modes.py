"""One real `serve`, and one real Envoy with a listener for each way in which it can be told to ask."""

import io
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from extproc.children import Child, envoy_binary
from extproc.fleet import Fleet, Serve
from extproc.pb import nodes_pb2 as pb
from tests.e2e.listeners import NODES, POLICIES, SHARED, Json, Listening, merged
from tests.e2e.modenodes import Got, Node
from tests.e2e.reporter import Reporter
from tests.e2e.scripted import CONFIG, Behaviour
from tests.waiting import until

CONTEXT_TOKENS = 100_000_000


@dataclass
class Came:
    """An answer."""

    status: int
    text: bytes
    told: dict[str, str]
    """Headers; of those that tell of the decision without their prefix."""

    @property
    def node(self) -> str | None:
        """Whom serve chose."""
        return self.told.get("node")

    @property
    def code(self) -> str:
        """Of an error."""
        found: str = json.loads(self.text)["error"]["code"]
        return found


def completion(model: str, size: int = 0, **fields: Any) -> bytes:
    """A body of about this size whose model stands first."""
    return json.dumps({"model": model, "prompt": "Once upon a time", **fields, "user": "x" * size}).encode()


async def cut(body: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    """A body that is sent in chunks."""
    for start in range(0, len(body), size):
        yield body[start : start + size]


@dataclass
class Running:
    """What runs."""

    client: aiohttp.ClientSession
    fleet: Fleet
    serve: Serve
    envoy: Child
    admin_url: str
    urls: dict[str, str]
    """By the listeners' names."""
    nodes: dict[str, Node]
    config: Json
    reporter: Reporter

    def got(self) -> list[Got]:
        """What has come to nodes since the last call."""
        found = [got for node in self.nodes.values() for got in node.got]
        for node in self.nodes.values():
            node.got.clear()
            node.bodies.clear()
        return found

    @asynccontextmanager
    async def behaving(self, name: str, behaviour: Behaviour) -> AsyncIterator[None]:
        """A node answers so for a while."""
        node = self.nodes[name]
        before, node.behaviour = node.behaviour, behaviour
        try:
            yield
        finally:
            node.behaviour = before

    async def report(self, *names: str, **fields: Any) -> None:
        """Nodes are ready."""
        for name in names:
            models = [pb.ServedModel(name=one, context_length_tokens=CONTEXT_TOKENS) for one in (name, SHARED)]
            told = {"models": pb.ModelList(models=models), **fields}
            await self.reporter.report(name, self.nodes[name].address, **told)

    async def start_serve_again(self) -> None:
        self.serve = await self.fleet.serve({**self.config, "listen": self.serve.listen})
        self.reporter = Reporter(self.serve.agents)
        await self.reporter.__aenter__()
        await self.report(*NODES)
        await self.choosing()

    async def choosing(self) -> None:
        """Until requests go where serve says; all listeners find it in the same cluster."""

        async def chosen() -> bool:
            return (await self.ask(next(iter(self.urls)), "a")).node == "a"

        await self.fleet.until("choices", chosen)
        self.got()

    async def ask(
        self,
        listener: str,
        model: str | None = None,
        body: bytes | AsyncIterator[bytes] | None = None,
        *,
        path: str = "/v1/completions",
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> Came:
        """Send one request; without a body that of a completion by this model, which a header names as well."""
        named = {} if model is None else {"x-model": model}
        if body is None and model is not None:
            body = completion(model)
        url = self.urls[listener] + path
        data = io.BytesIO(body) if isinstance(body, bytes) else body  # bytes of over 1 MiB would hold up the event loop
        async with self.client.request(method, url, data=data, headers={**named, **(headers or {})}) as answer:
            text = await answer.read()
            told = {key.lower().removeprefix("x-extproc-"): value for key, value in answer.headers.items()}
            return Came(answer.status, text, told)

    async def decisions(self, limit: int = 1) -> list[Json]:
        """The latest, newest first."""
        page = await self.fleet.json(f"http://{self.serve.admin}/decisions?limit={limit}")
        found: list[Json] = page["decisions"]
        return found

    async def page(self, name: str) -> Json:
        """Of a node."""
        found: Json = (await self.fleet.json(f"http://{self.serve.admin}/nodes?node={name}"))["nodes"][0]
        return found

    async def open_at(self) -> dict[str, int]:
        """How many of our requests are open at each node, where any are."""
        nodes = (await self.fleet.json(f"http://{self.serve.admin}/nodes"))["nodes"]
        return {one["node_id"]: count for one in nodes if (count := one["own"]["sequences_open"])}

    async def metrics(self) -> dict[str, float]:
        """Each metric as the sum over its labels."""
        async with self.client.get(f"http://{self.serve.admin}/metrics") as response:
            page = await response.text()
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(page):
            for one in family.samples:
                found[one.name] = found.get(one.name, 0) + one.value
        return found

    async def held(self) -> list[float]:
        """Streams open, body bytes held, requests that wait."""
        told = await self.metrics()
        return [told[f"extproc_{name}"] for name in ("streams_open", "body_bytes_held", "queue_requests")]

    async def at_rest(self) -> None:
        """Until serve holds nothing of any request."""

        async def nothing() -> bool:
            return not any(await self.held()) and not await self.open_at()

        await until(nothing)

    async def headers_seen(self) -> None:
        """Until serve has a stream open, and Envoy its reply to the headers."""

        async def replied() -> bool:
            return bool((await self.held())[0])

        await until(replied)
        await self.ask(next(iter(self.urls)), "a")  # over the same connection: that reply came before this one's
        self.got()

    async def stat(self, name: str) -> int:
        async with self.client.get(f"{self.admin_url}/stats?filter=^{name}$") as response:
            return int((await response.text()).split(": ")[1])


@asynccontextmanager
async def running(
    client: aiohttp.ClientSession,
    folder: Path,
    listenings: Callable[[Mapping[str, Node]], Mapping[str, Listening]],
    config: Mapping[str, Any] = CONFIG,
) -> AsyncIterator[Running]:
    """Start nodes, serve and Envoy; everything is ready."""
    async with AsyncExitStack() as stack:
        nodes = {name: Node(name) for name in (*NODES, "known")}
        for node in nodes.values():
            await node.listen()
            stack.push_async_callback(node.leave)
        fleet = await stack.enter_async_context(Fleet(folder))
        whole = {**config, "policies": {**POLICIES, **config.get("policies", {})}}
        serve = await fleet.serve(whole)
        envoy, admin_url, urls = await _start_envoy(fleet, merged(serve, listenings(nodes)))
        stack.push_async_callback(envoy.stop)
        async with Reporter(serve.agents) as reporter:
            found = Running(client, fleet, serve, envoy, admin_url, urls, nodes, whole, reporter)
            await found.report(*NODES)
            await found.choosing()
            yield found
            assert "error of ours" not in found.serve.child.log.read_text()
            if found.reporter is not reporter:
                await found.reporter.__aexit__()


async def _start_envoy(fleet: Fleet, mapping: Json) -> tuple[Child, str, dict[str, str]]:
    """Envoy, the address of its admin page, and those of its listeners."""
    config, admin_file = fleet.folder / "modes.yaml", fleet.folder / "modes-admin"
    config.write_text(json.dumps(mapping))
    command: list[str | Path] = [
        envoy_binary(),
        "--config-path",
        config,
        "--admin-address-path",
        admin_file,
        "--concurrency",
        "1",
    ]
    envoy = await Child.start("modes", [*command, "--disable-hot-restart"], fleet.folder)

    async def admin_page() -> str:
        envoy.check()
        return admin_file.read_text().strip() if admin_file.exists() else ""

    admin_url = "http://" + await fleet.until("Envoy's admin page", admin_page)
    await fleet.until("Envoy's readiness", lambda: fleet.answers(f"{admin_url}/ready"))
    statuses = (await fleet.json(f"{admin_url}/listeners?format=json"))["listener_statuses"]
    bound = {one["name"]: one["local_address"]["socket_address"] for one in statuses}
    return envoy, admin_url, {name: f"http://{at['address']}:{at['port_value']}" for name, at in bound.items()}
