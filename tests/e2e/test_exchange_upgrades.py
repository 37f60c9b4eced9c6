"""Routers and agents are replaced one after the other while requests are open; those of before and after get along."""

import asyncio
import signal
from pathlib import Path

from tests.e2e.routers import Site, metric, site
from tests.serve.served import Served
from tests.waiting import until


async def test_routers_that_are_replaced_one_by_one_lose_no_count(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        await asyncio.gather(*(at.router() for _ in range(2)))
        await at.agent(at.engines, at.routers)
        await at.ready()
        await at.begin([3, 3])
        await at.agree()
        for old in list(at.routers):
            at.routers.remove(old)
            old.child.signal(signal.SIGTERM)
            # It lets go of its streams, and Envoy goes on with the answers.
            assert await old.child.ended() == 0
            new = await at.router(listen=old.at)
            await at.ready()
            await at.begin([1 if one is new else 0 for one in at.routers])
            await at.agree()
        assert at.sent_by(*at.routers) == 2
        await at.at_rest()


async def test_agents_that_are_replaced_are_heard_by_all_at_once(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        await asyncio.gather(*(at.router() for _ in range(2)))
        agents = [await at.agent([engine], at.routers) for engine in at.engines]
        await at.ready()
        await at.begin([3, 3])
        await at.agree()
        for number, agent in enumerate(agents):
            engine = at.engines[number]
            boots = await boots_of(at, engine.name)
            # It says goodbye, on the bus and on each stream; the requests are where they are.
            assert await agent.stop() == 0
            await at.agent([engine], at.routers)

            async def has_begun_anew(name: str = engine.name, boots: set[str] = boots) -> bool:
                found = await boots_of(at, name)
                return len(found) == 1 and not found & boots

            await until(has_begun_anew, 20)
        await at.ready()
        await at.at_rest()


async def boots_of(at: Site, node_id: str) -> set[str]:
    """What all routers know of a node's run."""
    pages = [(await router.get("/nodes"))[1]["nodes"] for router in at.routers]
    return {next((one["boot_id"] for one in page if one["node_id"] == node_id), "") for page in pages}


async def test_a_router_without_a_bus_among_those_with_one_counts_by_reports(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        # First the routers are given the bus, one by one, then the agents.
        alone = await at.router("")
        shared = [await at.router(), await at.router()]
        agents = [await at.agent(at.engines[:2], at.routers, ""), await at.agent(at.engines[2:], at.routers)]
        await at.ready()
        await at.begin([2, 2, 2])
        await at.agree(shared, [alone])
        for router in at.routers:
            assert await reports(router) > 0
        assert await agents[0].stop() == 0
        agents[0] = await at.agent(at.engines[:2], at.routers)
        await at.ready()
        await at.end()  # of a node that said goodbye nothing is counted any more
        await at.agree(shared, [alone])
        await at.begin([1, 2, 3])
        await at.agree(shared, [alone])
        await at.end()
        await at.agree(shared, [alone])


async def reports(router: Served) -> float:
    return await metric(router, 'extproc_snapshots_total{verdict="applied"}')
