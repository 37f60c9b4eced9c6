import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import structlog

from extproc.address import TcpAddress
from extproc.agent.push import RouterLink
from extproc.agent.wire import Report, snapshot_message
from extproc.core.snapshot import NodeState, ServedModel, Snapshot
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, RouterMessage
from extproc.pb.nodes_pb2_grpc import NodesServicer, add_NodesServicer_to_server
from tests.waiting import until

APPLIED = Acknowledgement.VERDICT_APPLIED
BIG = tuple(ServedModel(f"{n}" * 200) for n in range(10, 100))


def report(sequence: int, node_id: str = "n", models: tuple[ServedModel, ...] | None = BIG) -> Report:
    now_s = asyncio.get_running_loop().time()
    return Report(Snapshot(node_id, "10.0.0.1:80", "b.0", sequence, 0.0, NodeState.READY, models=models), now_s)


class SlowRouter(NodesServicer):
    """Reads nothing before it may, and notes what comes then."""

    def __init__(self, acknowledgement: Acknowledgement | None = None, hang_up_after: int = 0) -> None:
        self._hang_up_after = hang_up_after
        self.may_read = asyncio.Event()
        self.hang_up = asyncio.Event()
        self.opened = asyncio.Event()
        self.heard: list[AgentMessage] = []
        self._acknowledgement = acknowledgement

    async def Report(self, messages: AsyncIterator[AgentMessage], _: Any) -> AsyncIterator[RouterMessage]:  # noqa: N802
        self.opened.set()
        await self.may_read.wait()
        async for message in messages:
            self.heard.append(message)
            if self._acknowledgement is not None:
                yield RouterMessage(acknowledgement=self._acknowledgement)
            if len(self.heard) == self._hang_up_after:
                return


class PatientRouter(NodesServicer):
    """Acknowledges each message when it may, quiet or not, as routers do that know no better."""

    def __init__(self, hang_up_after: int = 0) -> None:
        self._hang_up_after = hang_up_after
        self.may_acknowledge = asyncio.Semaphore(0)
        self.heard: list[AgentMessage] = []

    async def Report(self, messages: AsyncIterator[AgentMessage], _: Any) -> AsyncIterator[RouterMessage]:  # noqa: N802
        async for message in messages:
            self.heard.append(message)
            await self.may_acknowledge.acquire()
            told = message.snapshot
            applied = Acknowledgement(node_id=told.node_id, sequence=told.sequence, verdict=APPLIED)
            yield RouterMessage(acknowledgement=applied)
            if len(self.heard) == self._hang_up_after:
                return


@pytest.fixture
async def serve() -> AsyncIterator[Any]:
    servers = []

    async def start(servicer: NodesServicer) -> TcpAddress:
        server = grpc.aio.server()
        servers.append(server)
        add_NodesServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return TcpAddress("127.0.0.1", port)

    yield start
    for server in servers:
        await server.stop(0)


def linked(address: TcpAddress) -> RouterLink:
    return RouterLink(address, 0.2, asyncio.get_running_loop().time, structlog.get_logger())


async def test_a_slow_router_gets_the_latest_report_and_few_of_those_before(serve: Any) -> None:
    router = SlowRouter()
    link = linked(await serve(router))
    running = asyncio.create_task(link.run())
    offered = 2000
    for sequence in range(1, offered + 1):
        link.offer(report(sequence, models=(*BIG, ServedModel(str(sequence)))))
        await asyncio.sleep(0)
        if sequence == 1:
            await router.opened.wait()
    router.may_read.set()
    await until(lambda: router.heard and router.heard[-1].snapshot.sequence == offered)
    assert len(router.heard) < offered / 4
    sequences = [message.snapshot.sequence for message in router.heard]
    assert sequences == sorted(sequences)
    link.leave()
    await asyncio.wait_for(running, 10)
    assert router.heard[-1].goodbye.node_id == "n"


async def test_a_router_that_comes_back_hears_the_latest_report_at_once(serve: Any) -> None:
    router = SlowRouter(hang_up_after=2)
    router.may_read.set()
    link = linked(await serve(router))
    link.offer(report(1))
    link.offer(report(2, "o"))
    running = asyncio.create_task(link.run())
    await until(lambda: len(router.heard) == 4)
    assert [message.snapshot.node_id for message in router.heard] == ["n", "o"] * 2
    link.leave()
    await asyncio.wait_for(running, 10)


@dataclass
class Clock:
    """Stands still unless it is set; links ask it once for each message and once for each acknowledgement."""

    now_s: float = 100.0
    asked: int = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now_s


