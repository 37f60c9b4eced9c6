import asyncio

import grpc
import pytest

from extproc.core.settings import NodeLimits
from extproc.nodes import complaints, reports
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, Goodbye, ModelList, RouterMessage, ServedModel
from tests.nodes.loopback import Agent, agent, router
from tests.nodes.messages import snapshot_message
from tests.waiting import until

APPLIED = Acknowledgement.VERDICT_APPLIED
IGNORED = Acknowledgement.VERDICT_IGNORED
REFUSED = Acknowledgement.VERDICT_REFUSED


async def ended(stream: Agent) -> grpc.StatusCode:
    """The status with which the router ended the stream."""
    return await asyncio.wait_for(stream.call.code(), 10)


async def test_a_snapshot_is_applied_and_acknowledged() -> None:
    async with router() as to, agent(to) as stream:
        answer = await stream.say(snapshot_message(sequence=7))
        assert answer == Acknowledgement(node_id="gpu-1", sequence=7, verdict=APPLIED, takes_several=True)
        taken = to.snapshot()
        assert taken is not None
        assert (taken.host, taken.sequence) == ("10.0.0.1:8000", 7)


async def test_a_repeated_and_an_older_sequence_are_ignored() -> None:
    async with router() as to, agent(to) as stream:
        await stream.say(snapshot_message(sequence=5, waiting_queue_size=1))
        for sequence in (5, 4):
            answer = await stream.say(snapshot_message(sequence=sequence, waiting_queue_size=9))
            assert answer.verdict == IGNORED
            assert answer.reason
        taken = to.snapshot()
        assert taken is not None
        assert taken.requests_waiting == 1


async def test_a_new_boot_starts_the_sequences_again() -> None:
    async with router() as to, agent(to) as stream:
        await stream.say(snapshot_message(sequence=500, boot_id="one"))
        assert (await stream.say(snapshot_message(sequence=1, boot_id="two"))).verdict == APPLIED


async def test_a_sample_that_is_too_old_is_refused_and_the_stream_goes_on() -> None:
    async with router(limits=NodeLimits(stale_s=8)) as to, agent(to) as stream:
        answer = await stream.say(snapshot_message(sample_age_ms=8001))
        assert (answer.verdict, to.snapshot()) == (REFUSED, None)
        assert "8" in answer.reason
        assert (await stream.say(snapshot_message(sample_age_ms=8000))).verdict == APPLIED


async def test_a_host_that_envoy_must_not_be_aimed_at_is_refused_and_the_stream_goes_on() -> None:
    async with router() as to, agent(to) as stream:
        answer = await stream.say(snapshot_message(host="169.254.169.254:80", sequence=3))
        assert (answer.verdict, answer.node_id, answer.sequence) == (REFUSED, "gpu-1", 3)
        assert answer.reason.startswith("host: wanted ")
        assert (await stream.say(snapshot_message(sequence=3))).verdict == APPLIED


async def test_a_message_that_says_nothing_is_refused() -> None:
    async with router() as to, agent(to) as stream:
        assert (await stream.say(AgentMessage())).verdict == REFUSED


async def test_a_hostile_id_is_cut_and_escaped_where_it_is_repeated() -> None:
    async with router() as to, agent(to) as stream:
        answer = await stream.say(snapshot_message(node_id="\x1b[2J" + "x" * 5000))
        assert answer.verdict == REFUSED
        assert len(answer.node_id) == 128
        entry = to.events("message of an agent refused")[0]
        assert all(value.isprintable() and len(value) < 300 for value in (entry["node_id"], entry["reason"]))


async def test_a_goodbye_of_the_known_boot_removes_the_node() -> None:
    async with router() as to, agent(to) as stream:
        await stream.say(snapshot_message(boot_id="one"))
        answer = await stream.say(AgentMessage(goodbye=Goodbye(node_id="gpu-1", boot_id="zero")))
        assert (answer.verdict, answer.sequence) == (IGNORED, 0)
        assert to.snapshot() is not None
        assert (await stream.say(AgentMessage(goodbye=Goodbye(node_id="gpu-1", boot_id="one")))).verdict == APPLIED
        assert to.snapshot() is None


async def test_a_stream_that_breaks_leaves_its_nodes() -> None:
    async with router() as to:
        async with agent(to) as stream:
            await stream.say(snapshot_message())
        await until(lambda: to.ingest.streams_open == 0)
        assert to.snapshot() is not None


async def test_an_agent_that_ends_its_stream_is_answered_to_the_end() -> None:
    async with router() as to, agent(to) as stream:
        await stream.call.write(AgentMessage(snapshot=snapshot_message()))
        await stream.call.done_writing()
        assert isinstance(await stream.call.read(), RouterMessage)
        assert await ended(stream) is grpc.StatusCode.OK


