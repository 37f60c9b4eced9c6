"""Agents that are slow, by fault or malice, beside one that is not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc

from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, ModelList, ServedModel
from extproc.pb.nodes_pb2_grpc import NodesStub
from tests.nodes.loopback import Call, Router, agent, router
from tests.nodes.messages import snapshot_message
from tests.waiting import until

SLOW = 12
"""Of each kind."""
REPORTS = 50
HALF_BYTES = 1500
"""Of what a connection sends: its preface, the call's head, and a part of the message."""
REFUSED_LINE = 'extproc_snapshots_total{verdict="refused"}'
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
APPLIED = Acknowledgement.VERDICT_APPLIED


@contextlib.asynccontextmanager
async def narrow(to: Router, bytes_max: int, pause_s: float) -> AsyncIterator[str]:
    """An address whose connections carry so many bytes to the router, one every `pause_s` after that, or no more."""
    carrying: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", to.port)

        writers.extend((writer, to_writer))

        async def back() -> None:
            while got := await to_reader.read(4096):
                writer.write(got)

        async def forth() -> None:
            left = bytes_max
            while got := await reader.read(left or 1):
                to_writer.write(got)
                left -= min(left, len(got))
                if left == 0:
                    await asyncio.sleep(pause_s)

        carrying.update((asyncio.create_task(back()), asyncio.create_task(forth())))

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def opened(address: str, count: int) -> AsyncIterator[list[Call]]:
    """Streams on connections of their own."""
    async with contextlib.AsyncExitStack() as stack:
        calls: list[Call] = []
        for _ in range(count):
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, OWN_CONNECTION))
            calls.append(NodesStub(channel).Report())  # type: ignore[no-untyped-call]
            stack.callback(calls[-1].cancel)
        yield calls


async def flood(call: Call) -> None:
    """Write what is refused, and read nothing of what is said about it."""
    message = AgentMessage(snapshot=snapshot_message(node_id="slow", host="8.8.8.8:80", not_ready_reason="x" * 300))
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await call.write(message)


async def until_it_stands_still(to: Router) -> None:
    """Until something was refused, and then nothing for a while."""

    def refused() -> float:
        (line,) = (one for one in to.metrics.page([]).decode().splitlines() if one.startswith(REFUSED_LINE))
        return float(line.split()[-1])

    async with asyncio.timeout(20):
        before = 0.0
        while not before or refused() != before:
            before = refused()
            await asyncio.sleep(0.2)


async def test_agents_that_are_slow_in_any_way_do_not_delay_another() -> None:
    async with (
        router(streams_max=100) as to,
        narrow(to, HALF_BYTES, 3600) as half,
        narrow(to, HALF_BYTES, 0.05) as drip,
        opened(to.address, SLOW) as silent,
        opened(half, SLOW) as halves,
        opened(drip, SLOW) as drips,
        opened(to.address, SLOW) as floods,
        agent(to) as stream,
    ):
        models = ModelList(models=[ServedModel(name=f"{number}" * 100) for number in range(50)])
        big = AgentMessage(snapshot=snapshot_message(node_id="slow", models=models))
        slow = [asyncio.create_task(flood(call)) for call in floods]
        slow += [asyncio.create_task(call.write(big)) for call in (*halves, *drips)]
        await asyncio.gather(*(call.wait_for_connection() for call in (*silent, *floods)))
        await stream.say(snapshot_message(sequence=1))
        await until(lambda: to.ingest.streams_open == 4 * SLOW + 1)
        await until_it_stands_still(to)
        for sequence in range(2, REPORTS):
            answer = await asyncio.wait_for(stream.say(snapshot_message(sequence=sequence)), 10)
            assert answer.verdict == APPLIED
        assert to.snapshot("slow") is None
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


async def test_an_agent_that_reads_no_acknowledgements_is_read_from_no_more() -> None:
    async with router() as to, opened(to.address, 1) as (call,):
        flooding = asyncio.create_task(flood(call))

        await until_it_stands_still(to)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
