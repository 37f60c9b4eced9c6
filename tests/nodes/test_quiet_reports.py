"""What is acknowledged, reports that come together, and what need not be told again."""

import pytest

from extproc.core.snapshot import SNAPSHOTS_TOGETHER_MAX, ServedModel
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, Goodbye, ModelList, NodeSnapshot, Snapshots
from extproc.pb.nodes_pb2 import ServedModel as ModelMessage
from tests.nodes.loopback import Agent, Router, agent, router
from tests.nodes.messages import snapshot_message

APPLIED = Acknowledgement.VERDICT_APPLIED
IGNORED = Acknowledgement.VERDICT_IGNORED
REFUSED = Acknowledgement.VERDICT_REFUSED
ONE = (ServedModel("m", "1", 8192),)


def quiet(snapshot: NodeSnapshot) -> AgentMessage:
    return AgentMessage(snapshot=snapshot, quiet=True)


def together(*snapshots: NodeSnapshot, quiet: bool = False) -> AgentMessage:
    return AgentMessage(snapshots=Snapshots(snapshots=snapshots), quiet=quiet)


def numbered(nodes: int, sequence: int = 1) -> list[NodeSnapshot]:
    return [snapshot_message(node_id=f"gpu-{n}", host=f"10.0.0.{n + 1}:80", sequence=sequence) for n in range(nodes)]


def models_of(to: Router, node_id: str = "gpu-1") -> tuple[ServedModel, ...] | None:
    snapshot = to.snapshot(node_id)
    assert snapshot is not None
    return snapshot.models


async def told(stream: Agent, *messages: AgentMessage) -> Acknowledgement:
    """The first acknowledgement of these messages and a last one that is not quiet."""
    for message in messages:
        await stream.call.write(message)
    return await stream.say(snapshot_message(node_id="last", host="10.0.0.99:80"))


async def test_what_is_quiet_and_applied_is_not_acknowledged() -> None:
    async with router() as to, agent(to) as stream:
        answer = await told(stream, quiet(snapshot_message()), quiet(snapshot_message(sequence=2)))
        assert (answer.node_id, answer.verdict) == ("last", APPLIED)
        taken = to.snapshot()
        assert taken is not None
        assert taken.sequence == 2


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        (quiet(snapshot_message()), IGNORED),
        (quiet(snapshot_message(sequence=2, host="8.8.8.8:80")), REFUSED),
        (AgentMessage(goodbye=Goodbye(node_id="gpu-1", boot_id="other"), quiet=True), IGNORED),
        (AgentMessage(quiet=True), REFUSED),
    ],
)
async def test_what_is_quiet_and_not_applied_is_acknowledged(
    message: AgentMessage, verdict: Acknowledgement.Verdict.ValueType
) -> None:
    async with router() as to, agent(to) as stream:
        await stream.say(snapshot_message())
        assert (await told(stream, message)).verdict == verdict


async def test_of_several_reports_the_last_is_acknowledged_and_those_that_are_not_applied() -> None:
    async with router() as to, agent(to) as stream:
        reports = numbered(4)
        reports[1].host = "8.8.8.8:80"
        await stream.call.write(together(*reports))
        answers = [await told(stream), await stream.heard(), await stream.heard()]
        verdicts = [(one.node_id, one.verdict) for one in answers]
        assert verdicts == [("gpu-1", REFUSED), ("gpu-3", APPLIED), ("last", APPLIED)]
        assert {view.snapshot.node_id for view in to.balancer.views()} == {"gpu-0", "gpu-2", "gpu-3", "last"}


async def test_several_quiet_reports_are_not_acknowledged_at_all() -> None:
    async with router() as to, agent(to) as stream:
        assert (await told(stream, together(*numbered(3), quiet=True))).node_id == "last"
        assert len(to.balancer.views()) == 4


@pytest.mark.parametrize(
    ("nodes", "verdict"), [(0, REFUSED), (SNAPSHOTS_TOGETHER_MAX, APPLIED), (SNAPSHOTS_TOGETHER_MAX + 1, REFUSED)]
)
async def test_so_many_reports_may_come_together_and_no_more(
    nodes: int, verdict: Acknowledgement.Verdict.ValueType
) -> None:
    async with router() as to, agent(to) as stream:
        answer = await stream.say(together(*numbered(nodes)))
        assert answer.verdict == verdict
        assert len(to.balancer.views()) == (nodes if verdict == APPLIED else 0)


async def test_models_that_are_not_told_are_those_that_the_boot_told_before() -> None:
    more = ModelList(models=[ModelMessage(name="m", version="1", context_length_tokens=8192), ModelMessage(name="a")])
    async with router() as to, agent(to) as stream:
        for sequence, models, known in (
            (1, ModelList(models=more.models[:1]), ONE),
            (2, None, ONE),
            (3, more, (*ONE, ServedModel("a"))),
            (4, None, (*ONE, ServedModel("a"))),
            (5, ModelList(), ()),
            (6, None, ()),
        ):
            await stream.say(snapshot_message(sequence=sequence, models=models))
            assert models_of(to) == known


async def test_a_list_that_comes_again_and_again_is_read_once() -> None:
    async with router() as to, agent(to) as stream:
        await stream.say(snapshot_message())
        first = models_of(to)
        for sequence in (2, 3):
            await stream.say(snapshot_message(sequence=sequence))
            assert models_of(to) is first


async def test_what_is_wrong_is_refused_in_a_later_report_as_in_the_first() -> None:
    wrong = ModelList(models=[ModelMessage(name="")])
    async with router() as to, agent(to) as stream:
        await stream.say(snapshot_message())
        for changes in ({"host": "10.0.0.1:99999"}, {"boot_id": "a b"}, {"models": wrong}, {"kv_cache_usage": 2.0}):
            assert (await stream.say(snapshot_message(sequence=2, **changes))).verdict == REFUSED
        assert models_of(to) == ONE


async def test_a_goodbye_makes_room_for_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.nodes.reports.NODES_PER_STREAM_MAX", 1)
    async with router() as to, agent(to) as stream:
        first, second = numbered(2)
        await stream.say(first)
        assert (await stream.say(second)).verdict == REFUSED
        await stream.say(AgentMessage(goodbye=Goodbye(node_id=first.node_id, boot_id=first.boot_id)))
        assert (await stream.say(second)).verdict == APPLIED
