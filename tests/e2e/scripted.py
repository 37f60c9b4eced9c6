"""A real `serve` and a real Envoy before nodes whose every answer a test scripts."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from extproc.address import TcpAddress
from extproc.fleet import BOOTSTRAP, Envoy, Fleet, Serve
from extproc.traffic import Answer, Ask, ask, completion
from tests.e2e.reporter import Reporter
from tests.waiting import until

CONFIG: dict[str, Any] = {
    "nodes": {
        "fresh_s": 3000,
        "stale_s": 3000,
        "member_s": 3000,
        "report_interval_s": 0.05,
        "settle_s": 0,
        "slow_start_s": 0,
    },
    "ejection": {"first_s": 0.3},
}
PIECE = b'data: {"choices":[{"text":" a"}]}\n\n'
CLOSE = "connection: close\r\n"
"""Each connection has one request, or one would meet a connection being closed."""
STREAM_HEAD = (
    f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n{CLOSE}\r\n".encode()
)

_T = TypeVar("_T")
Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def answering(status: str, body: bytes = b"{}") -> Behaviour:
    """A whole answer."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{CLOSE}\r\n"

    async def behave(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode() + body)
        await writer.drain()

    return behave


async def hang(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """No answer; until the client is gone."""
    await reader.read()


async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """No answer, and the connection breaks."""
    writer.transport.abort()


@dataclass
class Streaming:
    """A stream that goes on piece by piece, each when the test says `go`, until it says `end` or `cut`."""

    steps: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """The client went away."""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            while True:
                step = asyncio.ensure_future(self.steps.get())
                await asyncio.wait((step, leaving), return_when=asyncio.FIRST_COMPLETED)
                if not step.done():
                    step.cancel()
                    self.gone.set()
                    return
                if (data := step.result()) is None:
                    writer.transport.abort()
                    return
                writer.write(chunk(data))
                await writer.drain()
                if not data:
                    return
        finally:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

    def go(self, data: bytes = PIECE) -> None:
        self.steps.put_nowait(data)

    def end(self) -> None:
        self.steps.put_nowait(b"")

    def cut(self) -> None:
        self.steps.put_nowait(None)


GOOD = answering("200 OK")
UNAVAILABLE = answering("503 Service Unavailable", b'{"error": {"message": "no"}}')


@dataclass
class Node:
    """One node, and what it does with requests."""

    name: str
    address: TcpAddress
    behaviour: Behaviour = GOOD
    requests: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            await reader.readexactly(int(length[1]) if length else 0)
            if not head.startswith(b"GET /health"):
                self.requests += 1
                await self.behaviour(reader, writer)
            else:
                await GOOD(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # Envoy has let go
        finally:
            writer.close()


@dataclass
class Scripted:
    """What runs. Each test has nodes and a model of its own."""

    client: aiohttp.ClientSession
    fleet: Fleet
    serve: Serve
    envoy: Envoy
    reporter: Reporter
    models: "itertools.count[int]" = field(default_factory=itertools.count)

    @asynccontextmanager
    async def nodes(self, *behaviours: Behaviour) -> AsyncIterator[tuple[str, list[Node]]]:
        """Nodes that serve one model, and no other does."""
        model = f"model-{next(self.models)}"
        async with AsyncExitStack() as stack:
            made = []
            for number, behaviour in enumerate(behaviours):
                node = Node(f"{model}-{'abcdef'[number]}", TcpAddress("127.0.0.1", 0), behaviour)
                server = await asyncio.start_server(node.serve, "127.0.0.1", 0)
                stack.callback(server.close)
                node.address = TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1])
                await self.reporter.report(node.name, node.address, model=model)
                stack.push_async_callback(self.reporter.leave, node.name)
                made.append(node)
            yield model, made

    async def ask(self, model: str, **options: Any) -> Answer:
        body = completion(model, "Once upon a time", output_tokens=5, stream=False)
        return await ask(self.client, self.envoy.url, Ask("completion", "/v1/completions", body), **options)

    async def ask_and_tell(self, model: str) -> Answer:
        """An answer whose end has been told; requests go one at a time."""
        return await self.told(self.ask(model))

    async def poll(self, path: str = "/v1/models") -> int:
        """The status of what is no inference request."""
        async with self.client.get(self.envoy.url + path) as response:
            await response.read()
            return response.status

    async def told(self, asking: Awaitable[_T]) -> _T:
        """What comes of one request, once its end has been told."""
        told = 'extproc_access_log_entries_total{verdict="read"}'
        before = await self.metric(told)
        came = await asking

        async def is_told() -> bool:
            return await self.metric(told) > before

        await until(is_told)
        return came

    async def stream(self, model: str) -> aiohttp.ClientResponse:
        """An answer that has begun."""
        body = completion(model, "Once upon a time", output_tokens=5, stream=True)
        return await self.client.post(f"{self.envoy.url}/v1/completions", json=body)

    async def page(self, node: Node) -> dict[str, Any]:
        nodes = (await self.fleet.json(f"http://{self.serve.admin}/nodes?node={node.name}"))["nodes"]
        found: dict[str, Any] = nodes[0]
        return found

    async def own(self, node: Node) -> tuple[int, int]:
        """Of our requests at the node: how many are open, and the prompt tokens that wait for a first token."""
        own = (await self.page(node))["own"]
        return own["sequences_open"], own["prefill_tokens"]

    async def is_out(self, node: Node) -> bool:
        page = await self.page(node)
        return page["out_s"] is not None or page["on_trial"]

    async def metric(self, name: str) -> float:
        async with self.client.get(f"http://{self.serve.admin}/metrics") as response:
            page = await response.text()
        (line,) = re.findall(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
        return float(line)

    async def envoy_stat(self, name: str) -> int:
        async with self.client.get(f"{self.envoy.admin_url}/stats?filter=^{re.escape(name)}$") as response:
            return int((await response.text()).split(": ")[1])

    async def freed(self, *nodes: Node) -> None:
        """Wait until nothing of ours is counted at these nodes."""

        async def free() -> bool:
            return all([await self.own(node) == (0, 0) for node in nodes])

        await until(free)


@asynccontextmanager
async def running(client: aiohttp.ClientSession, folder: Path, bootstrap: str | None = None) -> AsyncIterator[Scripted]:
    """A serve and an Envoy; as shipped, or with this bootstrap. Fails where either had a fault of its own."""
    path = folder / "bootstrap.yaml"
    path.write_text(bootstrap or BOOTSTRAP.read_text())
    async with Fleet(folder) as fleet:
        serve = await fleet.serve(CONFIG)
        # Envoy's own cluster serves nothing here: what is not sent where we say fails.
        envoy = await fleet.envoy(serve, [TcpAddress("127.0.0.1", 1)], bootstrap=path)
        async with Reporter(serve.agents) as reporter:
            made = Scripted(client, fleet, serve, envoy, reporter)

            async def chosen() -> bool:
                async with made.nodes(GOOD) as (model, _):
                    return (await made.ask(model)).status == 200

            await fleet.until("choices", chosen)
            yield made
            assert await made.envoy_stat("http.llm.ext_proc.streams_failed") == 0
            assert await made.envoy_stat("http.llm.ext_proc.message_timeouts") == 0
            assert "error of ours" not in serve.child.log.read_text()
