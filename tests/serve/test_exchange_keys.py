"""Two routers of one fleet whose `prefix_secret` differs: it is seen, and their loads are shared all the same."""

from pathlib import Path

from tests.natsserver import nats_server
from tests.serve.served import Serve, Served
from tests.serve.test_exchange import NODES, agent_of, open_at, sent
from tests.waiting import until


async def test_another_prefix_secret_is_said(serve: Serve, tmp_path: Path) -> None:
    secrets = []
    for name in ("ours", "theirs"):
        secrets.append(tmp_path / name)
        secrets[-1].write_text(name * 8)
    async with nats_server() as nats:
        settings = {"nats": {"servers": nats.url}, "nodes": NODES}
        one = await serve(**settings, prefix_secret=str(secrets[0]))
        other, third = [await serve(**settings, prefix_secret=str(secrets[1])) for _ in range(2)]
        for served in (one, other, third):
            await agent_of(served)
        await until(lambda: _same_keys(one, [False, False]))
        await until(lambda: _same_keys(other, [False, True]))
        stream = await sent(other, prompt="hello " * 2000)
        await until(lambda: open_at(one, "peers"))
        await until(lambda: _dropped(one))
        assert not await _dropped(third)
        assert "router with another prefix_secret" in one.child.log.read_text()
        stream.cancel()


async def _same_keys(served: Served, wanted: list[bool]) -> bool:
    return sorted(one["same_key"] is True for one in (await served.get("/peers"))[1]["peers"]) == wanted


async def _dropped(served: Served) -> bool:
    return 'extproc_exchange_dropped_total{reason="other_key"} 0.0' not in await served.page("/metrics")
