"""The parts of one run, all of them new: eight engines, several routers behind up to three Envoys, one agent process.

Without exchange the agent reports to every router by gRPC, and routers know of each other by these reports alone. With
it routers and agent are on a NATS server as well.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from bench.engines.workloads import MODEL
from bench.routers.requests import NODES
from extproc.address import TcpAddress, parse
from extproc.children import Child
from extproc.fleet import BOOTSTRAP, Engine, Envoy, Fleet, Nats, Serve
from extproc.render import bootstrap
from extproc.render.description import Description
from extproc.render.description import parse as described
from extproc.traffic import Ask, ask, completion

ENVOYS_MAX: Final = 3
REPORT_INTERVAL_S: Final = 1.0
EXCHANGE_INTERVAL_S: Final = 0.5
SILENT_INTERVALS: Final = 6
"""As the default of `silence_s`."""
ENGINE_PROCESSES: Final = 2
_PYTHON: Final = (sys.executable, "-m")
_PROBE: Final = Ask("probe", "/v1/completions", completion(MODEL, "ping", output_tokens=1, stream=False))


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to have routers."""

    routers: int
    exchange: bool

    @property
    def name(self) -> str:
        """For tables."""
        if self.routers == 1:
            return "1 router"
        return f"{self.routers} routers, {'with' if self.exchange else 'without'} exchange"


ARMS: Final = (Arm(1, False), Arm(3, False), Arm(3, True), Arm(8, False), Arm(8, True))


@dataclass(frozen=True, slots=True)
class Parts:
    """A running system."""

    fleet: Fleet
    engines: Sequence[Engine]
    truth_urls: Sequence[str]
    serves: Sequence[Serve]
    envoys: Sequence[Envoy]
    nats: Nats | None
    groups: Mapping[str, Sequence[Child]]
    """Its processes, by what they are."""

    @property
    def entries(self) -> list[TcpAddress]:
        """Where clients go."""
        return [_tcp(one.url.removeprefix("http://")) for one in self.envoys]

    def check(self) -> None:
        """Raise ChildFailedError if one of its processes has ended."""
        for children in self.groups.values():
            for child in children:
                child.check()


@asynccontextmanager
async def started(folder: Path, arm: Arm, speed: float = 1.0, nodes: int = NODES) -> AsyncIterator[Parts]:
    """A system that chooses between engines, at each of its Envoys. It ends with the block, however that ends.

    Of slower engines all intervals are longer by as much.
    """
    async with AsyncExitStack() as stack:
        engines, truth_urls, processes = await _engines(folder, speed, nodes, stack)
        fleet = await stack.enter_async_context(Fleet(folder))
        nats = await fleet.nats() if arm.exchange else None
        config = _config(speed, nats)
        serves = await asyncio.gather(*(fleet.serve(config, f"serve-{place}") for place in range(arm.routers)))
        agent = await fleet.agents("agents", engines, serves, interval_s=REPORT_INTERVAL_S / speed, nats=nats)
        count = min(arm.routers, ENVOYS_MAX)
        text = _bootstrap(folder, several=arm.routers > count)
        known = [one.address for one in engines]
        envoys = await asyncio.gather(
            *(fleet.envoy(serves[place::count], known, bootstrap=text, name=f"envoy-{place}") for place in range(count))
        )
        groups: dict[str, Sequence[Child]] = {
            "engines": processes,
            "serve": [one.child for one in serves],
            "envoy": [one.child for one in envoys],
            "agents": [agent],
            "nats": [] if nats is None else [nats.child],
        }
        parts = Parts(fleet, engines, truth_urls, serves, envoys, nats, groups)
        await _choosing(parts)
        yield parts


async def _choosing(parts: Parts) -> None:
    names = [one.name for one in parts.engines]
    async with aiohttp.ClientSession() as client:
        for serve in parts.serves:
            await parts.fleet.until("ready nodes", partial(parts.fleet.nodes_ready, serve, names))
        share = -(-len(parts.serves) // len(parts.envoys))

        async def chosen(envoy: Envoy) -> bool:
            answers = [await ask(client, envoy.url, _PROBE) for _ in range(share)]
            return all(one.as_chosen for one in answers)

        for envoy in parts.envoys:
            await parts.fleet.until("choices", partial(chosen, envoy))


def _config(speed: float, nats: Nats | None) -> dict[str, Any]:
    interval_s = REPORT_INTERVAL_S / speed
    nodes = {"report_interval_s": interval_s}
    if speed < 1:
        nodes |= {"fresh_s": 5 / speed, "stale_s": 30 / speed}
    config: dict[str, Any] = {"nodes": nodes}
    if nats is not None:
        config["nats"] = {"servers": [nats.url]}
        config["exchange"] = {
            "interval_s": EXCHANGE_INTERVAL_S / speed,
            "silence_s": SILENT_INTERVALS * EXCHANGE_INTERVAL_S / speed,
        }
    return config


def _bootstrap(folder: Path, *, several: bool) -> Path:
    """The demo's; where an Envoy has several routers, rendered for them."""
    if not several:
        return BOOTSTRAP
    mapping = yaml.safe_load(BOOTSTRAP.with_name("demo.render.yaml").read_text()) | {"several_processors": True}
    description = described(mapping)
    assert isinstance(description, Description), description
    text = bootstrap.render(description)
    assert isinstance(text, str), text
    path = folder / "several.yaml"
    path.write_text(text)
    return path


async def _engines(
    folder: Path, speed: float, nodes: int, stack: AsyncExitStack
) -> tuple[list[Engine], list[str], list[Child]]:
    names = [f"node-{number}" for number in range(1, nodes + 1)]
    engines, urls, children = [], [], []
    for place in range(ENGINE_PROCESSES):
        own = names[place::ENGINE_PROCESSES]
        command = [*_PYTHON, "bench.routers.engines", str(speed), *own]
        child = await Child.start(f"engines-{place}", command, folder)
        stack.push_async_callback(child.stop)
        children.append(child)
        told = json.loads((await child.logged(r'^\{.*"engines listening".*\}$', within_s=30))[0])
        engines += [Engine(name, child, _tcp(told["hosts"][name])) for name in own]
        urls.append(f"http://{told['truth']}/")
    return sorted(engines, key=lambda one: one.name), urls, children


def _tcp(text: str) -> TcpAddress:
    found = parse(text)
    assert isinstance(found, TcpAddress)
    return found
