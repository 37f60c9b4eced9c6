"""What an agent costs: its own processor time for each engine, and the engine's for each look.

    .venv/bin/python -m bench.agent [--engines 64] [--seconds 10] [--interval 1s]

Engines with vLLM's pages (in one process) and a real llama.cpp, watched by a real agent that reports to a real
`serve`; each is a process of its own. Processor time is the system's, of all threads. The engine's cost of a look is
measured with the agent's shortest interval, less what the engine takes when nobody looks.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import click
import yaml
from rich.console import Console
from rich.table import Table

from bench.machine import machine
from extproc.children import Child, ourselves
from extproc.fleet import Fleet, Serve
from tests.llamacpp import llamacpp_server

OFTEN = "20ms"
"""The shortest interval that an agent takes."""
SETTLE_S = 5.0
"""After the start: connections, models and rates are known then."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One case."""

    engines: str
    count: int
    looks: float
    """At one engine, in a second."""
    agent_share: float
    """Of one core, for all engines."""
    engine_s: float
    """Processor time of the engine for one look."""


def processor_s(pid: int) -> float:
    """What a process and its threads have computed so far."""
    total_ns = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / 1e9


@asynccontextmanager
async def agent(folder: Path, serve: Serve, urls: list[str], **settings: Any) -> AsyncIterator[int]:
    """A running agent's process id."""
    file = folder / "agent.yaml"
    engines = [{"node_id": f"gpu-{number}", "engine": url} for number, url in enumerate(urls)]
    file.write_text(yaml.safe_dump({"routers": [str(serve.agents)], "engines": engines, **settings}))
    child = await Child.start("agent", ourselves("agent", "--config", str(file)), folder)
    try:
        await child.logged("router reached", 20)
        await asyncio.sleep(SETTLE_S)
        yield child.pid
    finally:
        await child.stop()


@asynccontextmanager
async def pages(folder: Path, engines: int, load: str) -> AsyncIterator[tuple[int, list[str]]]:
    """Engines' pages: the process id, and the URLs."""
    command = [sys.executable, "-m", "bench.enginepages", str(engines), load]
    child = await Child.start("pages", command, folder)
    try:
        ports = json.loads((await child.logged(r"^\[.*\]$", 20))[0])
        yield child.pid, [f"http://127.0.0.1:{port}" for port in ports]
    finally:
        await child.kill()


async def looks_at(url: str, session: aiohttp.ClientSession) -> int:
    """How often the metrics of all engines were asked for."""
    async with session.get(f"{url}/asked") as answer:
        return int((await answer.json()).get("/metrics", 0))


async def measured(agent_pid: int, engine_pid: int, seconds: float) -> tuple[float, float]:
    """Shares of a core: the agent's, the engine's."""
    before = processor_s(agent_pid), processor_s(engine_pid)
    await asyncio.sleep(seconds)
    return (processor_s(agent_pid) - before[0]) / seconds, (processor_s(engine_pid) - before[1]) / seconds


async def of_pages(folder: Path, serve: Serve, count: int, load: str, interval: str, seconds: float) -> Cost:
    """The cost at engines of which only the pages are real."""
    async with AsyncExitStack() as held:
        server_pid, urls = await held.enter_async_context(pages(folder, count, load))
        session = await held.enter_async_context(aiohttp.ClientSession())
        agent_pid = await held.enter_async_context(agent(folder, serve, urls, interval_s=interval))
        before = await looks_at(urls[0], session)
        share, server_share = await measured(agent_pid, server_pid, seconds)
        looks = (await looks_at(urls[0], session) - before) / seconds
    return Cost(f"vLLM's pages, {load}", count, looks / count, share, server_share / looks)


async def of_llamacpp(folder: Path, serve: Serve, seconds: float) -> Cost:
    """The cost at an idle llama.cpp, looked at as often as possible."""
    async with AsyncExitStack() as held:
        server = await held.enter_async_context(llamacpp_server(folder))
        before_s = processor_s(server.process.pid)
        await asyncio.sleep(seconds)
        alone = (processor_s(server.process.pid) - before_s) / seconds
        often = {"interval_s": OFTEN, "idle_interval_s": OFTEN}
        agent_pid = await held.enter_async_context(agent(folder, serve, [server.url], **often))
        share, server_share = await measured(agent_pid, server.process.pid, seconds)
    looks = 1 / 0.02
    return Cost("llama.cpp, idle", 1, looks, share, (server_share - alone) / looks)


def table(costs: list[Cost]) -> Table:
    """The costs, for people."""
    drawn = Table(title=f"An agent's cost\n{machine()}")
    columns: list[tuple[str, Callable[[Cost], str]]] = [
        ("engines", lambda cost: cost.engines),
        ("number", lambda cost: str(cost.count)),
        ("looks/s at each", lambda cost: f"{cost.looks:.2f}"),
        ("agent: % of a core", lambda cost: f"{cost.agent_share * 100:.2f}"),
        ("for each engine", lambda cost: f"{cost.agent_share * 100 / cost.count:.3f}"),
        ("agent: ms a look", lambda cost: f"{cost.agent_share * 1000 / cost.count / cost.looks:.2f}"),
        ("engine: ms a look", lambda cost: f"{cost.engine_s * 1000:.2f}"),
    ]
    for name, _ in columns:
        drawn.add_column(name, justify="left" if name == "engines" else "right")
    for cost in costs:
        drawn.add_row(*(shown(cost) for _, shown in columns))
    return drawn


async def measure(engines: int, seconds: float, interval: str) -> list[Cost]:
    """All cases, one after the other."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with Fleet(folder) as fleet:
            serve = await fleet.serve({})
            costs = [
                await of_pages(folder, serve, count, load, interval, seconds)
                for count in (1, engines)
                for load in ("idle", "busy")
            ]
            return [*costs, await of_llamacpp(folder, serve, seconds)]


@click.command(help=__doc__)
@click.option("--engines", default=64, show_default=True)
@click.option("--seconds", default=10.0, show_default=True, help="Of each case.")
@click.option("--interval", default="1s", show_default=True)
def main(engines: int, seconds: float, interval: str) -> None:
    """Measure and print."""
    Console(width=140).print(table(asyncio.run(measure(engines, seconds, interval))))


if __name__ == "__main__":
    main()
