"""A stream beside a bus, to a real router."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from itertools import count

import structlog

from extproc.address import TcpAddress
from extproc.agent.push import RouterLink
from extproc.agent.standby import BUS_FIRST_S
from extproc.agent.wire import Report, goodbye_message, node_snapshot
from extproc.core.snapshot import NodeState, Snapshot
from tests.agent import test_kvtold as kv
from tests.nodes.loopback import Router, router
from tests.nodes.room import Room
from tests.waiting import until


def report(sequence: int, state: NodeState = NodeState.READY) -> Report:
    now_s = asyncio.get_running_loop().time()
    return Report(Snapshot("n", "10.0.0.1:80", "b", sequence, 0.0, state), now_s)


@dataclass
class Both:
    """An agent's stream and its bus, in the hands of a test."""

    to: Router
    link: RouterLink
    bus: Room
    heard: bool = True

    def publish(self, told: Report) -> None:
        self.bus.say(node_snapshot(told, told.sampled_at_s, 0.0))

    def tell(self, told: Report) -> None:
        self.publish(told)
        self.link.offer(told)

    @property
    def rests(self) -> bool:
        return "rests" in self.link.shown()


@contextlib.asynccontextmanager
async def both() -> AsyncIterator[Both]:
    async with router(name="r") as to:
        bus, clock = Room(), asyncio.get_running_loop().time
        to.ingest.hear(bus)
        link = RouterLink(
            TcpAddress("127.0.0.1", to.port),
            0.2,
            clock,
            structlog.get_logger(),
            is_heard=lambda name: name == "r" and one.heard,
        )
        one = Both(to, link, bus)
        running = asyncio.create_task(link.run())
        one.tell(report(0))
        await until(lambda: link.shown()["connected"])
        one.tell(report(1))
        await until(lambda: one.rests)
        yield one
        link.leave()
        await asyncio.wait_for(running, 10)


def sequence(to: Router) -> int:
    seen = to.snapshot("n")
    assert seen is not None
    return seen.sequence


async def test_a_report_waits_for_the_bus_and_is_spared_once_it_was_first() -> None:
    async with both() as one:
        one.heard = False
        one.link.look()
        one.heard = True
        loop = asyncio.get_running_loop()
        offered_s = loop.time()
        one.link.offer(report(2))  # and it is not published
        await until(lambda: sequence(one.to) == 2)
        assert loop.time() - offered_s >= BUS_FIRST_S
        one.tell(report(3))
        await until(lambda: one.rests)
        one.tell(report(4))
        assert sequence(one.to) == 4


async def test_what_was_spared_goes_out_at_once_when_the_bus_is_lost() -> None:
    async with both() as one:
        one.link.offer(report(2))
        one.link.look()
        assert sequence(one.to) == 1
        one.heard = False
        loop = asyncio.get_running_loop()
        lost_s = loop.time()
        one.link.look()
        await until(lambda: sequence(one.to) == 2)
        assert loop.time() - lost_s < BUS_FIRST_S
        one.link.offer(report(3))
        await until(lambda: sequence(one.to) == 3)


async def test_a_stream_that_rests_tells_what_a_node_becomes_and_says_goodbye() -> None:
    async with both() as one:
        one.link.offer(report(2, NodeState.DRAINING))
        await until(lambda: one.to.state("n") is NodeState.DRAINING)
        one.link.leave()
        await until(lambda: one.to.snapshot("n") is None)


async def test_kv_blocks_go_on_a_stream_that_rests() -> None:
    async with both() as one:
        told = replace(report(2), kv=kv.report([1, 2, 3], stored=[3]))
        one.tell(told)
        await until(lambda: one.to.balancer.kv_blocks_told("n") == 3)
        one.tell(replace(report(3), kv=kv.report([2, 3], removed=[1])))
        await until(lambda: one.to.balancer.kv_blocks_told("n") == 2)
        assert one.rests


async def test_a_router_that_forgot_the_node_hears_of_it_on_the_bus_and_of_its_blocks_again() -> None:
    async with both() as one:
        one.tell(replace(report(2), kv=kv.report([1, 2, 3])))
        await until(lambda: one.to.balancer.kv_blocks_told("n") == 3)
        one.bus.say(goodbye_message(report(2)))
        assert one.to.snapshot("n") is None
        sequences = count(3)

        async def is_told_again() -> bool:
            number = next(sequences)
            one.tell(replace(report(number), kv=kv.report([2, number], stored=[number], removed=[number - 1])))
            await asyncio.sleep(0.02)
            return one.to.balancer.kv_blocks_told("n") == 2

        await until(is_told_again)
        await until(lambda: one.rests)
