"""Routers that share over NATS, while NATS, the way there and the routers themselves fail: no count drifts.

After each fault all of them count what the engines have, and at each end nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.e2e.badbus import BadBus, bad_bus
from tests.e2e.routers import Site, counted, metric, site
from tests.serve.served import Served
from tests.tcpproxy import TcpProxy, tcp_proxy
from tests.waiting import until

ROUTERS = 3
FORGOTTEN_S = 20.0
"""A router that is silent is forgotten long before that."""
LATE_S = 0.8
"""Of messages, at most."""
LEARNS_S_MAX = 1.0
"""From a router's start until it knows what the others have."""


@dataclass
class Ways:
    """Between one router and the NATS server."""

    proxy: TcpProxy
    bus: BadBus


@dataclass
class Shared:
    """A site, and each router's way to the bus."""

    site: Site
    ways: dict[str, Ways]
    stack: AsyncExitStack

    async def router(self) -> Served:
        bus = await self.stack.enter_async_context(bad_bus(self.site.nats.port))
        proxy = await self.stack.enter_async_context(tcp_proxy(bus.port))
        router = await self.site.router(proxy.url)
        self.ways[router.child.name] = Ways(proxy, bus)
        return router


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def whole(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    async with AsyncExitStack() as ways, site(tmp_path_factory.mktemp("routers")) as found:
        shared = Shared(found, {}, ways)
        await asyncio.gather(*(shared.router() for _ in range(ROUTERS)))
        await asyncio.gather(
            found.agent(found.engines[:2], found.routers), found.agent(found.engines[2:], found.routers)
        )
        yield shared


@pytest_asyncio.fixture(loop_scope="session")
async def shared(whole: Shared) -> AsyncIterator[Shared]:
    """All is well, and there is no request; so it is to be at the test's end too."""
    await whole.site.ready()
    yield whole
    await whole.site.at_rest()


async def connected(router: Served, wanted: float) -> None:
    async def is_so() -> bool:
        return await metric(router, "extproc_bus_connected") == wanted

    await until(is_so, FORGOTTEN_S)


async def test_each_router_counts_what_all_of_them_sent(shared: Shared) -> None:
    await shared.site.begin([3, 4, 5])
    await shared.site.agree()
    await shared.site.end(6)
    await shared.site.agree()


async def test_nats_dies_and_comes_back_while_requests_come_and_go(shared: Shared) -> None:
    at = shared.site
    await at.begin([3, 2, 1])
    await at.agree()
    await at.nats.kill()
    for router in at.routers:
        await connected(router, 0)
    await at.end(2)
    await at.begin([0, 2, 2])
    assert await asyncio.gather(*(at.ask(router, 5) for router in at.routers for _ in range(5))) == [200] * 15
    await at.agree(*([router] for router in at.routers), within_s=FORGOTTEN_S)
    await at.nats.start()
    await at.agree(within_s=FORGOTTEN_S)


async def test_a_router_that_is_cut_off_goes_on_alone_and_comes_back(shared: Shared) -> None:
    at = shared.site
    await at.begin([2, 2, 2])
    await at.agree()
    proxy = shared.ways[at.routers[2].child.name].proxy
    proxy.stalled = True
    try:
        await at.end(3)
        await at.begin([0, 1, 3])
        assert await asyncio.gather(*(at.ask(router, 5) for router in at.routers)) == [200] * 3
        await at.agree(at.routers[:2], at.routers[2:], within_s=FORGOTTEN_S)
        await connected(at.routers[2], 0)
    finally:
        proxy.stalled = False
    await at.agree(within_s=FORGOTTEN_S)


async def test_messages_late_twice_and_out_of_order_leave_no_count_wrong(shared: Shared) -> None:
    at, ways = shared.site, shared.ways.values()
    for one in ways:
        one.bus.delay_s, one.bus.twice = (0.0, LATE_S), 0.3
    try:
        for _ in range(3):
            await at.begin([1, 1, 1])
            # Many short ones: each word is wrong before it comes.
            asked = [at.ask(router, 5) for router in at.routers for _ in range(10)]
            assert await asyncio.gather(*asked) == [200] * len(asked)
            await at.end(1)
        await at.agree()
        assert sum(one.bus.overtaken for one in ways) > 20
        assert sum(one.bus.repeated for one in ways) > 20
    finally:
        for one in ways:
            one.bus.delay_s, one.bus.twice = (0.0, 0.0), 0.0


async def test_what_is_over_does_not_come_back_with_a_late_word(shared: Shared) -> None:
    at, ways, loop = shared.site, shared.ways.values(), asyncio.get_running_loop()
    await at.begin([4, 4, 4])
    await at.agree()
    for one in ways:
        one.bus.delay_s, one.bus.twice = (0.0, LATE_S), 0.5
    overtaken = sum(one.bus.overtaken for one in ways)
    try:
        # Until many are on their way that say what will be wrong.
        await until(lambda: sum(one.bus.overtaken for one in ways) > overtaken + 30, 20)
        await at.end()
        until_s, before = loop.time() + 2 * LATE_S, [12] * ROUTERS
        while loop.time() < until_s:  # all have come by then that were sent before the end
            counts = [sum((await counted(router))[0].values()) for router in at.routers]
            assert all(now <= then for now, then in zip(counts, before, strict=True)), (before, counts)
            before = counts
        assert before == [0] * ROUTERS
    finally:
        for one in ways:
            one.bus.delay_s, one.bus.twice = (0.0, 0.0), 0.0


async def test_a_killed_router_is_forgotten_and_its_successor_knows_all_at_once(shared: Shared) -> None:
    at, loop = shared.site, asyncio.get_running_loop()
    await at.begin([3, 2, 4])
    await at.agree()
    await at.kill(at.routers[2])
    # Its requests go on, as Envoy lets them; samples show them.
    await at.agree(at.routers, within_s=FORGOTTEN_S)
    took_s = []
    for _ in range(3):  # the machine may be busy with other things
        router = await shared.router()
        began_s = loop.time()
        await until(lambda router=router: knows(at, router), FORGOTTEN_S)  # type: ignore[misc]
        took_s.append(loop.time() - began_s)
        if took_s[-1] <= LEARNS_S_MAX:
            break
        await at.kill(router)
    assert min(took_s) <= LEARNS_S_MAX
    await at.agree(within_s=FORGOTTEN_S)


async def knows(at: Site, router: Served) -> bool:
    """All nodes, and all that the routers that are left have there."""
    sent, in_flight = await counted(router)
    return in_flight == await at.truth() and sum(sent.values()) == at.sent_by(*at.routers)
