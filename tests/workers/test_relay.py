"""One port for agents, before several workers: over real gRPC, with the real ingest behind it."""

import asyncio

import grpc

from extproc.address import TcpAddress
from extproc.pb.nodes_pb2 import Acknowledgement, Goodbye
from extproc.pb.nodes_pb2 import AgentMessage as Message
from tests.nodes.loopback import Router, router
from tests.nodes.messages import snapshot_message
from tests.nodes.test_kv_blocks import blocks
from tests.waiting import until
from tests.workers.relayed import agent, deaf, place, relayed

APPLIED = Acknowledgement.VERDICT_APPLIED
REFUSED = Acknowledgement.VERDICT_REFUSED


def known(to: Router, node_id: str = "gpu-1") -> bool:
    return to.snapshot(node_id) is not None


async def test_every_worker_has_what_an_agent_tells_and_the_first_ones_acknowledgements_go_back() -> None:
    async with router(name="first") as first, router(name="second") as second, relayed([first, second]) as to:
        async with agent(to) as one:
            answer = await one.say(snapshot_message(boot_id="boot-1"))
            assert (answer.verdict, answer.router) == (APPLIED, "first")
            assert (await one.say(blocks(1, (1, 2, 3), everything=True))).verdict == APPLIED
            await until(lambda: [one.balancer.kv_blocks_told("gpu-1") for one in (first, second)] == [3, 3])
            assert (await one.say(snapshot_message(host="nowhere"))).verdict == REFUSED
            assert (await one.say(Message(goodbye=Goodbye(node_id="gpu-1", boot_id="boot-1")))).verdict == APPLIED
            await until(lambda: not known(first) and not known(second))
            assert to.relay.streams_open == 1
            await one.call.done_writing()
            assert await one.call.code() is grpc.StatusCode.OK
        await until(lambda: first.ingest.streams_open == second.ingest.streams_open == to.relay.streams_open == 0)


async def test_an_agent_comes_again_when_a_worker_ends_and_when_one_comes_and_tells_all_of_them() -> None:
    async with router() as first, relayed([first]) as to:
        async with router() as second:
            to.relay.up(1, place(second))
            async with agent(to) as one:
                await one.say(snapshot_message())
                await until(lambda: known(second))
                await second.server.stop(0)
                assert await one.call.code() is grpc.StatusCode.UNAVAILABLE
                await to.relay.down(1)
        async with agent(to) as one:  # the others are told meanwhile
            await one.say(snapshot_message(sequence=2))
            async with router() as again:
                to.relay.up(1, place(again))
                assert await one.call.code() is grpc.StatusCode.UNAVAILABLE
                assert await one.call.details() == "a worker has come"
                async with agent(to) as other:
                    assert (await other.say(snapshot_message(sequence=3))).verdict == APPLIED
                    await until(lambda: known(again))


async def test_without_a_worker_and_beyond_the_limit_agents_are_turned_away() -> None:
    async with relayed([]) as to, agent(to) as one:
        assert await one.call.code() is grpc.StatusCode.UNAVAILABLE
    async with router() as first, relayed([first], streams_max=1) as to, agent(to) as one:
        await one.say(snapshot_message())
        async with agent(to) as other:
            assert await other.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "agent_streams_max is 1" in str(await other.call.details())


async def test_a_workers_own_refusal_of_a_stream_is_told() -> None:
    async with router(streams_max=0) as first, relayed([first]) as to, agent(to) as one:
        assert await one.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_drain_ends_streams_with_ok_and_new_ones_at_once() -> None:
    async with router() as first, relayed([first]) as to, agent(to) as one:
        await one.say(snapshot_message())
        to.relay.drain()
        assert await one.call.code() is grpc.StatusCode.OK
        async with agent(to) as other:
            assert await other.call.code() is grpc.StatusCode.OK
        assert to.relay.streams_open == 0


async def test_a_worker_that_takes_nothing_is_left_out_until_it_answers_again() -> None:
    with deaf() as hanging:
        await _left_out(hanging)


async def _left_out(hanging: TcpAddress) -> None:
    async with router() as first, relayed([first], relay_s_max=0.2) as to:
        to.relay.up(1, hanging)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with agent(to) as one:
            assert (await one.say(snapshot_message())).verdict == APPLIED, "the others go on"
            assert await one.call.code() is grpc.StatusCode.UNAVAILABLE
            assert await one.call.details() == "a message was not taken in time"
        assert loop.time() - began_s < 2
        await until(lambda: to.events("a worker does not hear agents; they go on without it") == [1])
        async with agent(to) as one:
            assert (await one.say(snapshot_message(sequence=2))).verdict == APPLIED
            assert (await one.say(snapshot_message(sequence=3))).verdict == APPLIED, "it goes on without the other"
            await to.relay.down(1)
            async with router() as second:
                to.relay.up(1, place(second))
                assert await one.call.code() is grpc.StatusCode.UNAVAILABLE
                async with agent(to) as other:
                    await other.say(snapshot_message(sequence=4))
                    await until(lambda: known(second))


async def test_a_worker_that_only_paused_is_taken_back_when_it_answers() -> None:
    async with router() as first, router() as second, relayed([first, second], relay_s_max=0.2) as to:
        to.relay._doubt(1)
        async with agent(to) as one:
            await until(lambda: to.events("a worker hears agents again") == [1])
        async with agent(to) as one:
            await one.say(snapshot_message(sequence=2))
            await until(lambda: known(second))


async def test_an_agent_that_does_not_read_blames_no_worker() -> None:
    async with router() as first, router() as second, relayed([first, second], relay_s_max=0.2) as to, agent(to) as one:
        message = Message(snapshot=snapshot_message(host="nowhere" * 100))  # each refusal repeats some of it

        async def flood() -> None:
            for _ in range(20_000):
                await one.call.write(message)

        flooding = asyncio.create_task(flood())
        try:
            await until(lambda: to.relay.streams_open == 0 and first.ingest.streams_open == 0, within_s=30)
        finally:
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
        assert to.events("a worker does not hear agents; they go on without it") == []
