"""One run: vLLM behind our agent, `extproc serve` and Envoy, through load, a restart and sleep; everything recorded."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from bench.realvllm import kvcache, load
from bench.realvllm.engine import Vllm, real_vllm
from bench.realvllm.kvcache import Heard
from bench.realvllm.listening import KeepingRouter, keeping_router, passed_on
from bench.realvllm.load import Answers, Clients
from bench.realvllm.model import MODEL, write_model
from bench.realvllm.recording import Recording
from extproc.children import Child, ourselves
from extproc.fleet import Fleet
from extproc.traffic import Ask, ask, completion

NODE: Final = "vllm"
SETTLE_S: Final = 1.0
"""Between the last answer and the look that the sums are held against."""
_PROBE: Final = Ask("probe", "/v1/completions", completion(MODEL, "ping", output_tokens=1, stream=False))


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run gave."""

    recording: Recording
    refused: list[str]
    """Why reports were malformed."""
    heard: Heard
    """KV events of the second vLLM."""


@dataclass(slots=True)
class System:
    """All that runs."""

    fleet: Fleet
    vllm: Vllm
    agent: Child
    router: KeepingRouter
    clients: Clients
    recording: Recording
    clock: Callable[[], float]
    tell: Callable[[str], None]

    def phase(self, name: str) -> None:
        """A part of the run begins."""
        self.recording.phases.append((round(self.clock(), 3), name))
        self.tell(f"{self.clock():6.1f} s  {name}")

    async def reported(self, state: str, within_s: float = 30.0) -> None:
        """Wait until the agent reports this state."""

        async def so() -> bool:
            self.agent.check()
            snapshots = self.recording.snapshots
            return bool(snapshots) and snapshots[-1][1]["state"] == state

        await self.fleet.until(f"the report that it is {state}", so, within_s)


async def run(python: Path, tokenizer: Path, folder: Path, interval_s: float, tell: Callable[[str], None]) -> Ran:
    """Carry out everything. Raises ChildFailedError."""
    async with _system(python, tokenizer, folder, interval_s, tell) as system:
        await _started(system)
        await _chosen(system)
        for phase in load.PHASES:
            system.phase(phase.__name__)
            await phase(system.clients)
            system.vllm.check()
        await _summed(system)
        system.phase("stop")
        await system.vllm.stop()
        system.phase("stopped")
        await system.reported("loading")
        await _started(system)
        system.clients.answers = Answers()
        system.clients.heard.batches.clear()
        for phase in load.AFTERWARDS:
            system.phase(phase.__name__)
            await phase(system.clients)
        await _summed(system)
        await _slept(system)
    return Ran(system.recording, system.router.refused, system.clients.heard)


@asynccontextmanager
async def _system(
    python: Path, tokenizer: Path, folder: Path, interval_s: float, tell: Callable[[str], None]
) -> AsyncIterator[System]:
    begun_s = time.monotonic()

    def clock() -> float:
        return time.monotonic() - begun_s

    recording = Recording()
    write_model(folder / "model", tokenizer)
    events = folder / "kv-events"
    async with (
        Fleet(folder) as fleet,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        real_vllm(python, folder / "model", events, recording, clock) as vllm,
        keeping_router(recording, clock) as (router, address),
        kvcache.heard(events, clock) as heard,
        passed_on(f"{vllm.url}/metrics", recording, clock) as metrics,
    ):
        serve = await fleet.serve({"nodes": {"report_interval_s": interval_s}})
        envoy = await fleet.envoy(serve, [vllm.address])
        config: dict[str, Any] = {
            "routers": [address, str(serve.agents)],
            "engines": [
                {
                    "node_id": NODE,
                    "engine": vllm.url,
                    "metrics": metrics,
                    "kv_events": {"endpoint": f"ipc://{events}", "topic": kvcache.TOPIC},
                }
            ],
            "interval_s": interval_s,
        }
        file = folder / "agent.yaml"
        file.write_text(yaml.safe_dump(config))
        agent = await Child.start("agent", ourselves("agent", "--config", str(file)), folder)
        try:
            clients = Clients(session, envoy.url, recording, clock, router, heard)
            yield System(fleet, vllm, agent, router, clients, recording, clock, tell)
        finally:
            await agent.stop()


async def _started(system: System) -> None:
    system.phase("start")
    await system.vllm.start()
    await system.vllm.healthy(system.clients.session)
    system.phase("healthy")
    await system.reported("ready")


async def _chosen(system: System) -> None:
    """Until requests go where `serve` says; after a start it is silent for a moment."""
    clients = system.clients

    async def chosen() -> bool:
        answer = await ask(clients.session, clients.url, _PROBE)
        if answer.status == 200:
            clients.answers.first_tokens += 1
            clients.answers.first_tokens_s += answer.seconds
            clients.answers.prompt_tokens += json.loads(answer.text)["usage"]["prompt_tokens"]
        return answer.chosen == NODE

    await system.fleet.until("choices", chosen)


async def _summed(system: System) -> None:
    await asyncio.sleep(SETTLE_S)
    await system.clients.looked()
    system.clients.told()


async def _slept(system: System) -> None:
    session, url = system.clients.session, system.vllm.url
    system.phase("sleep")
    async with session.post(f"{url}/sleep", params={"level": "1"}, raise_for_status=True):
        pass
    await system.reported("loading")
    await asyncio.sleep(SETTLE_S)
    system.phase("wake up")
    async with session.post(f"{url}/wake_up", raise_for_status=True):
        pass
    await system.reported("ready")
    await asyncio.sleep(SETTLE_S)
    system.phase("end")
