"""What one router is told of prefix caches, stream by stream."""

from collections.abc import Sequence

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.discovery import Routers
from extproc.agent.kv import told as kvtold
from extproc.agent.kv.blocks import EngineBlocks
from extproc.agent.kv.told import ANEW_S_MAX, ANEW_S_MIN, NUMBERS_MAX, KvTold
from extproc.agent.kv.watch import KvReport
from extproc.agent.settings import AgentConfig, parse
from extproc.agent.wire import Report
from extproc.core.snapshot import NodeState, Snapshot
from extproc.pb.nodes_pb2 import Acknowledgement, KvBlocks

NOW_S = 1000.0


class Has(EngineBlocks):
    """Stands for what an engine has."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(1)
        for number in numbers:
            self._numbers.hold(number)


def report(
    everything: Sequence[int] | None,
    stored: Sequence[int] = (),
    removed: Sequence[int] = (),
    node_id: str = "n",
    boot_id: str = "b",
) -> KvReport:
    return KvReport(node_id, boot_id, None if everything is None else Has(everything), stored, removed)


def said(told: KvTold) -> list[KvBlocks]:
    messages = []
    while told:
        message = told.message()
        assert message.quiet
        messages.append(message.kv_blocks)
    return messages


def refused(
    told: KvTold, reason: str = "kv_blocks.sequence: wanted 3, got 4", node_id: str = "n", at_s: float = NOW_S
) -> bool:
    return told.refused(Acknowledgement(node_id=node_id, reason=reason), at_s)


class Listener:
    """A router that follows what it is told, and keeps to what the protocol says."""

    def __init__(self) -> None:
        self.has: set[int] | None = None
        self.boot_id = ""
        self.sequence: int | None = None

    def hear(self, messages: Sequence[KvBlocks]) -> None:
        for one in messages:
            assert one.all or (one.sequence == self.sequence and one.boot_id == self.boot_id)
            assert len(one.stored) + len(one.removed) <= NUMBERS_MAX
            assert one.ByteSize() <= 128 * 1024 + 300
            self.sequence, self.boot_id = one.sequence + 1, one.boot_id
            if one.all:
                self.has = set(one.stored) if one.stored else None
            else:
                self.has = (set(self.has or ()) - set(one.removed)) | set(one.stored)


def test_a_stream_begins_with_everything_and_goes_on_with_changes() -> None:
    told = KvTold()
    told.offer(report([1, 2, 3], stored=[3]), NOW_S)
    told.offer(report([2, 3, 4], stored=[4], removed=[1]), NOW_S)
    first, *changes = said(told)
    assert (first.all, first.sequence, sorted(first.stored)) == (True, 1, [1, 2, 3])
    assert [(one.all, one.sequence, list(one.stored), list(one.removed)) for one in changes] == [
        (False, 2, [], [1]),
        (False, 3, [4], []),
    ]
    told.offer(report([2, 3, 4]), NOW_S)
    assert not told, "nothing changed"
    told.begin()
    told.offer(report([2, 3, 4]), NOW_S)
    (again,) = said(told)
    assert (again.all, again.sequence, sorted(again.stored)) == (True, 1, [2, 3, 4])


def test_what_does_not_fit_into_one_message_stands_in_those_behind_it() -> None:
    told, listener = KvTold(), Listener()
    told.offer(report(range(2 * NUMBERS_MAX + 1)), NOW_S)
    messages = said(told)
    assert [one.all for one in messages] == [True, False, False]
    listener.hear(messages)
    assert listener.has == set(range(2 * NUMBERS_MAX + 1))
    told.offer(report(range(1), removed=range(1, 2 * NUMBERS_MAX + 1)), NOW_S)
    messages = said(told)
    assert len(messages) == 2
    listener.hear(messages)
    assert listener.has == {0}


def test_what_is_not_known_is_told_as_that_and_once() -> None:
    told = KvTold()
    told.offer(report(None), NOW_S)
    assert not told, "nothing was told that would have to be taken back"
    told.offer(report([1]), NOW_S)
    said(told)
    for _ in range(2):
        told.offer(report(None, removed=[1]), NOW_S)
    (message,) = said(told)
    assert (message.all, message.boot_id, list(message.stored), message.sequence) == (True, "b", [], 2)
    told.offer(report([5], stored=[5]), NOW_S)
    (message,) = said(told)
    assert (message.all, list(message.stored)) == (True, [5])


def test_an_engine_that_began_anew_is_told_anew() -> None:
    told = KvTold()
    told.offer(report([1], boot_id="b1"), NOW_S)
    told.offer(report([2], stored=[2], boot_id="b2"), NOW_S)
    (message,) = said(told)
    assert (message.all, message.boot_id, list(message.stored)) == (True, "b2", [2])


def test_each_node_has_its_own_numbers() -> None:
    told = KvTold()
    for node_id in ("n", "o"):
        told.offer(report([1], node_id=node_id), NOW_S)
        told.offer(report([1, 2], stored=[2], node_id=node_id), NOW_S)
    assert [(one.node_id, one.sequence) for one in said(told)] == [("n", 1), ("n", 2), ("o", 1), ("o", 2)]


def test_a_slow_router_is_told_everything_instead_of_too_many_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvtold, "WAITING_MAX", 10)
    told = KvTold()
    told.offer(report([1]), NOW_S)
    for number in range(5):
        told.offer(report([number], stored=[number], removed=[number + 1]), NOW_S)
    assert len(said(told)) == 11
    for number in range(5):
        told.offer(report([number], stored=[number], removed=[number + 1]), NOW_S)
    told.offer(report([7, 8], stored=[7]), NOW_S)
    (message,) = said(told)
    assert (message.all, sorted(message.stored)) == (True, [7, 8])


def test_a_router_that_refuses_is_told_everything_anew_each_time_later() -> None:
    told = KvTold()
    told.offer(report([1]), NOW_S)
    pause_s, now_s = ANEW_S_MIN, NOW_S
    for _ in range(9):
        told.offer(report([1, 2], stored=[2]), now_s)
        assert refused(told, at_s=now_s)
        assert not told
        told.offer(report([1, 2, 3], stored=[3]), now_s + pause_s - 0.01)
        assert not told
        now_s += pause_s
        told.offer(report([1, 2, 3]), now_s)
        (message,) = said(told)
        assert (message.all, len(message.stored)) == (True, 3)
        pause_s = min(2 * pause_s, ANEW_S_MAX)
    assert pause_s == ANEW_S_MAX


def test_refusals_of_other_messages_change_nothing() -> None:
    told = KvTold()
    told.offer(report([1]), NOW_S)
    assert not refused(told, "host: wanted ip:port")
    assert not refused(told, node_id="o")
    assert len(said(told)) == 1


def test_a_router_that_does_not_know_them_is_told_no_more_on_this_stream() -> None:
    told = KvTold()
    told.offer(report([1]), NOW_S)
    said(told)
    assert not refused(told, "message: wanted a snapshot or a goodbye, got neither", node_id="")
    told.offer(report([1, 2], stored=[2]), NOW_S)
    assert not told
    told.begin()
    told.offer(report([1, 2]), NOW_S)
    assert told


async def test_a_router_that_is_found_later_is_told_what_there_is_then() -> None:
    """A report's changes mean nothing to who did not hear those before, nor what there was, once more was heard."""
    config = parse({"engines": [{"node_id": "n", "engine": "http://127.0.0.1:8000"}]})
    assert isinstance(config, AgentConfig)
    routers = Routers(config, lambda: NOW_S, structlog.get_logger())
    snapshot = Snapshot("n", "10.0.0.1:80", "b", 1, 0.0, NodeState.READY)
    routers.offer(Report(snapshot, NOW_S, report([1])))
    assert routers._latest["n"] == Report(snapshot, NOW_S)


@given(
    st.lists(
        st.one_of(
            st.sets(st.integers(0, 12)),
            st.sampled_from(["read", "unknown", "refused", "boot", "stream"]),
        ),
        max_size=40,
    )
)
def test_whoever_hears_all_messages_knows_what_there_is(steps: list[set[int] | str]) -> None:
    told, listener = KvTold(), Listener()
    has: set[int] = set()
    known, boots, now_s = True, 0, NOW_S
    for step in steps:
        now_s += ANEW_S_MAX
        match step:
            case set():
                told.offer(report(sorted(step), sorted(step - has), sorted(has - step), boot_id=f"b{boots}"), now_s)
                has, known = step, True
            case "unknown":
                told.offer(report(None, removed=sorted(has)), now_s)
                has, known = set(), False
            case "boot":
                boots += 1
            case "stream":
                told.begin()
                listener = Listener()
            case "refused":
                refused(told, at_s=now_s)
            case _:
                listener.hear(said(told))
    told.offer(report(sorted(has), boot_id=f"b{boots}") if known else report(None), now_s + ANEW_S_MAX)
    listener.hear(said(told))
    assert (listener.has or set()) == has
