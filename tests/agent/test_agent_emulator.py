"""An emulated engine's counters, by its page and an agent into a router's table."""

import asyncio

import aiohttp

from extproc.agent.agent import run
from extproc.agent.settings import AgentConfig, parse
from extproc.core.snapshot import Snapshot
from extproc.sim.emulator import emulated
from extproc.sim.emulatorsettings import EmulatorSettings
from tests.nodes.loopback import router
from tests.waiting import until


async def test_what_an_emulated_engine_computed_and_found_reaches_the_router() -> None:
    settings = EmulatorSettings(model="m", speed=50.0)
    async with emulated(settings) as engine, router() as to, aiohttp.ClientSession() as client:
        config = parse(
            {
                "routers": [to.address],
                "engines": [{"node_id": "gpu-1", "engine": engine.url}],
                "interval_s": "20ms",
                "scrape_timeout_s": 5,
            }
        )
        assert isinstance(config, AgentConfig)
        stop = asyncio.Event()
        agent = asyncio.create_task(run(config, stop))
        idle = await until(to.snapshot)
        assert isinstance(idle, Snapshot)
        assert (idle.prefill_tokens_total, idle.prefill_seconds_total, idle.first_tokens_total) == (0, 0.0, 0)
        assert (idle.prefix_queries_total, idle.prefix_hits_total, idle.adapter_slots_free) == (0, 0, None)

        prompt_tokens = 0
        for text in ("the same words " * 50, "the same words " * 50, "other words " * 20):
            body = {"model": "m", "prompt": text, "max_tokens": 3}
            async with client.post(f"{engine.url}/v1/completions", json=body) as response:
                assert response.status == 200
                prompt_tokens += (await response.json())["usage"]["prompt_tokens"]

        seen = await until(lambda: (one := to.snapshot()) and one.first_tokens_total == 3 and one.round_trip_s and one)
        assert isinstance(seen, Snapshot)
        counters = engine.engine.counters
        assert seen.prefix_hits_total == counters.prefix_cache_hits > 0
        assert seen.prefix_queries_total == prompt_tokens
        assert seen.prefill_tokens_total == prompt_tokens - seen.prefix_hits_total
        assert seen.prefill_seconds_total == counters.time_to_first_token.sum > 0
        stop.set()
        await asyncio.wait_for(agent, 10)
