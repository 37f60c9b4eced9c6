"""The whole agent over a real NATS server, to real routers and without them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog

from extproc.agent.settings import AgentConfig
from extproc.bus.bus import NODES, ROUTERS
from extproc.bus.natsbus import NatsBus
from extproc.bus.settings import NatsSettings
from extproc.core.snapshot import NodeState
from extproc.pb.exchange_pb2 import RouterHere
from extproc.pb.nodes_pb2 import AgentMessage
from tests.agent.engine import Engine, vllm_engine
from tests.agent.test_agent_loopback import configured, running
from tests.natsserver import NatsServer, nats_server
from tests.nodes.loopback import Router, router
from tests.tcpproxy import tcp_proxy
from tests.waiting import until

READY, DRAINING = NodeState.READY, NodeState.DRAINING


@pytest.fixture
async def nats() -> AsyncIterator[NatsServer]:
    async with nats_server() as server:
        yield server


@dataclass
class OnBus:
    """A router on the bus, as agents see it."""

    bus: NatsBus
    name: str
    heard: list[AgentMessage] = field(default_factory=list)
    """What agents published."""

    def here(self, *, is_new: bool = False) -> None:
        self.bus.publish(ROUTERS, RouterHere(router=self.name, is_new=is_new).SerializeToString())

    def count(self, node_id: str = "gpu-1") -> int:
        return sum(message.snapshot.node_id == node_id for message in self.heard)


@contextlib.asynccontextmanager
async def on_bus(url: str, name: str, to: Router | None = None, **login: Any) -> AsyncIterator[OnBus]:
    """It says that it is there each half second; `to` hears what is published."""
    bus = NatsBus(NatsSettings(servers=(url,), **login), time.monotonic, structlog.get_logger())
    one = OnBus(bus, name)
    bus.listen(NODES, lambda _, message: one.heard.append(AgentMessage.FromString(message)))
    if to is not None:
        to.ingest.hear(bus)

    async def beat() -> None:
        while True:
            one.here()
            await asyncio.sleep(0.5)

    await bus.open(lambda: one.here(is_new=True))
    beating = asyncio.create_task(beat())
    try:
        await until(lambda: bus.connected)
        yield one
    finally:
        beating.cancel()
        await bus.close()


def published(engines: list[Engine], at: str, routers: list[Router] | None = None, /, **changes: Any) -> AgentConfig:
    """An agent that publishes there, beside its streams to routers."""
    to: dict[str, Any] = {"nats": {"servers": at}} | ({} if routers else {"routers": []})
    return configured(engines, routers or [], **to | changes)


def verdicts(to: Router) -> dict[str, int]:
    page = to.metrics.page([]).decode()
    return {
        one: round(float(page.partition(f'extproc_snapshots_total{{verdict="{one}"}} ')[2].split("\n")[0]))
        for one in ("applied", "ignored", "refused")
    }


async def test_one_report_reaches_every_router(nats: NatsServer) -> None:
    async with (
        vllm_engine() as engine,
        router(name="a") as a,
        router(name="b") as b,
        router(name="c") as c,
        on_bus(nats.url, "a", a),
        on_bus(nats.url, "b", b),
        on_bus(nats.url, "c", c) as heard,
    ):
        async with running(published([engine], nats.url)):
            await until(lambda: all(to.state() is READY for to in (a, b, c)))
            await until(lambda: heard.count() > 5)
            sequences = [message.snapshot.sequence for message in heard.heard]
            assert len(set(sequences)) >= len(sequences) - 1  # once again, because c was new
            assert all(message.quiet and message.snapshot.models.models for message in heard.heard)
            seen = c.snapshot()
            assert seen is not None
            assert 0 < seen.round_trip_s < 1
        await until(lambda: not (a.snapshot() or b.snapshot() or c.snapshot()))
        assert [verdicts(to)["refused"] for to in (a, b, c)] == [0, 0, 0]


async def test_a_router_that_comes_late_knows_everything_within_a_second(nats: NatsServer) -> None:
    slow = {"interval_s": 30, "idle_interval_s": 3}
    async with contextlib.AsyncExitStack() as held:
        engines = [await held.enter_async_context(vllm_engine()) for _ in range(3)]
        first = await held.enter_async_context(on_bus(nats.url, "first"))
        await held.enter_async_context(running(published(engines, nats.url, **slow)))
        await until(lambda: all(first.count(f"gpu-{n}") for n in (1, 2, 3)))
        late = await held.enter_async_context(router())
        await held.enter_async_context(on_bus(nats.url, "late", late))
        await until(lambda: all(late.state(f"gpu-{n}") is READY for n in (1, 2, 3)), within_s=1)


async def test_a_stream_is_spared_what_its_router_has_from_the_bus(nats: NatsServer) -> None:
    async with vllm_engine() as engine, router(name="r") as to, on_bus(nats.url, "r", to) as bus:
        async with running(published([engine], nats.url, [to])):
            await idle(to, bus)
            assert to.ingest.streams_open == 1
        assert to.snapshot() is None
        assert to.events("node reported by two streams") == []


async def idle(to: Router, bus: OnBus) -> None:
    """Until nothing of what is published comes on the stream too."""

    async def is_idle() -> bool:
        return await on_stream(to, bus) <= 1

    await until(is_idle)


async def on_stream(to: Router, bus: OnBus) -> int:
    """How many reports come on the stream while 20 are published; 1 may be one of these, taken by now. A stream that is
    not idle has one in 0.2 s, so 5."""
    before, count = sum(verdicts(to).values()), bus.count()
    await until(lambda: bus.count() >= count + 20)
    return sum(verdicts(to).values()) - before - (bus.count() - count)


async def test_what_a_node_becomes_is_told_on_the_stream_too(nats: NatsServer) -> None:
    async with (
        vllm_engine() as engine,
        router(name="r") as to,
        on_bus(nats.url, "r", to) as bus,
        running(published([engine], nats.url, [to])),
    ):
        await idle(to, bus)
        ignored = verdicts(to)["ignored"]
        engine.pages["/health"] = 503
        await until(lambda: to.state() is NodeState.LOADING)
        await until(lambda: verdicts(to)["ignored"] > ignored)


async def test_streams_take_over_when_nats_is_killed_and_rest_when_it_is_back(nats: NatsServer) -> None:
    async with (
        vllm_engine() as engine,
        router(name="r") as to,
        on_bus(nats.url, "r", to) as bus,
        running(published([engine], nats.url, [to])),
    ):
        await idle(to, bus)
        await nats.kill()
        loop = asyncio.get_running_loop()
        killed_s = loop.time()
        sequence = to.snapshot().sequence  # type: ignore[union-attr]
        await until(lambda: to.snapshot().sequence > sequence + 3)  # type: ignore[union-attr]
        assert loop.time() - killed_s < 2
        await nats.start()
        await idle(to, bus)


async def test_a_router_that_alone_is_cut_off_from_nats_is_told_on_its_stream(nats: NatsServer) -> None:
    async with (
        tcp_proxy(nats.port) as proxy,
        vllm_engine() as engine,
        router(name="r") as to,
        router(name="o") as other,
        on_bus(proxy.url, "r", to) as bus,
        on_bus(nats.url, "o", other) as others,
        running(published([engine], nats.url, [to, other])),
    ):
        await idle(to, bus)
        await idle(other, others)
        proxy.stalled = True
        await oldest(to, 4.5)
        assert await on_stream(other, others) <= 1
        proxy.stalled = False
        await idle(to, bus)


async def oldest(to: Router, within_s: float) -> None:
    """Until the stream has taken over; no sample that is known may be older than that meanwhile."""
    (view,) = to.balancer.views()
    sequence, loop = view.snapshot.sequence, asyncio.get_running_loop()

    def took_over() -> bool:
        (view,) = to.balancer.views()
        assert loop.time() - view.sampled_at_s < within_s
        return view.snapshot.sequence > sequence + 20

    await until(took_over)


async def test_a_router_that_hears_nothing_though_it_speaks_keeps_its_stream(nats: NatsServer) -> None:
    """As where the server does not let it, or us."""
    async with (
        vllm_engine() as engine,
        router(name="r") as to,
        on_bus(nats.url, "r") as bus,
        running(published([engine], nats.url, [to])),
    ):
        await until(lambda: bus.count() > 15)
        told = verdicts(to)["applied"]
        count = bus.count()
        await until(lambda: bus.count() >= count + 20)
        assert verdicts(to)["applied"] - told > 2


async def test_a_bus_that_is_slower_than_the_stream_is_not_relied_on(nats: NatsServer) -> None:
    async with tcp_proxy(nats.port) as proxy, vllm_engine() as engine, router(name="r") as to:
        proxy.delay_s = 1.0
        async with on_bus(proxy.url, "r", to) as bus, running(published([engine], nats.url, [to])):
            await until(lambda: bus.count() > 15, within_s=20)
            loop = asyncio.get_running_loop()
            until_s = loop.time() + 2

            def is_young() -> bool:
                (view,) = to.balancer.views()
                assert loop.time() - view.sampled_at_s < 0.95
                return loop.time() > until_s

            await until(is_young)


async def test_an_agent_without_nats_is_alive_and_comes_when_there_is_one(nats: NatsServer) -> None:
    await nats.kill()
    async with vllm_engine() as engine, router(name="r") as to, running(published([engine], nats.url)):
        await until(lambda: engine.asked.count("/health") >= 5)
        assert to.snapshot() is None
        await nats.start()
        async with on_bus(nats.url, "r", to):
            await until(lambda: to.state() is READY)


async def test_a_restarted_router_has_the_models_at_once(nats: NatsServer) -> None:
    async with vllm_engine() as engine, running(published([engine], nats.url, idle_interval_s=3)):
        for name in ("one", "two"):
            async with router(name=name) as to, on_bus(nats.url, name, to):
                seen: Any = await until(to.snapshot)
                assert [model.name for model in seen.models] == ["m"]
