"""The agent beside a real llama.cpp server."""

import asyncio
from pathlib import Path

import aiohttp

from extproc.agent.agent import run, sample_once
from extproc.agent.settings import AgentConfig, parse
from extproc.core.snapshot import NodeState, ServedModel, Snapshot
from tests.llamacpp import CONTEXT_TOKENS, SLOTS, llamacpp_server
from tests.nodes.loopback import router
from tests.waiting import until


async def test_the_agent_sees_a_real_llamacpp_work_and_die(tmp_path: Path) -> None:
    async with llamacpp_server(tmp_path) as server, router() as to, aiohttp.ClientSession() as client:
        config = parse(
            {
                "routers": [to.address],
                "engines": [{"node_id": "gpu-1", "engine": server.url}],
                "interval_s": "50ms",
                "scrape_timeout_s": 10,
            }
        )
        assert isinstance(config, AgentConfig)

        def shows(**wanted: object) -> Snapshot | None:
            seen = to.snapshot()
            return seen if seen and all(getattr(seen, name) == value for name, value in wanted.items()) else None

        prompt_tokens = cached_tokens = 0

        async def complete(tokens: int) -> int:
            nonlocal prompt_tokens, cached_tokens
            body = {"model": server.model, "prompt": "the " * 20, "max_tokens": tokens, "ignore_eos": True}
            async with client.post(f"{server.url}/v1/completions", json=body) as response:
                usage = (await response.json())["usage"]
                prompt_tokens += usage["prompt_tokens"]
                cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
                return response.status

        stop = asyncio.Event()
        agent = asyncio.create_task(run(config, stop))
        idle = await until(lambda: shows(state=NodeState.READY, requests_running=0, requests_waiting=0))
        assert isinstance(idle, Snapshot)
        assert idle.models == (ServedModel(server.model, context_length_tokens=CONTEXT_TOKENS // SLOTS),)
        assert (idle.kv_usage, idle.kv_blocks_total, idle.kv_block_size_tokens) == (0.0, CONTEXT_TOKENS, 1)

        requests = [asyncio.create_task(complete(400)) for _ in range(SLOTS + 1)]
        busy = await until(lambda: shows(requests_running=SLOTS, active_decodes=SLOTS, requests_waiting=1), within_s=30)
        assert isinstance(busy, Snapshot)
        assert busy.pending_prefills == 1
        assert busy.kv_usage is not None
        assert 0 < busy.kv_usage < 1
        assert busy.kv_blocks_available == CONTEXT_TOKENS - round(busy.kv_usage * CONTEXT_TOKENS)

        assert await asyncio.gather(*requests) == [200] * (SLOTS + 1)
        rested = await until(lambda: shows(requests_running=0, kv_usage=0.0))
        assert isinstance(rested, Snapshot)
        assert 0 < cached_tokens < prompt_tokens
        assert rested.prefill_tokens_total == prompt_tokens - cached_tokens
        assert (rested.prefix_queries_total, rested.prefix_hits_total) == (prompt_tokens, cached_tokens)
        assert rested.prefill_seconds_total is not None
        assert rested.prefill_seconds_total > 0
        (once,) = await sample_once(config)
        assert (once["state"], once["requests_running"]) == ("ready", 0)

        server.process.kill()
        await until(lambda: shows(state=NodeState.LOADING))
        stop.set()
        await asyncio.wait_for(agent, 10)
