"""Agents that are gone, or say nothing, without the end of their connection: their place is somebody else's in time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest

from extproc.nodes import ingest
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage
from tests.nodes.loopback import Router, agent, router
from tests.nodes.messages import snapshot_message
from tests.nodes.test_slow_agents import flood, opened, until_it_stands_still
from tests.waiting import until

STREAMS = 4
IMPATIENCE = 100


@contextlib.asynccontextmanager
async def cut_off(to: Router, cut: asyncio.Event) -> AsyncIterator[str]:
    """An address whose connections carry nothing any more once they are cut, in neither direction, and do not end."""
    carrying: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while got := await reader.read(4096):
            if cut.is_set():
                await asyncio.Event().wait()
            writer.write(got)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", to.port)
        writers.extend((writer, to_writer))
        carrying.update(asyncio.create_task(forward(*ends)) for ends in ((reader, to_writer), (to_reader, writer)))

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


async def test_streams_whose_network_is_lost_make_room_for_others() -> None:
    cut = asyncio.Event()
    async with (
        router(streams_max=STREAMS, impatience=IMPATIENCE) as to,
        cut_off(to, cut) as address,
        opened(address, STREAMS) as calls,
    ):
        for number, call in enumerate(calls):
            one = snapshot_message(node_id=f"gpu-{number}", host=f"10.0.0.{number + 1}:80")
            await call.write(AgentMessage(snapshot=one))
            await call.read()
        assert to.ingest.streams_open == STREAMS
        cut.set()
        await until(lambda: to.ingest.streams_open == 0)
        assert len(to.balancer.views()) == STREAMS, "that says nothing about the nodes"
        async with agent(to) as stream:
            answer = await stream.say(snapshot_message(node_id="gpu-1", host="10.0.0.2:80", sequence=2))
            assert answer.verdict == Acknowledgement.VERDICT_APPLIED


async def test_a_stream_that_says_nothing_is_ended_and_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "SILENCE_S_MAX", 0.3)
    async with router(streams_max=2) as to, agent(to) as mute, agent(to) as fallen_silent:
        await fallen_silent.say(snapshot_message())
        for stream in (mute, fallen_silent):
            assert await asyncio.wait_for(stream.call.code(), 10) is grpc.StatusCode.DEADLINE_EXCEEDED
            assert await stream.call.details() == "not a word for 0.3 s"
        await until(lambda: to.ingest.streams_open == 0)
        assert to.snapshot() is not None


async def test_a_stream_that_goes_on_speaking_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "SILENCE_S_MAX", 0.5)
    loop = asyncio.get_running_loop()
    async with router() as to, agent(to) as stream, agent(to) as mute:
        until_s, sequence = loop.time() + 1.2, 0
        while loop.time() < until_s:
            sequence += 1
            assert (await stream.say(snapshot_message(sequence=sequence))).verdict == Acknowledgement.VERDICT_APPLIED
        assert mute.call.done()
        assert not stream.call.done()


async def test_a_stream_whose_message_is_being_taken_is_not_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It reads no acknowledgements; gRPC could not end it in the middle of one."""
    monkeypatch.setattr(ingest, "SILENCE_S_MAX", 0.2)
    async with router() as to, opened(to.address, 1) as (call,), agent(to) as mute:
        flooding = asyncio.create_task(flood(call))
        await until_it_stands_still(to)
        await asyncio.wait_for(mute.call.code(), 10)
        assert to.ingest.streams_open == 1
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
    assert caplog.records == []
