"""What held streams cost: many requests in flight at a time, none refused, and what each makes `serve` hold.

    .venv/bin/python -m bench.streams [--streams 2000] [--seconds 30] [--body-bytes 1000]

A request holds one ext_proc stream until its answer is over. Three cases, each with a `serve` of its own: streams of a
gRPC client that are decided, ones that wait in the queue for room, and requests through the real Envoy to an engine
that never ends its answers. Memory is the resident set of `serve`, after a tenth as many streams have warmed it up.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import grpc
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub
from rich.console import Console
from rich.table import Table

from bench.machine import machine
from extproc.address import TcpAddress
from extproc.fleet import Fleet, Serve
from extproc.pb import nodes_pb2, nodes_pb2_grpc
from extproc.traffic import chat

CHANNELS = 4
"""Connections of our own client, as of an Envoy with so many threads."""
AT_ONCE = 100
"""Streams that are being opened."""
ROOMY, FULL = "llama", "full"
"""Models: of a node with room for all, and of one that has none."""
QUEUE_MS = 600_000
CONFIG: dict[str, Any] = {
    "nodes": {"fresh_s": 3000, "stale_s": 3000, "member_s": 3000, "report_interval_s": 0.2, "settle_s": 0},
    "policies": {
        "default": {"limits": {"requests_waiting_max": 1_000_000}},
        "patient": {"priority": "batch", "limits": {"requests_waiting_max": 100}},
    },
    "classes": [
        {"name": "standard"},
        {"name": "batch", "queue_ms_max": QUEUE_MS, "queue_requests_max": 100_000, "queue_bytes_max": "512MiB"},
    ],
}
HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
Call = grpc.aio.StreamStreamCall[ProcessingRequest, ProcessingResponse]


@dataclass(frozen=True, slots=True)
class Held:
    """What one case came to."""

    case: str
    refused: int
    lost: int
    """Ended before we let go."""
    opening_s: float
    before_bytes: int
    during_bytes: int
    after_bytes: int


def resident_bytes(pid: int) -> int:
    """The memory of a process that is in RAM."""
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def body_of(model: str, body_bytes: int) -> bytes:
    """A chat of so many bytes, or a few more."""
    text = "x" * max(1, body_bytes - 120)
    return json.dumps(chat(model, text, output_tokens=100, stream=True)).encode()


class Direct:
    """Streams as Envoy holds them in BUFFERED mode."""

    def __init__(self, channels: list[grpc.aio.Channel], body: bytes, *, policy: str, waits: bool) -> None:
        self._stubs = [ExternalProcessorStub(one) for one in channels]
        self._opened = 0
        self._policy = policy
        self._waits = waits
        fields = {":method": "POST", ":path": "/v1/chat/completions", "content-length": str(len(body))}
        headers = [HeaderValue(key=key, raw_value=value.encode()) for key, value in fields.items()]
        self._messages = (
            ProcessingRequest(
                request_headers=HttpHeaders(headers=HeaderMap(headers=headers)),
                protocol_config=ProtocolConfiguration(request_body_mode=ProcessingMode.BUFFERED),
            ),
            ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=True)),
        )

    async def open(self) -> Call | None:
        """A stream that came as far as it shall; `None`: it was refused."""
        self._opened += 1
        stub = self._stubs[self._opened % len(self._stubs)]
        call: Call = stub.Process(metadata=(("x-extproc-policy", self._policy),))
        reply = None
        for message in self._messages:
            await call.write(message)
            reply = await call.read()
        assert isinstance(reply, ProcessingResponse), "the stream ended"
        if self._waits:
            come = reply.HasField("override_message_timeout")
        else:
            come = bool(reply.request_body.response.header_mutation.set_headers)
        return call if come else None

    async def close(self, calls: list[Call]) -> int:
        """Let go; how many had ended before."""
        lost = sum(call.done() for call in calls)
        for call in calls:
            call.cancel()
        return lost


class ThroughEnvoy:
    """Requests of HTTP clients, whose answers have begun and do not end."""

    def __init__(self, url: str, body: bytes) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._address = (host, int(port))
        fields = f"host: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self._request = f"POST /v1/chat/completions HTTP/1.1\r\n{fields}\r\n\r\n".encode() + body

    async def open(self) -> "tuple[asyncio.StreamReader, asyncio.StreamWriter] | None":
        """A connection whose answer has begun; `None`: refused."""
        reader, writer = await asyncio.open_connection(*self._address)
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split()[1] == b"200" and b"x-extproc-node: " in head:
            return reader, writer
        writer.close()
        return None

    async def close(self, opened: "list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]") -> int:
        """Let go; how many had ended before."""
        lost = sum(reader.at_eof() for reader, _ in opened)
        for _, writer in opened:
            writer.transport.abort()
        return lost


async def hold(case: str, way: Direct | ThroughEnvoy, fleet: Fleet, serve: Serve, streams: int, seconds: float) -> Held:
    """Open them, hold them, let them go."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def opened(count: int) -> tuple[int, list[Any]]:
        async def one() -> Any:
            async with gate:
                return await way.open()

        made = await asyncio.gather(*(one() for _ in range(count)))
        return sum(one is None for one in made), [one for one in made if one is not None]

    async def all_gone() -> bool:
        nodes = await fleet.json(f"http://{serve.admin}/nodes")
        return not any(one["own"]["sequences_open"] for one in nodes["nodes"])

    async def taken() -> bool:
        refused, held = await opened(1)  # at first serve chooses nobody
        await way.close(held)
        return not refused

    await fleet.until("choices", taken)
    await way.close((await opened(streams // 10))[1])
    await fleet.until("the end of the first", all_gone)
    before_bytes, began_s = resident_bytes(serve.child.pid), time.monotonic()
    refused, held = await opened(streams)
    opening_s = time.monotonic() - began_s
    await asyncio.sleep(seconds)
    during_bytes = resident_bytes(serve.child.pid)
    lost = await way.close(held)
    await fleet.until("the end of all", all_gone)
    await asyncio.sleep(1)
    return Held(case, refused, lost, opening_s, before_bytes, during_bytes, resident_bytes(serve.child.pid))


async def _reports(engine: TcpAddress) -> AsyncIterator[nodes_pb2.AgentMessage]:
    for model, waiting in ((ROOMY, 0), (FULL, 100)):
        snapshot = nodes_pb2.NodeSnapshot(
            node_id=f"node-{model}",
            host=str(engine),
            boot_id="bench",
            sequence=1,
            state=nodes_pb2.NODE_STATE_READY,
            models=nodes_pb2.ModelList(models=[nodes_pb2.ServedModel(name=model, context_length_tokens=131072)]),
            kv_cache_usage=0.0,
            kv_block_size=16,
            kv_blocks_total=100_000_000,
            available_kv_blocks=100_000_000,
            waiting_queue_size=waiting,
        )
        yield nodes_pb2.AgentMessage(snapshot=snapshot)
    await asyncio.Event().wait()


@asynccontextmanager
async def _engine() -> AsyncIterator[TcpAddress]:
    """Begins every stream and ends none; other answers it gives at once."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"\r\ncontent-length: " in head:
                body = await reader.readexactly(int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0]))
                if b'"stream": true' in body:
                    writer.write(HEAD)
                    await reader.read()
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # Envoy has let go
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    try:
        yield TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def measure(streams: int, seconds: float, body_bytes: int, console: Console) -> list[Held]:
    """All cases."""
    found = []
    for case in ("decided", "waiting in the queue", "decided, through Envoy"):
        console.print(f"[dim]{case}[/dim]")
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="extproc-bench-")))
            fleet = await stack.enter_async_context(Fleet(folder))
            engine = await stack.enter_async_context(_engine())
            serve = await fleet.serve(CONFIG)
            agents = await stack.enter_async_context(grpc.aio.insecure_channel(str(serve.agents)))
            nodes_pb2_grpc.NodesStub(agents).Report(_reports(engine))  # type: ignore[no-untyped-call]

            async def ready(fleet: Fleet = fleet, serve: Serve = serve) -> bool:
                return await fleet.nodes_ready(serve, {f"node-{ROOMY}", f"node-{FULL}"})

            await fleet.until("the nodes", ready)
            way: Direct | ThroughEnvoy
            if "Envoy" in case:
                envoy = await fleet.envoy(serve, [engine])
                way = ThroughEnvoy(envoy.url, body_of(ROOMY, body_bytes))
            else:
                options = [("grpc.use_local_subchannel_pool", 1)]
                channels = [grpc.aio.insecure_channel(str(serve.extproc), options) for _ in range(CHANNELS)]
                for channel in channels:
                    await stack.enter_async_context(channel)
                waits = case.startswith("waiting")
                model, policy = (FULL, "patient") if waits else (ROOMY, "default")
                way = Direct(channels, body_of(model, body_bytes), policy=policy, waits=waits)
            found.append(await hold(case, way, fleet, serve, streams, seconds))
    return found


def table_of(found: list[Held], streams: int, seconds: float, body_bytes: int) -> Table:
    """What people read."""
    title = f"{streams} streams held for {seconds:g} s, bodies of {body_bytes} bytes · {machine()}"
    table = Table(title=title, title_justify="left")
    for column in ("case", "refused", "lost", "opening s", "RSS MiB before", "held", "after", "KiB per stream"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for one in found:
        grown_bytes = one.during_bytes - one.before_bytes
        sizes = (one.before_bytes, one.during_bytes, one.after_bytes)
        table.add_row(
            *(one.case, str(one.refused), str(one.lost), f"{one.opening_s:.1f}"),
            *(f"{size / 2**20:.1f}" for size in sizes),
            f"{grown_bytes / streams / 1024:.1f}",
        )
    return table


@click.command(help=__doc__)
@click.option("--streams", default=2000, show_default=True, help="Requests in flight.")
@click.option("--seconds", default=30.0, show_default=True, help="How long they are held.")
@click.option("--body-bytes", default=1000, show_default=True, help="Size of each body.")
def main(streams: int, seconds: float, body_bytes: int) -> None:
    """Measure; exit status 1 where a stream was refused or lost."""
    console = Console()
    found = asyncio.run(measure(streams, seconds, body_bytes, console))
    console.print(table_of(found, streams, seconds, body_bytes))
    raise SystemExit(any(one.refused or one.lost for one in found))


if __name__ == "__main__":
    main()
