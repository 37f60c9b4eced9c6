"""Running systems, each with the real Envoy.

One has engines and agents, one has nodes that a test scripts, one has policies and classes, and too little room. Each
file of tests that asks for one has its own, which ends with the file: an idle system takes a ninth of a core.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from extproc.fleet import BOOTSTRAP, Engine, Envoy, Fleet, Serve
from extproc.traffic import Answer, Ask, ask, completion
from tests.e2e import gated, listeners, modes
from tests.e2e.reporter import Reporter
from tests.waiting import until

MODEL = "demo"
MIB = 1024 * 1024
REPORT_INTERVAL_S = 0.2
UPLOAD_S = 4
"""What the scripted system's Envoy gives a request to arrive; its route for batches has a policy that is wrong."""
CONFIG: dict[str, Any] = {
    "nodes": {"fresh_s": 2.0, "stale_s": 3.0, "report_interval_s": REPORT_INTERVAL_S},
    "limits": {"body_bytes_max": 32 * MIB, "body_bytes_total_max": 48 * MIB},
}
PROBE = Ask("probe", "/v1/completions", completion(MODEL, "ping", output_tokens=1, stream=False))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@dataclass(slots=True)
class System:
    fleet: Fleet
    client: aiohttp.ClientSession
    envoy: Envoy
    serve: Serve
    engines: list[Engine]
    config: Mapping[str, Any] = field(default_factory=lambda: CONFIG)

    async def ask(self, request: Ask, headers: dict[str, str] | None = None) -> Answer:
        return await ask(self.client, self.envoy.url, request, headers)

    async def node(self, name: str) -> dict[str, Any]:
        nodes = (await self.fleet.json(f"http://{self.serve.admin}/nodes"))["nodes"]
        return next((one for one in nodes if one["node_id"] == name), {})

    async def requests_open(self) -> int:
        nodes = (await self.fleet.json(f"http://{self.serve.admin}/nodes"))["nodes"]
        return sum(one["own"]["sequences_open"] for one in nodes)

    async def restart_serve(self) -> None:
        self.serve = await self.fleet.serve({**self.config, "listen": self.serve.listen})

    async def choosing(self) -> None:
        """Wait until every engine is a ready node, and requests go where serve says."""

        async def ready() -> bool:
            return await self.fleet.nodes_ready(self.serve, {one.name for one in self.engines})

        async def chosen() -> bool:
            return (await self.ask(PROBE)).as_chosen

        await self.fleet.until("ready nodes", ready)
        await self.fleet.until("choices", chosen)

    async def metrics(self) -> dict[str, float]:
        """Each sample by its name and the values of its labels, as `extproc_queue_requests batch`."""
        async with self.client.get(f"http://{self.serve.admin}/metrics") as response:
            page = await response.text()
        return {
            " ".join((one.name, *one.labels.values())): one.value
            for family in text_string_to_metric_families(page)
            for one in family.samples
        }

    async def waiting(self, priority: str, count: int) -> None:
        """Until so many of a class wait for room."""

        async def so_many() -> bool:
            return (await self.metrics())[f"extproc_queue_requests {priority}"] == count

        await until(so_many)

    async def at_rest(self) -> None:
        """Until serve holds nothing of any request."""

        async def nothing() -> bool:
            told = await self.metrics()
            queued = [
                value for name, value in told.items() if name.startswith(("extproc_queue_req", "extproc_queue_b"))
            ]
            held = [told["extproc_streams_open"], told["extproc_body_bytes_held"], await self.requests_open()]
            return not any(queued + held)

        await until(nothing)

    async def access_log_of(self, request_id: str) -> dict[str, Any]:
        """Envoy's access log line of a request, once it is there."""

        def line() -> dict[str, Any] | None:
            for text in self.envoy.child.log.read_text().splitlines():
                if text.startswith("{") and f'"{request_id}"' in text:
                    found: dict[str, Any] = json.loads(text)
                    return found
            return None

        found = await until(line)
        assert isinstance(found, dict)
        return found


