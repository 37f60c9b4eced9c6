"""A NATS server binds an agent to its nodes, by the permissions that docs/agent.md gives it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from extproc.core.snapshot import Freshness
from tests.agent.engine import vllm_engine
from tests.agent.test_agent_loopback import running
from tests.agent.test_publish import READY, idle, on_bus, on_stream, published, verdicts
from tests.natsserver import nats_server
from tests.nodes.loopback import router
from tests.waiting import until

PAGE = Path(__file__).parent.parent.parent / "docs" / "agent.md"


def documented() -> str:
    """The server's configuration, with passwords."""
    part = PAGE.read_text().partition("```text\n")[2].partition("```")[0]
    assert "authorization" in part
    return part.replace("…", "secret")


async def test_an_agent_publishes_for_its_nodes_only_and_tells_of_others_on_its_stream(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    login = {"user": "gpu-1", "password_file": str(tmp_path / "password")}
    routers = {"user": "router", "password_file": tmp_path / "password"}
    async with (
        nats_server(documented()) as nats,
        vllm_engine() as one,
        vllm_engine() as two,
        router(name="r") as to,
        on_bus(nats.url, "r", to, **routers) as bus,
    ):
        async with running(published([one, two], nats.url, [to], nats={"servers": nats.url} | login)):
            await until(lambda: to.state("gpu-1") is READY and to.state("gpu-2") is READY)
            await until(lambda: bus.count("gpu-1") > 20)
            assert bus.count("gpu-2") == 0
            applied = verdicts(to)["applied"]
            count = bus.count()
            assert await on_stream(to, bus) > 2
            assert verdicts(to)["applied"] - applied > bus.count() - count
            assert not to.events("message of an agent refused")
        await until(lambda: not to.balancer.views())


SECRETS = """authorization {{ users = [
  {{user: router, password: secret, permissions: {{publish: "extproc.default.>", subscribe: {hears}}}}}
  {{user: gpu-1, password: secret, permissions: {{publish: {says}, subscribe: ">"}}}}
]}}"""
ALL = '"extproc.default.>"'
NO_NODES = '["extproc.default.routers", "extproc.default.echo.*"]'


@pytest.mark.parametrize("revoked", ["says", "hears"])
async def test_no_node_gets_stale_when_a_permission_is_taken_away(tmp_path: Path, revoked: str) -> None:
    (tmp_path / "password").write_text("secret\n")
    login = {"password_file": str(tmp_path / "password")}
    before = {"says": ALL, "hears": ALL}
    async with (
        nats_server(SECRETS.format(**before)) as nats,
        vllm_engine() as engine,
        router(name="r") as to,
        on_bus(nats.url, "r", to, user="router", **login) as bus,
        running(published([engine], nats.url, [to], nats={"servers": nats.url, "user": "gpu-1"} | login)),
    ):
        await idle(to, bus)
        nats.configure(SECRETS.format(**before | {revoked: NO_NODES}))
        assert nats.pid is not None
        os.kill(nats.pid, signal.SIGHUP)
        loop = asyncio.get_running_loop()
        silent_s = 0.0

        def is_told_again() -> bool:
            nonlocal silent_s
            (view,) = to.balancer.views()
            assert to.balancer.freshness(view, loop.time()) is Freshness.FRESH
            was_silent, silent_s = silent_s > 2, loop.time() - view.sampled_at_s
            return was_silent and silent_s < 1

        await until(is_told_again)
        sequence = to.snapshot().sequence  # type: ignore[union-attr]
        await until(lambda: to.snapshot().sequence > sequence + 5)  # type: ignore[union-attr]
