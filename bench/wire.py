"""What `serve` costs a request through the real Envoy, beside the same Envoy without ext_proc.

    .venv/bin/python -m bench.wire [--seconds 4] [--rounds 3] [--connections 32]

CPU is that of the ext_proc server's own process (user and system, from /proc). `echo` is a bare grpc.aio server that
looks at nothing: the floor of what Python can do here. The engines are an Envoy that answers at once. Rounds are
interleaved, so that a machine whose speed drifts treats all alike; the table has their medians.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import click
import grpc
import yaml
from rich.console import Console
from rich.table import Table

from bench.machine import machine
from extproc.address import TcpAddress
from extproc.children import Child, envoy_binary
from extproc.fleet import BOOTSTRAP, Fleet, Serve
from extproc.pb import nodes_pb2, nodes_pb2_grpc
from extproc.traffic import Ask, ask, completion

SIZES = {"1 KB": 1_000, "100 KB": 100_000}
NODES = 4
ENGINE = """
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: engine
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: engine
          route_config:
            virtual_hosts:
            - name: engine
              domains: ["*"]
              routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: "{}"}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One way of serving: an Envoy and, perhaps, the ext_proc server whose CPU is counted."""

    name: str
    url: str
    pid: int | None


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(url: str, body_bytes: int, connections: int, seconds: float) -> dict[str, Any]:
    """Run the load generator in a process of its own."""
    host, _, port = url.removeprefix("http://").partition(":")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.load", host, port, str(body_bytes), str(connections), str(seconds)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    found: dict[str, Any] = json.loads(output)
    if set(found["statuses"]) != {"200"}:
        msg = f"{url} answered {found['statuses']}"
        raise RuntimeError(msg)
    return found


async def reports(engine: TcpAddress) -> AsyncIterator[nodes_pb2.AgentMessage]:
    """What agents would say of idle nodes, for ever."""
    sequence = 0
    while True:
        sequence += 1
        for number in range(NODES):
            snapshot = nodes_pb2.NodeSnapshot(
                node_id=f"node-{number}",
                host=str(engine),
                boot_id="bench",
                sequence=sequence,
                state=nodes_pb2.NODE_STATE_READY,
                models=nodes_pb2.ModelList(models=[nodes_pb2.ServedModel(name="llama", context_length_tokens=131072)]),
                kv_cache_usage=0.1 * number,
                kv_block_size=16,
                kv_blocks_total=100_000,
                available_kv_blocks=100_000 - 10_000 * number,
                pending_prefill_count=0,
                active_decode_count=0,
                running_count=0,
                waiting_queue_size=0,
            )
            yield nodes_pb2.AgentMessage(snapshot=snapshot)
        await asyncio.sleep(1)


async def keep_reporting(serve: Serve, engine: TcpAddress) -> None:
    """Be the agents of all nodes."""
    async with grpc.aio.insecure_channel(str(serve.agents)) as channel:
        async for _ in nodes_pb2_grpc.NodesStub(channel).Report(reports(engine)):  # type: ignore[no-untyped-call]
            pass


async def start_engine(folder: Path) -> tuple[Child, TcpAddress]:
    """An Envoy that answers everything with `{}`."""
    config, admin = folder / "engine.yaml", folder / "engine-admin"
    config.write_text(ENGINE)
    child = await Child.start(
        "engine",
        [envoy_binary(), "-c", config, "--admin-address-path", admin, "--concurrency", "1", "--disable-hot-restart"],
        folder,
    )
    await child.logged("starting main dispatch loop", within_s=20)
    async with Fleet(folder) as fleet:
        url = f"http://{admin.read_text().strip()}/listeners?format=json"
        (bound,) = (one["local_address"]["socket_address"] for one in (await fleet.json(url))["listener_statuses"])
    return child, TcpAddress(bound["address"], bound["port_value"])


def without_ext_proc(folder: Path) -> Path:
    """The same bootstrap less the filter."""
    bootstrap = yaml.safe_load(BOOTSTRAP.read_text())
    connection_manager = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    filters = connection_manager["http_filters"]
    connection_manager["http_filters"] = [one for one in filters if one["name"] != "envoy.filters.http.ext_proc"]
    path = folder / "without.yaml"
    path.write_text(yaml.safe_dump(bootstrap))
    return path


async def choosing(fleet: Fleet, url: str) -> None:
    """Wait until an Envoy sends requests where `serve` says, which is not in its first two report intervals."""
    request = Ask("probe", "/v1/completions", completion("llama", "ping", output_tokens=1, stream=False))
    async with aiohttp.ClientSession() as session:

        async def chosen() -> bool:
            return (await ask(session, url, request)).chosen is not None

        await fleet.until("serve's choices", chosen)


async def measure(seconds: float, rounds: int, connections: int, console: Console) -> None:
    """Start everything, load it in turns, print the table."""
    with tempfile.TemporaryDirectory(prefix="extproc-bench-") as name:
        folder = Path(name)
        folders = {case: folder / case for case in ("engine", "serve", "echo", "without")}
        for one in folders.values():
            one.mkdir()
        engine_child, engine = await start_engine(folders["engine"])
        echo = await Child.start(
            "echo", ["env", f"DESTINATION={engine}", sys.executable, "-m", "bench.echo", "0"], folders["echo"]
        )
        try:
            echo_port = int((await echo.logged(r"listening on (\d+)", within_s=20))[1])
            async with (
                Fleet(folders["serve"]) as real,
                Fleet(folders["echo"]) as bare,
                Fleet(folders["without"]) as none,
            ):
                serve = await real.serve({})
                reporting = asyncio.create_task(keep_reporting(serve, engine))
                address = TcpAddress("127.0.0.1", echo_port)
                as_serve = Serve(echo, address, address, address)
                cases = [
                    Case(
                        "no ext_proc",
                        (await none.envoy(serve, [engine], bootstrap=without_ext_proc(folders["without"]))).url,
                        None,
                    ),
                    Case("echo", (await bare.envoy(as_serve, [engine])).url, echo.pid),
                    Case("serve", (await real.envoy(serve, [engine])).url, serve.child.pid),
                ]
                await choosing(real, cases[-1].url)
                await table_of(cases, seconds, rounds, connections, console)
                reporting.cancel()
        finally:
            await echo.stop()
            await engine_child.stop()


async def table_of(cases: list[Case], seconds: float, rounds: int, connections: int, console: Console) -> None:
    """Load the cases in turns and print what they did."""
    for case in cases:
        await load(case.url, 1000, connections, 1)
    table = Table(
        title=f"{connections} connections, {NODES} nodes, estimated tokens · {machine()}", title_justify="left"
    )
    for column in ("body", "case", "requests/s", "of no ext_proc", "p50 ms", "p99 ms", "CPU µs per request", "of echo"):
        table.add_column(column, justify="left" if column in ("body", "case") else "right")
    for label, body_bytes in SIZES.items():
        rates: dict[str, list[float]] = {case.name: [] for case in cases}
        costs: dict[str, list[float]] = {case.name: [] for case in cases}
        waits: dict[str, list[tuple[float, float]]] = {case.name: [] for case in cases}
        for round_number in range(rounds):
            for case in cases:
                console.print(f"[dim]{label}, round {round_number + 1} of {rounds}: {case.name}[/dim]")
                before_s = cpu_s(case.pid) if case.pid else 0.0
                found = await load(case.url, body_bytes, connections, seconds)
                rates[case.name].append(found["requests"] / found["seconds"])
                waits[case.name].append((found["p50_ms"], found["p99_ms"]))
                if case.pid:
                    costs[case.name].append((cpu_s(case.pid) - before_s) / found["requests"] * 1e6)
        plain = statistics.median(rates["no ext_proc"])
        bare = statistics.median(costs["echo"])
        for case in cases:
            rate = statistics.median(rates[case.name])
            cost = statistics.median(costs[case.name]) if case.pid else None
            table.add_row(
                label,
                case.name,
                f"{rate:.0f}",
                f"{rate / plain:.2f}",
                f"{statistics.median(p50 for p50, _ in waits[case.name]):.1f}",
                f"{statistics.median(p99 for _, p99 in waits[case.name]):.1f}",
                "" if cost is None else f"{cost:.0f}",
                "" if cost is None else f"{cost / bare:.2f}",
            )
    console.print(table)


@click.command(help=__doc__)
@click.option("--seconds", default=4.0, show_default=True, help="Length of each measurement.")
@click.option("--rounds", default=3, show_default=True, help="Measurements of each case.")
@click.option("--connections", default=32, show_default=True, help="Requests at a time.")
def main(seconds: float, rounds: int, connections: int) -> None:
    """Measure."""
    begun_s = time.monotonic()
    console = Console()
    asyncio.run(measure(seconds, rounds, connections, console))
    console.print(f"[dim]{time.monotonic() - begun_s:.0f} s in all[/dim]")


if __name__ == "__main__":
    main()