@asynccontextmanager
async def started(
    folder: Path, config: Mapping[str, Any], other: System, bootstrap: Path = BOOTSTRAP
) -> AsyncIterator[System]:
    """A serve of its own, an Envoy for it, and the engines of another system."""
    async with Fleet(folder) as fleet:
        serve = await fleet.serve(config)
        envoy = await fleet.envoy(serve, [one.address for one in other.engines], bootstrap=bootstrap)
        yield System(fleet, other.client, envoy, serve, other.engines)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def whole_system(
    client: aiohttp.ClientSession, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    async with Fleet(tmp_path_factory.mktemp("system")) as fleet:
        engines = [
            await fleet.engine(name, MODEL, "--speed", speed, "--kv-blocks", "20000")
            for name, speed in (("gpu-1", "4.0"), ("gpu-2", "3.0"), ("gpu-3", "2.0"))
        ]
        serve = await fleet.serve(CONFIG)
        for engine in engines:
            await fleet.agent(engine.name, engine.address, serve, interval_s=REPORT_INTERVAL_S)
        envoy = await fleet.envoy(serve, [one.address for one in engines])
        yield System(fleet, client, envoy, serve, engines)


@pytest_asyncio.fixture(loop_scope="session")
async def system(whole_system: System) -> System:
    """Three engines, an agent for each, serve and Envoy, all of them well."""
    await whole_system.choosing()
    return whole_system


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def agentless_system(
    client: aiohttp.ClientSession, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("scripted")
    shipped = BOOTSTRAP.read_text()
    for ours, tests in (
        ('"strategy": "load-score"', '"strategy": "no-such"'),
        ("request_timeout: 60s", f"request_timeout: {UPLOAD_S}s"),
    ):
        assert ours in shipped
        shipped = shipped.replace(ours, tests)
    bootstrap = folder / "envoy.yaml"
    bootstrap.write_text(shipped)
    async with Fleet(folder) as fleet:
        engine = await fleet.engine("gpu-1", MODEL)
        serve = await fleet.serve(CONFIG | {"nodes": CONFIG["nodes"] | {"settle_s": 0}})
        envoy = await fleet.envoy(serve, [engine.address], bootstrap=bootstrap)
        system = System(fleet, client, envoy, serve, [engine])
        async with Reporter(serve.agents) as reporter:

            async def chosen() -> bool:
                # For two report intervals after its start serve chooses nobody.
                await reporter.report("gpu-1", engine.address)
                return (await system.ask(PROBE)).as_chosen

            await fleet.until("choices", chosen)
        yield system


@pytest_asyncio.fixture(loop_scope="session")
async def reporter(agentless_system: System) -> AsyncIterator[Reporter]:
    """In an agent's place; what it reported is forgotten after the test."""
    async with Reporter(agentless_system.serve.agents) as reporter:
        yield reporter


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def whole_gated_system(
    client: aiohttp.ClientSession, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("gated")
    async with Fleet(folder) as fleet:
        # A step computes one prompt of 1000 tokens: about a quarter of a second, as 4000 tokens at speed 1.
        slow = ("--speed", "0.25", "--kv-blocks", "20000", "--step-tokens-max", "1024")
        serve, engines = await asyncio.gather(
            fleet.serve(gated.CONFIG),
            asyncio.gather(*(fleet.engine(f"slow-{number}", MODEL, *slow) for number in (1, 2, 3))),
        )
        envoy, _ = await asyncio.gather(
            fleet.envoy(serve, [one.address for one in engines], bootstrap=gated.write_bootstrap(folder)),
            asyncio.gather(
                *(fleet.agent(one.name, one.address, serve, interval_s=REPORT_INTERVAL_S) for one in engines)
            ),
        )
        yield System(fleet, client, envoy, serve, engines, gated.CONFIG)


@pytest_asyncio.fixture(loop_scope="session")
async def gated_system(whole_gated_system: System) -> System:
    """Three slow engines, and a route for each of `gated.POLICIES`."""
    await whole_gated_system.choosing()
    return whole_gated_system


@pytest_asyncio.fixture(loop_scope="session")
async def held(gated_system: System) -> AsyncIterator[gated.Held]:
    """A node beside them whose room the test rations."""
    async with gated.holding(gated_system.serve.agents) as held:
        yield held


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def listening(
    client: aiohttp.ClientSession, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[modes.Running]:
    """An Envoy with a listener for each way of being told to ask; see `listeners.all_listeners`."""
    folder = tmp_path_factory.mktemp("modes")
    async with modes.running(client, folder, listeners.all_listeners, listeners.SETTINGS) as found:
        yield found
