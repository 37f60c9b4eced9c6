"""A running `extproc serve` with workers, and what a test says to it."""

import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from extproc.address import TcpAddress, of_worker
from extproc.fleet import Fleet, Serve
from tests.waiting import until

WORKERS = 2
CONFIG: dict[str, Any] = {
    "workers": WORKERS,
    "nodes": {"fresh_s": 20.0, "stale_s": 30.0, "report_interval_s": 0.2, "settle_s": 0},
}


@dataclass
class Crewed:
    fleet: Fleet
    serve: Serve
    client: aiohttp.ClientSession

    @property
    def pids(self) -> list[int]:
        """Of the workers that live."""
        return workers_of(self.serve.child.pid)

    async def json(self, path: str) -> Any:
        return await self.fleet.json(f"http://{self.serve.admin}{path}")

    async def text(self, path: str) -> str:
        async with self.client.get(f"http://{self.serve.admin}{path}") as response:
            return await response.text()

    async def status(self, path: str) -> int:
        async with self.client.get(f"http://{self.serve.admin}{path}") as response:
            return response.status

    async def samples(self, name: str) -> list[Sample]:
        families = text_string_to_metric_families(await self.text("/metrics"))
        return [one for family in families for one in family.samples if one.name == name]

    async def listening(self, count: int) -> None:
        """Until so many workers do."""

        async def so_many() -> bool:
            found = await self.samples("extproc_workers")
            return [one.value for one in found if one.labels["state"] == "listening"] == [count]

        await until(so_many, within_s=20)

    async def nodes_of(self, worker: int) -> dict[str, Any]:
        """Each node as a worker sees it."""
        async with self.client.get(f"http://{self.serve.admin}/nodes?worker={worker}") as response:
            if response.status != 200:
                return {}
            return {one["node_id"]: one for one in (await response.json())["nodes"]}

    async def known_to_all(self, *node_ids: str) -> None:
        """Until each worker knows these nodes, fresh."""

        async def known() -> bool:
            pages = [await self.nodes_of(number) for number in range(WORKERS)]
            return all(one in page and page[one]["freshness"] == "fresh" for page in pages for one in node_ids)

        await until(known, within_s=20)


def workers_of(pid: int) -> list[int]:
    """The processes that a parent has started to be workers."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sorted(int(one) for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes())


def is_there(pid: int) -> bool:
    """Whether the process lives."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def free_ports() -> TcpAddress:
    """An address whose port, and those of all workers, nobody has."""
    while True:
        with contextlib.ExitStack() as stack:
            one = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            first = TcpAddress("127.0.0.1", one.getsockname()[1])
            try:
                for number in range(1, WORKERS):
                    other = of_worker(first, number)
                    assert isinstance(other, TcpAddress)
                    stack.enter_context(socket.create_server((other.host, other.port)))
            except (OSError, OverflowError):
                continue
            return first


@contextlib.asynccontextmanager
async def crewed(folder: Path, **config: Any) -> AsyncIterator[Crewed]:
    async with Fleet(folder) as fleet, aiohttp.ClientSession() as client:
        serve = await fleet.serve(CONFIG | config)
        yield Crewed(fleet, serve, client)
