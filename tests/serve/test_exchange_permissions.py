"""The permissions of docs/exchange.md are enough for routers and agents, and no more."""

import re
import time
from pathlib import Path

import structlog

from extproc.bus.bus import NODES, ROUTERS
from extproc.bus.natsbus import NatsBus
from extproc.bus.settings import NatsSettings
from tests.natsserver import nats_server
from tests.serve.served import Serve, Served
from tests.serve.test_exchange import NODES as NODE_LIMITS
from tests.serve.test_exchange import agent_of, open_at, peers, sent
from tests.waiting import until

DOCUMENT = Path(__file__).parents[2] / "docs" / "exchange.md"


def documented() -> str:
    found = re.search(r"```\n(authorization .*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    return found[1].replace("$ROUTER_PASSWORD", '"r-password"').replace("$AGENT_PASSWORD", '"a-password"')


async def test_what_the_document_grants_is_enough(serve: Serve, tmp_path: Path) -> None:
    for name in ("r-password", "a-password"):
        (tmp_path / name).write_text(name)
    async with nats_server(documented()) as nats:
        routers = {"servers": nats.url, "user": "router", "password_file": str(tmp_path / "r-password")}
        one, other = await serve(nats=routers, nodes=NODE_LIMITS), await serve(nats=routers, nodes=NODE_LIMITS)
        await agent_of(one)
        await agent_of(other)
        await until(lambda: peers(other))
        stream = await sent(one, prompt="hello " * 500)
        await until(lambda: open_at(other, "peers"))
        stream.cancel()

        heard: list[bytes] = []
        settings = NatsSettings(servers=(nats.url,), user="agent-1", password_file=tmp_path / "a-password")
        agent = NatsBus(settings, time.monotonic, structlog.get_logger())
        agent.listen(ROUTERS, lambda _, message: heard.append(message))
        await agent.open(lambda: None)
        await until(lambda: heard)
        agent.publish(NODES, b"?", "gpu-1")
        await until(lambda: _refused(one, 1))
        assert b"Violation" not in nats.log
        agent.publish(NODES, b"?", "gpu-2")
        await until(lambda: b"Violation" in nats.log)
        await agent.close()


async def _refused(served: Served, count: int) -> bool:
    return f'extproc_snapshots_total{{verdict="refused"}} {count}.0' in await served.page("/metrics")
