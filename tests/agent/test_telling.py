from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.telling import MODELS_AGAIN_S, TOGETHER_BYTES_MAX, Telling
from extproc.agent.wire import Report
from extproc.core.snapshot import SNAPSHOTS_TOGETHER_MAX, NodeState, ServedModel, Snapshot
from extproc.pb.nodes_pb2 import Acknowledgement, AgentMessage, NodeSnapshot

APPLIED = Acknowledgement.VERDICT_APPLIED
REFUSED = Acknowledgement.VERDICT_REFUSED
MODELS = (ServedModel("m"),)
FIRST = Snapshot("n", "10.0.0.1:80", "b.0", 1, 0.0, NodeState.READY, models=MODELS)


def said(telling: Telling, snapshot: Snapshot, now_s: float = 0.0) -> NodeSnapshot:
    """A report of one node as it is sent."""
    message = telling.message({snapshot.node_id: None}, {snapshot.node_id: Report(snapshot, now_s)}, now_s)
    assert message.WhichOneof("message") == "snapshot"
    return message.snapshot


def several(telling: Telling, unsent: int, name: str = "n{}") -> list[AgentMessage]:
    """The messages that tell of so many nodes."""
    named = [name.format(number) for number in range(unsent)]
    latest = {node_id: Report(replace(FIRST, node_id=node_id), 0.0) for node_id in named}
    left, messages = dict.fromkeys(latest), []
    while left:
        messages.append(telling.message(left, latest, 0.0))
    told = [one.node_id for message in messages for one in message.snapshots.snapshots or [message.snapshot]]
    assert told == list(latest)
    return messages


def knowing() -> Telling:
    """A stream whose router has said that it takes several reports at once."""
    telling = Telling()
    telling.acknowledged(Acknowledgement(verdict=APPLIED, takes_several=True), 0.0)
    return telling


def test_models_are_told_once_and_again_when_they_or_the_boot_change_and_now_and_then() -> None:
    telling = Telling()
    more = (*MODELS, ServedModel("adapter"))
    reports = [
        (FIRST, 0.0), (FIRST, 1.0), (replace(FIRST, models=more), 2.0), (replace(FIRST, models=more), 3.0),
        (replace(FIRST, models=more, boot_id="b.1"), 4.0), (replace(FIRST, models=more, boot_id="b.1"), 5.0),
        (replace(FIRST, models=None, boot_id="b.1"), 6.0), (replace(FIRST, models=more, boot_id="b.1"), 7.0),
        (replace(FIRST, models=more, boot_id="b.1"), 4.0 + MODELS_AGAIN_S),
        (replace(FIRST, models=more, boot_id="b.1"), 5.0 + MODELS_AGAIN_S), (replace(FIRST, models=()), 70.0),
    ]  # fmt: skip
    told = [said(telling, snapshot, now_s).HasField("models") for snapshot, now_s in reports]
    assert told == [True, False, True, False, True, False, False, False, True, False, True]


def test_a_report_that_was_not_applied_has_the_models_told_again_and_a_new_stream_tells_them() -> None:
    telling = Telling()
    for verdict, again in ((APPLIED, False), (REFUSED, True), (Acknowledgement.VERDICT_IGNORED, True)):
        said(telling, FIRST)
        telling.acknowledged(Acknowledgement(node_id="n", verdict=verdict), 0.0)
        assert said(telling, FIRST).HasField("models") is again
    assert said(Telling(), FIRST).HasField("models")


def test_reports_go_one_by_one_to_a_router_that_does_not_say_that_it_takes_several() -> None:
    telling = Telling()
    telling.acknowledged(Acknowledgement(verdict=APPLIED), 0.0)
    assert [message.WhichOneof("message") for message in several(telling, 3)] == ["snapshot"] * 3


def test_several_reports_are_one_message_to_one_that_does() -> None:
    first, *rest = several(knowing(), 2)
    assert [one.node_id for one in first.snapshots.snapshots] == ["n0", "n1"]
    assert rest == []
    alone = several(knowing(), 1)
    assert [message.WhichOneof("message") for message in alone] == ["snapshot"]


def test_the_last_of_several_is_the_one_that_is_timed() -> None:
    telling = knowing()
    several(telling, 1)
    latest = {"a": Report(replace(FIRST, node_id="a"), 1.0), "n": Report(FIRST, 1.0)}
    message = telling.message({"a": None, "n": None}, latest, 1.0)
    assert not message.quiet
    telling.acknowledged(Acknowledgement(node_id="n", sequence=1, verdict=APPLIED, takes_several=True), 1.25)
    assert said(telling, FIRST, 2.0).round_trip_ms == 250


@given(st.integers(1, 40), st.sampled_from(["{}", "n" * 100 + "{}", "x" * 2000 + "{}"]))
def test_no_message_of_several_is_longer_than_every_router_takes(nodes: int, name: str) -> None:
    messages = several(knowing(), nodes, name)
    for message in messages:
        count = len(message.snapshots.snapshots)
        assert count <= SNAPSHOTS_TOGETHER_MAX
        assert count == 0 or message.ByteSize() <= 1024
    if name == "{}":
        most = max(len(message.snapshots.snapshots) for message in messages)
        assert most == (0 if nodes == 1 else min(nodes, SNAPSHOTS_TOGETHER_MAX))
    assert TOGETHER_BYTES_MAX < 1024


def test_most_messages_are_quiet() -> None:
    telling = Telling()
    asked = 0
    for second in range(100):
        message = telling.message({"n": None}, {"n": Report(replace(FIRST, sequence=second), 0.0)}, float(second))
        if not message.quiet:
            asked += 1
            telling.acknowledged(Acknowledgement(node_id="n", sequence=second, verdict=APPLIED), second + 0.1)
    assert asked == 5 + 9
