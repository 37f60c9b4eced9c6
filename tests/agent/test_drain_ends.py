"""Drains that end by themselves, since the engine began anew, and those that do not."""

import asyncio
import os
import signal
from pathlib import Path

import structlog

from extproc.core.snapshot import NodeState
from tests.agent.test_drains import called, post, reported, shows_work
from tests.waiting import until

DRAINING, LOADING, READY = NodeState.DRAINING, NodeState.LOADING, NodeState.READY


async def test_a_drain_ends_when_the_engine_was_started_again_unless_held(tmp_path: Path) -> None:
    async with called(tmp_path) as (engines, to, session):
        await post(session, "/drain?node=gpu-1")
        await post(session, "/drain?node=gpu-2&hold=1")
        await until(lambda: (to.state("gpu-1"), to.state("gpu-2")) == (DRAINING, DRAINING))
        for engine, node_id in zip(engines, ("gpu-1", "gpu-2"), strict=True):
            await engine.kill()
            await until(lambda node_id=node_id: to.state(node_id) is LOADING)  # type: ignore[misc]
            await engine.start()
        await until(lambda: (to.state("gpu-1"), to.state("gpu-2")) == (READY, DRAINING))


async def test_the_drain_of_an_agent_that_leaves_is_held() -> None:
    async with reported(engines=2, drain_s=3600) as (engines, to, task):
        await shows_work(engines[0], to)  # so that the agent stays
        with structlog.testing.capture_logs() as logged:
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: to.state("gpu-2") is DRAINING)
            await engines[1].kill()
            await until(lambda: to.state("gpu-2") is LOADING)
            await engines[1].start()
            await until(lambda: to.state("gpu-2") is DRAINING)
        assert "drain ended" not in {entry["event"] for entry in logged}
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 10)
