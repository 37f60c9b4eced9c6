"""A NATS server binds an agent to its nodes, by the permissions that docs/agent.md gives it."""

from pathlib import Path

from tests.agent.engine import vllm_engine
from tests.agent.test_agent_loopback import running
from tests.agent.test_publish import READY, on_bus, on_stream, published, verdicts
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
