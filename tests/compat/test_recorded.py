"""What agents and routers of earlier releases said, said again to those of today."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from extproc.address import TcpAddress
from extproc.agent.push import RouterLink
from extproc.fleet import Fleet
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, RouterMessage
from tests.compat.conversations import Conversation, conversation, messages_of
from tests.compat.grown import grown
from tests.compat.record import METHOD
from tests.waiting import until

RELEASES = ["v0_1", "v0_2"]


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def spoken(release: str) -> Conversation:
    return conversation(release)


def agents_messages(spoken: Conversation) -> list[AgentMessage]:
    return [AgentMessage.FromString(one) for _, who, one in spoken.said if who == "agent"]


def answers(spoken: Conversation) -> list[Acknowledgement]:
    return [RouterMessage.FromString(one).acknowledgement for _, who, one in spoken.said if who == "router"]


def test_the_conversation_has_all_that_agents_and_routers_say(spoken: Conversation) -> None:
    kinds = Counter((one.WhichOneof("message"), one.quiet) for one in agents_messages(spoken))
    assert kinds.keys() >= {(kind, quiet) for kind in ("snapshot", "snapshots") for quiet in (True, False)}
    assert {kind for kind, _ in kinds} == {"snapshot", "snapshots", "kv_blocks", "goodbye"}
    reports = [one.snapshot for one in agents_messages(spoken) if one.HasField("snapshot")]
    assert {one.HasField("models") for one in reports} == {True, False}
    everything = [
        report
        for one in agents_messages(spoken)
        for report in (one.snapshot, *one.snapshots.snapshots)
        if report.node_id
    ]
    assert {one.state for one in everything} == {1, 2, 3}
    assert Counter(one.verdict for one in answers(spoken)).keys() == {1, 2, 3}


@pytest.mark.parametrize("said", [lambda message: message, partial(grown, AgentMessage)], ids=["then", "later"])
async def test_routers_take_each_message_as_they_did(
    spoken: Conversation, said: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    async with Fleet(tmp_path) as fleet:
        serve = await fleet.serve({})
        async with grpc.aio.insecure_channel(str(serve.agents)) as channel:
            streams: dict[int, Any] = {}
            for place, (number, who, message) in enumerate(spoken.said):
                if place == spoken.nodes_after:
                    await until(lambda: shown_as_then(fleet, f"http://{serve.admin}/nodes", spoken.nodes))
                if number not in streams:
                    for before in streams.values():
                        await taken_to_the_end(before)
                    streams[number] = channel.stream_stream(METHOD)()
                if who == "agent":
                    await streams[number].write(said(message))
                else:
                    answer = RouterMessage.FromString(await asyncio.wait_for(streams[number].read(), 10))
                    assert heard(answer.acknowledgement) == heard(RouterMessage.FromString(message).acknowledgement)
            await taken_to_the_end(streams[number])
        assert (await fleet.json(f"http://{serve.admin}/nodes"))["nodes"] == []


async def taken_to_the_end(stream: Any) -> None:
    await stream.done_writing()
    assert await asyncio.wait_for(stream.read(), 10) is grpc.aio.EOF


def heard(one: Acknowledgement) -> tuple[object, ...]:
    """What agents of then read of an acknowledgement."""
    return one.node_id, one.sequence, one.verdict, bool(one.reason), one.takes_several


async def shown_as_then(fleet: Fleet, url: str, nodes: dict[str, dict[str, Any]]) -> bool:
    shown = {one["node_id"]: one for one in (await fleet.json(url))["nodes"]}
    found = {name: {key: shown[name].get(key) for key in then} for name, then in nodes.items() if name in shown}
    return found == nodes


class PastRouter(grpc.GenericRpcHandler):
    """Speaks as a router of then: with its own messages, which know no later field, or just what it said then."""

    def __init__(self, messages: dict[str, Any], lines: list[bytes] | None = None) -> None:
        self.heard: list[Any] = []
        self.lines_said = asyncio.Event()
        self._messages = messages
        self._lines = lines

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        assert handler_call_details.method == METHOD
        return grpc.stream_stream_rpc_method_handler(self._report)

    async def _report(self, messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        for line in self._lines or ():
            yield line
        self.lines_said.set()
        async for message in messages:
            told = self._messages["extproc.pb.AgentMessage"].FromString(message)
            self.heard.append(told)
            if told.quiet:
                continue
            last = told.snapshots.snapshots[-1] if told.HasField("snapshots") else told.snapshot
            answer = self._messages["extproc.pb.RouterMessage"]()
            answer.acknowledgement.node_id, answer.acknowledgement.verdict = last.node_id, 1
            answer.acknowledgement.sequence, answer.acknowledgement.takes_several = last.sequence, True
            yield answer.SerializeToString()


@contextlib.asynccontextmanager
async def past_router(router: PastRouter) -> AsyncIterator[TcpAddress]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((router,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield TcpAddress("127.0.0.1", port)
    finally:
        await server.stop(0)


def test_agents_read_each_answer_as_they_did(spoken: Conversation, release: str, tmp_path: Path) -> None:
    then = messages_of(release, "nodes", tmp_path)["extproc.pb.RouterMessage"]
    for _, who, line in spoken.said:
        if who == "router":
            answer = RouterMessage.FromString(line)
            assert heard(answer.acknowledgement) == heard(then.FromString(line).acknowledgement)  # type: ignore[attr-defined]
            assert answer.acknowledgement.router == ""


async def test_agents_of_today_live_with_the_answers_of_then(
    spoken: Conversation, release: str, tmp_path: Path
) -> None:
    lines = [line for _, who, line in spoken.said if who == "router"]
    router = PastRouter(messages_of(release, "nodes", tmp_path), lines)
    with structlog.testing.capture_logs() as logged:
        async with past_router(router) as at:
            link = RouterLink(at, 1.0, asyncio.get_running_loop().time, structlog.get_logger())
            running = asyncio.create_task(link.run())
            await until(lambda: link.shown()["connected"] and router.lines_said.is_set())
            refused = {one.node_id for one in answers(spoken) if one.verdict == Acknowledgement.VERDICT_REFUSED}
            await until(lambda: {one["node_id"] for one in logged if one["event"] == "snapshot refused"} == refused)
            link.leave()
            await asyncio.wait_for(running, 10)
    assert not {"router lost", "router not reached"} & {one["event"] for one in logged}
