"""An engine begins to lie while it works: its agent notices, and a router, its pages and its log say so.

The engine is a real web server, the report goes over real gRPC; only the clock is moved on between looks.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
from aiohttp.test_utils import TestClient, TestServer

from extproc.agent.doubts import SOUND_S
from extproc.agent.gpu.meter import GpuMeter
from extproc.agent.looks import LOOKS_MIN
from extproc.agent.node import Node
from extproc.agent.settings import AgentConfig, parse
from extproc.agent.wire import snapshot_message
from extproc.core.snapshot import NodeState, Snapshot
from extproc.ops import admin
from extproc.ops.nodegauges import samples_of
from extproc.ops.nodelog import NodeLog
from tests.agent import enginemodel
from tests.agent.engine import Engine, vllm_engine
from tests.agent.pages import started, vllm_lines, vllm_totals
from tests.nodes.loopback import Agent, Router, agent, router


def page_of(model: enginemodel.Engine, **lies: float) -> str:
    """vLLM's page of an engine, with some of its numbers made up."""
    seen, totals = model.reading(), model.totals
    assert seen.active_decodes is not None
    firsts = totals["firsts"]
    lines: dict[str, Any] = {
        "running": seen.requests_running,
        "waiting": seen.requests_waiting,
        "first_tokens": firsts,
        "finished": firsts - seen.active_decodes,
        "kv_usage": seen.kv_usage,
        "blocks": enginemodel.BLOCKS,
        "generated": model.tick,
        "decode": (totals["gaps_s"], totals["gaps_s"] * 10),
    }
    counted: dict[str, Any] = {
        "prompt": totals["tokens"],
        "queries": totals["tokens"],
        "first_tokens_s": totals["waited_s"],
    }
    return (
        started(1e9)
        + vllm_lines(**(lines | {name: lie for name, lie in lies.items() if name in lines}))
        + vllm_totals(**(counted | {name: lie for name, lie in lies.items() if name in counted}))
    )


@dataclass
class World:
    """One engine, its agent's node, and a router; time stands still but for `look`."""

    server: Engine
    node: Node
    stream: Agent
    router: Router
    client: TestClient[Any, Any]
    clock: "Clock"
    model: enginemodel.Engine = field(default_factory=lambda: enginemodel.Engine(0.5, batch=64))
    page: Callable[[enginemodel.Engine], str] = page_of

    async def look(self, times: int = 1) -> Snapshot:
        """Looks, a second apart; what the router has in its table after the last."""
        for _ in range(times):
            self.clock.passed_s += 1.0
            self.model.run(1.0)
            self.server.pages["/metrics"] = self.page(self.model)
            report = await self.node.look()
            assert report is not None
            answer = await self.stream.say(snapshot_message(report, asyncio.get_running_loop().time()))
            assert answer.verdict == 1, answer
            self.nodelog.look(samples_of(self.router.balancer, asyncio.get_running_loop().time()))
        snapshot = self.router.snapshot()
        assert snapshot is not None
        assert snapshot.state is NodeState.READY
        return snapshot

    def __post_init__(self) -> None:
        self.nodelog = NodeLog(structlog.get_logger())

    async def shown(self) -> tuple[dict[str, str], set[str]]:
        """What /nodes says is absent, and which series /metrics has of it."""
        async with self.client.get("/nodes?node=gpu-1") as response:
            (node,) = (await response.json())["nodes"]
        async with self.client.get("/metrics") as response:
            lines = [one for one in (await response.text()).splitlines() if "signal_absent{" in one]
        assert all(one.startswith('extproc_node_signal_absent{node="gpu-1",signal="') for one in lines)
        return node["absent"], {one.split('"')[3] for one in lines}


