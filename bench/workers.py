"""What several workers of `serve` come to, against one: requests a second through the real Envoy, and processor time.

    .venv/bin/python -m bench.workers [--workers 1 --workers 2] [--seconds 10] [--connections 32] [--body-bytes 2000]

Envoy (one thread), the engine, which answers at once, and the clients are on the same machine and take their part:
where it has few cores, more workers only share what is left, and time for each request is what to look at.
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click
import grpc
import uvloop
from rich.console import Console
from rich.table import Table

from bench.machine import machine
from extproc.address import TcpAddress, of_worker
from extproc.children import Child
from extproc.fleet import Fleet, Serve
from extproc.pb import nodes_pb2, nodes_pb2_grpc
from extproc.render import bootstrap
from extproc.render.description import Description, parse

CONFIG: dict[str, Any] = {
    "nodes": {"fresh_s": 3000, "stale_s": 3000, "member_s": 3000, "report_interval_s": 0.2, "settle_s": 0},
    "policies": {"default": {"limits": {"requests_waiting_max": 1_000_000}}},
}
NODES = 4
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
WARM_S = 2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Came:
    """What one number of workers came to."""

    workers: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    statuses: dict[str, int]
    ms_by_part: dict[str, float]
    """Processor time for each request, in milliseconds."""
    resident_mb: dict[str, float]


class _Engine(asyncio.Protocol):
    """Answers each request at once. Its client is Envoy: heads and bodies come whole, one after the other."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._received = bytearray()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end]).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
            if len(self._received) < end + 4 + length:
                return
            del self._received[: end + 4 + length]
            self._transport.write(ANSWER)


async def _engine() -> None:
    server = await asyncio.get_running_loop().create_server(_Engine, "0.0.0.0", 0)
    print(f"listening at {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def _reports(engine: TcpAddress) -> AsyncIterator[nodes_pb2.AgentMessage]:
    for number in range(NODES):
        snapshot = nodes_pb2.NodeSnapshot(
            node_id=f"node-{number}",
            host=f"127.0.0.{number + 1}:{engine.port}",
            boot_id="bench",
            sequence=1,
            state=nodes_pb2.NODE_STATE_READY,
            models=nodes_pb2.ModelList(models=[nodes_pb2.ServedModel(name="llama", context_length_tokens=131072)]),
            kv_cache_usage=0.0,
            waiting_queue_size=0,
        )
        yield nodes_pb2.AgentMessage(snapshot=snapshot)
    await asyncio.Event().wait()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _resident_mb(pid: int) -> float:
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


def _parts(serve: Serve, envoy: Child) -> dict[str, list[int]]:
    workers = _children(serve.child.pid)
    return {
        "parent": [serve.child.pid] if workers else [],
        "workers": workers or [serve.child.pid],
        "Envoy": [envoy.pid],
    }


async def measure(workers: int, seconds: int, connections: int, body_bytes: int) -> Came:
    """One number of workers, with an Envoy and an engine of its own."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="extproc-bench-")))
        fleet = await stack.enter_async_context(Fleet(folder))
        engine_child = await Child.start("engine", [sys.executable, "-m", "bench.workers", "--engine"], folder)
        stack.push_async_callback(engine_child.stop)
        engine = TcpAddress("127.0.0.1", int((await engine_child.logged(r"listening at (\d+)", 30))[1]))
        first = _free_for(workers)
        serve = await fleet.serve(CONFIG | {"workers": workers, "listen": {"extproc": str(first)}})
        described = parse({"processor": [str(first)], "workers": workers, "nodes": [str(engine)], "health_path": None})
        assert isinstance(described, Description), described
        text = bootstrap.render(described)
        assert isinstance(text, str), text
        (path := folder / "rendered.yaml").write_text(text)
        envoy = await fleet.envoy(None, [], bootstrap=path)
        agents = await stack.enter_async_context(grpc.aio.insecure_channel(str(serve.agents)))
        nodes_pb2_grpc.NodesStub(agents).Report(_reports(engine))  # type: ignore[no-untyped-call]

        async def ready() -> bool:
            return await fleet.nodes_ready(serve, {f"node-{number}" for number in range(NODES)})

        await fleet.until("the nodes", ready)
        await _load(envoy.url, body_bytes, connections, WARM_S)
        parts = _parts(serve, envoy.child)
        before = {name: sum(map(_cpu_s, pids)) for name, pids in parts.items()}
        told = await _load(envoy.url, body_bytes, connections, seconds)
        spent = {name: sum(map(_cpu_s, pids)) - before[name] for name, pids in parts.items()}
        return Came(
            workers,
            told["requests"] / told["seconds"],
            told["p50_ms"],
            told["p99_ms"],
            told["statuses"],
            {name: seconds_spent * 1000 / told["requests"] for name, seconds_spent in spent.items()},
            {name: sum(map(_resident_mb, pids)) for name, pids in parts.items()},
        )


def _free_for(workers: int) -> TcpAddress:
    """An address whose port, and those of all workers, nobody has."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            first = TcpAddress("127.0.0.1", one.getsockname()[1])
        try:
            for number in range(workers):
                at = of_worker(first, number)
                assert isinstance(at, TcpAddress)
                socket.create_server((at.host, at.port)).close()
        except (OSError, OverflowError):
            continue
        return first


async def _load(url: str, body_bytes: int, connections: int, seconds: int) -> dict[str, Any]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    command = (sys.executable, "-m", "bench.load", host, port, str(body_bytes), str(connections), str(seconds))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    found: dict[str, Any] = json.loads(out)
    return found


@click.command()
@click.option("--workers", multiple=True, type=click.IntRange(1, 16), default=(1, 2), show_default=True)
@click.option("--seconds", default=10, show_default=True)
@click.option("--connections", default=32, show_default=True)
@click.option("--body-bytes", default=2000, show_default=True)
@click.option("--engine", is_flag=True, hidden=True)
def main(workers: tuple[int, ...], seconds: int, connections: int, body_bytes: int, *, engine: bool) -> None:
    """Measure, and print a table."""
    if engine:
        uvloop.run(_engine())
        return
    console = Console()
    console.print(machine())
    table = Table(
        "workers", "requests/s", "p50 ms", "p99 ms", "serve ms/request", "parent", "Envoy", "serve MB", "parent MB"
    )
    for count in workers:
        came = asyncio.run(measure(count, seconds, connections, body_bytes))
        if set(came.statuses) != {"200"}:
            console.print(f"{count} workers: {came.statuses}")
        ms, mb = came.ms_by_part, came.resident_mb
        table.add_row(
            str(count),
            f"{came.requests_per_s:.0f}",
            f"{came.p50_ms:.1f}",
            f"{came.p99_ms:.1f}",
            *(f"{ms[name]:.2f}" for name in ("workers", "parent", "Envoy")),
            *(f"{mb[name]:.0f}" for name in ("workers", "parent")),
        )
    console.print(table)


if __name__ == "__main__":
    main()