async def test_reports_carry_the_round_trip_of_the_stream_they_go_on(serve: Any) -> None:
    routers = [PatientRouter(), PatientRouter()]
    clocks = [Clock(), Clock()]
    links = [
        RouterLink(await serve(router), 0.2, clock, structlog.get_logger())
        for router, clock in zip(routers, clocks, strict=True)
    ]
    running = [asyncio.create_task(link.run()) for link in links]
    told = []
    # The first message waits for its connection; the third comes to a slow reader; routers refuse what is over 10 s.
    for sequence, trips_s in enumerate([(9.0, 9.0), (0.25, 30.0), (4.0, 30.0), (0.5, 30.0)], 1):
        for link, router, clock, trip_s in zip(links, routers, clocks, trips_s, strict=True):
            link.offer(report(sequence))
            await until(lambda: len(router.heard) == sequence)  # noqa: B023
            message = router.heard[-1].snapshot
            told.append(message.round_trip_ms if message.HasField("round_trip_ms") else None)
            clock.now_s += trip_s
            router.may_acknowledge.release()
            await until(lambda: clock.asked == 2 * sequence)  # noqa: B023
    assert told == [None, None, None, None, 250, 10_000, 250, 10_000]
    for router in routers:
        router.may_acknowledge.release()
    for link in links:
        link.leave()
    await asyncio.wait_for(asyncio.gather(*running), 10)


async def test_a_new_stream_is_measured_anew(serve: Any) -> None:
    router, clock = PatientRouter(hang_up_after=3), Clock()
    link = RouterLink(await serve(router), 0.2, clock, structlog.get_logger())
    running = asyncio.create_task(link.run())
    for sequence in range(1, 4):
        link.offer(report(sequence))
        await until(lambda: len(router.heard) == sequence)  # noqa: B023
        clock.now_s += 0.25
        router.may_acknowledge.release()
        await until(lambda: clock.asked >= 2 * sequence)  # noqa: B023
    await until(lambda: len(router.heard) == 4)
    measured = [message.snapshot.HasField("round_trip_ms") for message in router.heard]
    assert measured == [False, False, True, False]
    for _ in range(2):
        router.may_acknowledge.release()
    link.leave()
    await asyncio.wait_for(running, 10)


async def test_the_age_is_that_of_the_moment_of_sending() -> None:
    made = report(1)
    assert snapshot_message(made, made.sampled_at_s + 1.5).snapshot.sample_age_ms == 1500
    assert snapshot_message(made, made.sampled_at_s - 1).snapshot.sample_age_ms == 0
    assert snapshot_message(made, made.sampled_at_s + 1e9).snapshot.sample_age_ms == 2**32 - 1


async def test_unknown_is_absent_on_the_wire() -> None:
    message = snapshot_message(report(1, models=None), 0.0).snapshot
    set_fields = {descriptor.name for descriptor, _ in message.ListFields()}
    assert set_fields <= {"node_id", "host", "boot_id", "sequence", "state", "weight", "sample_age_ms"}


async def test_refusals_that_differ_in_numbers_are_one_and_each_node_has_its_own(serve: Any) -> None:
    refused = Acknowledgement(node_id="n", verdict=Acknowledgement.VERDICT_REFUSED, reason="sample is 11.5 s old")
    router = SlowRouter(refused)
    router.may_read.set()
    with structlog.testing.capture_logs() as logged:
        link = linked(await serve(router))
        running = asyncio.create_task(link.run())
        for sequence, (node_id, reason) in enumerate(
            [
                ("n", "sample is 11.5 s old"),
                ("n", "sample is 12.9 s old"),
                ("o", "sample is 12.9 s old"),
                ("n", "x" * 900),
            ]
        ):
            refused.node_id, refused.reason = node_id, reason
            link.offer(report(sequence))
            await until(lambda: len(router.heard) == sequence + 1)  # noqa: B023
        link.leave()
        await asyncio.wait_for(running, 10)
    refusals = [(entry["node_id"], entry["reason"]) for entry in logged if entry["event"] == "snapshot refused"]
    assert refusals == [("n", "sample is 11.5 s old"), ("o", "sample is 12.9 s old"), ("n", "x" * 300)]


async def test_what_is_no_router_is_tried_again_and_raises_nothing() -> None:
    calls: list[str] = []

    async def garbage(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        calls.append(context.peer())
        yield b"\xff\xff\xff"

    handler: Any = grpc.stream_stream_rpc_method_handler(garbage)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("extproc.pb.Nodes", {"Report": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    link = linked(TcpAddress("127.0.0.1", port))
    running = asyncio.create_task(link.run())
    await until(lambda: len(calls) >= 3)
    link.leave()
    await asyncio.wait_for(running, 10)
    await server.stop(0)
