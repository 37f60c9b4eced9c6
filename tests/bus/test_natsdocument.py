"""What docs/config.md says of a NATS server holds."""

import re
from pathlib import Path

from extproc.bus.bus import LOADS, NODES, ROUTERS
from tests.bus.busing import Ears, Told, nats_bus, reached
from tests.natsserver import nats_server
from tests.waiting import until

DOCUMENT = Path(__file__).parents[2] / "docs/config.md"


def _documented() -> str:
    found = re.search(r"\n```\n(authorization \{\n.*?\n\})\n```\n", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    return found[1].replace("$ROUTER_PASSWORD", "of-router").replace("$AGENT_PASSWORD", "of-agent")


async def test_the_documented_permissions_are_enough_and_no_more(tmp_path: Path) -> None:
    for name in ("router", "agent"):
        (tmp_path / name).write_text(f"of-{name}")
    async with nats_server(_documented()) as server:
        router_log, agent_log = Told(), Told()
        router = nats_bus(server.url, told=router_log, user="router", password_file=str(tmp_path / "router"))
        agent = nats_bus(server.url, told=agent_log, user="agent", password_file=str(tmp_path / "agent"))
        reports, routers = Ears(router, NODES), Ears(agent, ROUTERS)
        async with reached(router) as (other,):
            await agent.open(routers.connect)
            await until(lambda: routers.reached)
            agent.publish(NODES, b"report", "gpu-1")
            router.publish(ROUTERS, b"here")
            await until(lambda: reports.heard and routers.heard)
            assert not agent_log.events("bus complains")
            agent.publish(LOADS, b"forged")
            router.publish(LOADS, b"real")
            await other.hears(b"real")
            assert b"forged" not in other.messages
            assert not router_log.events("bus complains")
            await agent.close()