async def test_a_drain_ends_open_streams_and_new_ones() -> None:
    async with router() as to, agent(to) as open_one, agent(to) as new_one:
        await open_one.say(snapshot_message())
        to.ingest.drain()
        assert await ended(open_one) is grpc.StatusCode.OK
        assert await ended(new_one) is grpc.StatusCode.OK
        assert to.snapshot() is not None
        await until(lambda: to.ingest.streams_open == 0)


async def test_a_stream_waits_by_one_task_and_a_drain_does_not_cancel_it() -> None:
    def running(name: str) -> list[asyncio.Task[object]]:
        return [task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == name]  # type: ignore[union-attr]

    async with router() as to, agent(to) as stream:
        await stream.say(snapshot_message())
        reads = await until(lambda: running("Waits._take_each"))
        assert isinstance(reads, list)
        assert len(reads) == 1
        assert running("_ServicerContext.read") == running("Event.wait") == []
        to.ingest.drain()
        assert await ended(stream) is grpc.StatusCode.OK
        await until(reads[0].done)
        assert not reads[0].cancelled()


async def test_a_router_that_is_full_of_agents_refuses_the_next_one() -> None:
    async with router(streams_max=1) as to:
        async with agent(to) as first:
            await first.say(snapshot_message())
            async with agent(to) as second:
                assert await ended(second) is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await first.say(snapshot_message(sequence=2))).verdict == APPLIED
        await until(lambda: to.ingest.streams_open == 0)
        async with agent(to) as third:
            assert (await third.say(snapshot_message(sequence=3))).verdict == APPLIED


async def test_one_stream_may_report_so_many_nodes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "NODES_PER_STREAM_MAX", 2)
    async with router() as to, agent(to) as stream:
        verdicts = [
            (await stream.say(snapshot_message(node_id=f"gpu-{n}", host=f"10.0.0.{n + 1}:80"))).verdict
            for n in range(3)
        ]
        assert verdicts == [APPLIED, APPLIED, REFUSED]
        assert (await stream.say(snapshot_message(node_id="gpu-1", host="10.0.0.2:80", sequence=2))).verdict == APPLIED


async def test_a_message_over_the_limit_ends_the_stream_and_not_the_server() -> None:
    models = ModelList(models=[ServedModel(name="x" * 256)] * 256)
    async with router(message_bytes_max=16 * 1024) as to:
        async with agent(to) as stream:
            await stream.call.write(AgentMessage(snapshot=snapshot_message(models=models)))
            assert await ended(stream) is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with agent(to) as stream:
            assert (await stream.say(snapshot_message())).verdict == APPLIED


async def test_every_refused_node_is_named_in_the_log_and_none_fills_it() -> None:
    async with router() as to, agent(to) as stream:
        for number in range(20):
            await stream.say(snapshot_message(node_id=f"gpu-{number % 2}", host="8.8.8.8:80", sequence=number))
        assert [one["node_id"] for one in to.events("message of an agent refused")] == ["gpu-0", "gpu-1"]


async def test_the_log_of_refused_nodes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complaints, "COMPLAINTS_KEPT_MAX", 3)
    async with router() as to, agent(to) as stream:
        for number in range(20):
            await stream.say(snapshot_message(node_id=f"gpu-{number}", host="8.8.8.8:80", sequence=number))
        assert 3 <= len(to.events("message of an agent refused")) <= 4


async def test_a_node_of_two_live_streams_is_logged_but_not_every_time() -> None:
    async with router() as to, agent(to) as one, agent(to) as two:
        for sequence in range(1, 20, 2):
            await one.say(snapshot_message(sequence=sequence))
            await two.say(snapshot_message(sequence=sequence + 1))
        (told,) = to.events("node reported by two streams")
        assert told["node_id"] == "gpu-1"
        assert [told[name].partition(":")[0] for name in ("peer", "other")] == ["ipv4", "ipv4"]


async def test_a_node_that_moves_to_another_stream_is_not_logged() -> None:
    async with router() as to:
        for sequence in (1, 2):
            async with agent(to) as stream:
                await stream.say(snapshot_message(sequence=sequence))
            await until(lambda: to.ingest.streams_open == 0)
        assert to.events("node reported by two streams") == []


async def test_verdicts_are_counted() -> None:
    async with router() as to, agent(to) as stream:
        for message in (snapshot_message(), snapshot_message(), snapshot_message(host="no")):
            await stream.say(message)
        page = to.metrics.page([]).decode()
        for verdict in ("applied", "ignored", "refused"):
            assert f'extproc_snapshots_total{{verdict="{verdict}"}} 1.0' in page
