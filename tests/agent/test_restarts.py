"""Agents that end and begin anew, are stopped for a while, and clocks that jump."""

import asyncio
import contextlib
import time
from pathlib import Path

import pytest
import yaml

from extproc.agent.agent import run
from extproc.children import Child, ourselves
from extproc.core.snapshot import NodeState
from tests.agent.engine import vllm_engine
from tests.agent.pages import started, vllm_lines
from tests.agent.test_agent_loopback import configured, running
from tests.nodes.loopback import router
from tests.waiting import until

READY, DRAINING = NodeState.READY, NodeState.DRAINING


async def test_an_agent_that_began_anew_is_heard_though_the_one_before_said_no_goodbye() -> None:
    async with vllm_engine() as engine, router() as to:
        killed = asyncio.create_task(run(configured([engine], [to], goodbye_s=0)))
        await until(lambda: to.state() is READY)
        boot = to.snapshot().boot_id  # type: ignore[union-attr]
        killed.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await killed
        async with running(configured([engine], [to])):
            await until(lambda: (seen := to.snapshot()) and seen.boot_id != boot and seen.state is READY)


async def test_an_engines_restart_is_another_boot_and_nothing_else_is() -> None:
    async with vllm_engine() as engine, router() as to, running(configured([engine], [to])):
        engine.pages["/metrics"] = started(100) + vllm_lines(generated=7)
        await until(lambda: to.state() is READY)
        first = to.snapshot()
        assert first is not None
        await until(lambda: to.snapshot().sequence > first.sequence + 2)  # type: ignore[union-attr]
        assert to.snapshot().boot_id == first.boot_id  # type: ignore[union-attr]
        engine.pages["/metrics"] = started(200) + vllm_lines(generated=0)
        await until(lambda: to.snapshot().boot_id != first.boot_id)  # type: ignore[union-attr]
        assert to.snapshot().boot_id.partition(".")[0] == first.boot_id.partition(".")[0]  # type: ignore[union-attr]


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
async def test_a_wall_clock_that_jumps_is_not_noticed(monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    async with vllm_engine() as engine, router() as to, running(configured([engine], [to])):
        engine.pages["/metrics"] = started(time.time()) + vllm_lines()
        first = await until(to.snapshot)
        true_time = time.time
        monkeypatch.setattr(time, "time", lambda: true_time() + jump_s)
        monkeypatch.setattr(time, "time_ns", lambda: int((true_time() + jump_s) * 1e9))
        await until(lambda: to.snapshot().sequence > first.sequence + 3)  # type: ignore[union-attr, attr-defined]
        seen = to.snapshot()
        assert seen is not None
        assert (seen.state, seen.boot_id) == (READY, first.boot_id)  # type: ignore[attr-defined]
        assert 0 <= seen.sample_age_s < 5


async def test_the_command_drains_on_sigterm_and_ends_when_its_engine_is_idle(tmp_path: Path) -> None:
    async with vllm_engine() as engine, router() as to:
        config = {
            "routers": [to.address],
            "engines": [{"node_id": "gpu-1", "engine": engine.url}],
            "interval_s": "50ms",
            "admin": "127.0.0.1:0",
        }
        (tmp_path / "agent.yaml").write_text(yaml.safe_dump(config))
        child = await Child.start("agent", ourselves("agent", "--config", str(tmp_path / "agent.yaml")), tmp_path)
        try:
            engine.pages["/metrics"] = vllm_lines(running=1, generated=3)
            await until(lambda: child.check() or (to.state() is READY and to.snapshot().requests_running == 1), 60)  # type: ignore[func-returns-value, union-attr]
            stopping = asyncio.create_task(child.stop(within_s=30))
            await until(lambda: to.state() is DRAINING)
            engine.pages["/metrics"] = vllm_lines(generated=9)
            assert await stopping == 0
        finally:
            await child.kill()
        assert to.snapshot() is None
        assert "listening" in child.log.read_text()
