"""The parts of one run, all of them new: engines with empty caches, and who chooses between them.

For ours that is `extproc serve` with an agent for each engine behind the Envoy of `envoy/demo.yaml`. For Envoy's own
policies it is the same Envoy without what concerns extproc: its filters, routes and timeouts stay, so that nothing but
the choice is compared.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from bench.engines.scenarios import Node, Variant
from bench.engines.workloads import MODEL
from extproc.address import TcpAddress
from extproc.children import Child
from extproc.fleet import BOOTSTRAP, Engine, Fleet
from extproc.traffic import Answer, Ask, ask, completion

REPORT_INTERVAL_S: Final = 1.0
EJECTED_PERCENT_MAX: Final = 50
"""Of Envoy's outlier detection, as extproc's `ejection.share_max`; its default of 10 % ejects none of four nodes."""
_PROBE: Final = Ask("probe", "/v1/completions", completion(MODEL, "ping", output_tokens=1, stream=False))
_EXT_PROC: Final = "envoy.filters.http.ext_proc"
_COUNTED: Final = ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions")
_COUNTER: Final = re.compile(rf"^vllm:({'|'.join(_COUNTED)})_total{{.*}} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Parts:
    """A running system."""

    fleet: Fleet
    engines: Sequence[Engine]
    client: aiohttp.ClientSession
    entry: TcpAddress
    """Where clients go."""
    groups: Mapping[str, Sequence[Child]]
    """Its processes, by what they are: `envoy`, `serve`, `agents`, and each engine by its name."""

    def check(self) -> None:
        """Raise ChildFailedError if one of its processes has ended."""
        for children in self.groups.values():
            for child in children:
                child.check()

    async def counters(self) -> dict[str, float]:
        """What the engines count of caches and preemptions, over all of them."""
        found = dict.fromkeys(_COUNTED, 0.0)
        for engine in self.engines:
            async with self.client.get(f"http://{engine.address}/metrics", raise_for_status=True) as response:
                for name, value in _COUNTER.findall(await response.text()):
                    found[name] += float(value)
        return found

    async def fault(self, order: Mapping[str, Any]) -> None:
        """Order a fault of the first engine."""
        async with self.client.put(f"http://{self.engines[0].address}/fault", json=order, raise_for_status=True):
            pass


@asynccontextmanager
async def started(folder: Path, nodes: Sequence[Node], variant: Variant) -> AsyncIterator[Parts]:
    """A system that chooses between engines, and does so already. It ends with the block, however that ends."""
    async with Fleet(folder) as fleet, aiohttp.ClientSession() as client:
        engines = await _engines(fleet, nodes)
        known = [engine.address for engine in engines]
        groups: dict[str, Sequence[Child]] = {engine.name: [engine.child] for engine in engines}
        if variant.policy is None:
            envoy = await fleet.envoy(None, known, bootstrap=without_extproc(folder, variant))
        else:
            policy = variant.policy.model_dump(mode="json", exclude={"name"})
            config = {"nodes": {"report_interval_s": REPORT_INTERVAL_S}, "policies": {"default": policy}}
            serve = await fleet.serve(config)
            envoy = await fleet.envoy(serve, known)
            agents = [
                fleet.agent(engine.name, engine.address, serve, interval_s=REPORT_INTERVAL_S) for engine in engines
            ]
            groups |= {"serve": [serve.child], "agents": await asyncio.gather(*agents)}
            await fleet.until("ready nodes", lambda: fleet.nodes_ready(serve, [engine.name for engine in engines]))
        groups["envoy"] = [envoy.child]

        async def probed() -> bool:
            answer = await ask(client, envoy.url, _PROBE)
            return _chosen(answer, variant)

        await fleet.until("choices", probed)
        host, _, port = envoy.url.removeprefix("http://").rpartition(":")
        yield Parts(fleet, engines, client, TcpAddress(host, int(port)), groups)


@asynccontextmanager
async def started_alone(folder: Path, node: Node) -> AsyncIterator[Parts]:
    """One engine, and nobody before it."""
    async with Fleet(folder) as fleet, aiohttp.ClientSession() as client:
        (engine,) = await _engines(fleet, [node])
        yield Parts(fleet, [engine], client, engine.address, {engine.name: [engine.child]})


async def _engines(fleet: Fleet, nodes: Sequence[Node]) -> list[Engine]:
    return await asyncio.gather(*(fleet.engine(node.name, MODEL, *node.options) for node in nodes))


def _chosen(answer: Answer, variant: Variant) -> bool:
    return answer.served if variant.policy is None else answer.as_chosen


def without_extproc(folder: Path, variant: Variant) -> Path:
    """The bootstrap with one of Envoy's own policies in place of extproc."""
    bootstrap = yaml.safe_load(BOOTSTRAP.read_text())
    resources = bootstrap["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"] = [one for one in manager["http_filters"] if one["name"] != _EXT_PROC]
    manager["access_log"] = [one for one in manager["access_log"] if "Grpc" not in one["typed_config"]["@type"]]
    for route in manager["route_config"]["virtual_hosts"][0]["routes"]:
        route.pop("typed_per_filter_config", None)
        if variant.with_session and "route" in route:
            route["route"]["hash_policy"] = [{"header": {"header_name": "x-session"}}]
    resources["clusters"] = [one for one in resources["clusters"] if one["name"] != "extproc"]
    for cluster in resources["clusters"]:
        if cluster["name"] == "known-nodes":
            cluster["lb_policy"] = variant.lb_policy
            if variant.outlier_detection:
                cluster["outlier_detection"] = {"max_ejection_percent": EJECTED_PERCENT_MAX}
    path = folder / "without.yaml"
    path.write_text(yaml.safe_dump(bootstrap))
    return path