class Clock:
    """The loop's, moved on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_s = 0.0
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + self.passed_s)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    loop = asyncio.get_running_loop()
    clock = Clock(loop, monkeypatch)
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(vllm_engine())
        to = await stack.enter_async_context(router())
        stream = await stack.enter_async_context(agent(to))
        app = admin.build(to.balancer, to.metrics, loop.time, lambda: False, lambda: ())
        client = await stack.enter_async_context(TestClient(TestServer(app)))
        config = parse({"routers": ["127.0.0.1:1"], "engines": [{"node_id": "gpu-1", "engine": server.url}]})
        assert isinstance(config, AgentConfig), config
        node = await stack.enter_async_context(Node(config.engines[0], config, "agent", GpuMeter("none", ())))
        yield World(server, node, stream, to, client, clock)


LIES: list[tuple[str, Callable[[enginemodel.Engine], str], int, set[str], str]] = [
    (
        "missing",
        lambda model: page_of(model).replace("kv_cache_usage_perc", "gone"),
        1,
        {"kv_usage", "kv_blocks_available"},
        "vllm:kv_cache_usage_perc is missing",
    ),
    (
        "not a number",
        lambda model: page_of(model, kv_usage=float("nan")),
        1,
        {"kv_usage", "kv_blocks_available"},
        "is not in 0..1",
    ),
    (
        "out of range",
        lambda model: page_of(model, running=-3),
        1,
        {"requests_running", "pending_prefills", "active_decodes"},
        "no whole number",
    ),
    (
        "more than there can be",
        lambda model: page_of(model, running=20_000),
        3,
        {"requests_running", "pending_prefills", "active_decodes"},
        "more requests run than there are KV blocks",
    ),
    (
        "a counter where a gauge belongs",
        lambda model: page_of(model, running=100 + model.totals["firsts"]),
        LOOKS_MIN,
        {"requests_running", "pending_prefills", "active_decodes"},
        "requests_running counts up, and is no number of requests",
    ),
    (
        "running stands still at 0",
        lambda model: page_of(model, running=0),
        LOOKS_MIN,
        {"requests_running", "pending_prefills", "active_decodes"},
        "requests_running stands still while requests are served",
    ),
    (
        "the cache stands still at 0",
        lambda model: page_of(model, kv_usage=0.0),
        LOOKS_MIN,
        {"kv_usage", "kv_blocks_available"},
        "kv_usage stands still while requests are served",
    ),
    (
        "backwards without a restart",
        lambda model: page_of(model, first_tokens_s=0.5),
        1,
        {"prefill_seconds_total"},
        "prefill_seconds_total fell, and the engine did not begin anew",
    ),
]


@pytest.mark.parametrize(("page", "looks", "doubted", "why"), [one[1:] for one in LIES], ids=[one[0] for one in LIES])
async def test_a_lie_that_begins_mid_run_is_told_everywhere_and_its_end_too(
    world: World, page: Callable[[enginemodel.Engine], str], looks: int, doubted: set[str], why: str
) -> None:
    honest = await world.look(4)
    assert honest.absent == ()
    boot = honest.boot_id
    assert all(getattr(honest, signal) is not None for signal in doubted)
    world.page = page
    with structlog.testing.capture_logs() as logged:
        if looks > 1:
            assert (await world.look(looks // 2)).absent == ()
            await world.look(looks - looks // 2 - 1)
        seen = await world.look(2)
        assert {signal for signal, _ in seen.absent} == doubted
        assert all(getattr(seen, signal) is None for signal in doubted)
        assert any(why in reason for _, reason in seen.absent)
        assert await world.shown() == (dict(seen.absent), doubted)
        told = [line for line in logged if line["event"] == "signals absent"]
        assert {signal for line in told for signal in line["signals"]} == doubted
        assert len(told) == len({line["reason"] for line in told})
        world.page, world.model.per_tick = page_of, 0.0
        await world.look(10)  # vLLM's decodes are counted anew once it is idle
        world.model.per_tick = 0.5
        sound = await world.look(int(SOUND_S) + 5)
        assert sound.absent == ()
        assert await world.shown() == ({}, set())
        again = [line["signals"] for line in logged if line["event"] == "signals told again"]
        assert sorted(signal for signals in again for signal in signals) == sorted(doubted)
    assert sound.boot_id == boot, "no lie was a restart"


async def test_a_restart_is_no_lie(world: World) -> None:
    before = await world.look(4)
    world.model = enginemodel.Engine(0.5, batch=64)
    world.page = lambda model: page_of(model).replace(started(1e9), started(1e9 + 60))
    after = await world.look(3)
    assert (before.absent, after.absent) == ((), ())
    assert after.boot_id != before.boot_id
