"""What is absent and why, on its way from an agent to a router."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.agent import wire as agent_wire
from extproc.config import Config
from extproc.core.snapshot import REASON_CHARS_MAX, SIGNALS, NodeState, Snapshot
from extproc.nodes import wire
from extproc.pb.nodes_pb2 import AbsentSignal
from tests.nodes.messages import snapshot_message

HOSTS = Config().hosts_allowed


def heard(*absent: tuple[str, str]) -> Snapshot | str:
    listed = [AbsentSignal(signal=signal, reason=reason) for signal, reason in absent]
    return wire.snapshot_of(snapshot_message(absent=listed), HOSTS)


def told_in(snapshot: Snapshot | str) -> tuple[tuple[str, str], ...]:
    assert isinstance(snapshot, Snapshot), snapshot
    return snapshot.absent


def said(**changes: Any) -> Snapshot | str:
    """What a router hears of an agent's snapshot."""
    sound = wire.snapshot_of(snapshot_message(), HOSTS)
    assert isinstance(sound, Snapshot)
    report = agent_wire.Report(dataclasses.replace(sound, **changes), sampled_at_s=10.0)
    return wire.snapshot_of(agent_wire.snapshot_message(report, now_s=10.0).snapshot, HOSTS)


def test_every_signal_may_be_absent_and_they_come_sorted() -> None:
    absent = [(signal, f"{signal} is missing") for signal in sorted(SIGNALS, reverse=True)]
    assert told_in(heard(*absent)) == tuple(sorted(absent))


def test_signals_of_other_versions_are_left_out_and_the_last_word_of_each_counts() -> None:
    assert told_in(heard(("from_tomorrow", "gone"), ("kv_usage", "a"), ("", "b"), ("kv_usage", "c"))) == (
        ("kv_usage", "c"),
    )


def test_a_reason_may_be_empty_or_as_long_as_it_may_be() -> None:
    whole = (("kv_usage", ""), ("models", "é" * REASON_CHARS_MAX))
    assert told_in(heard(*whole)) == whole


@pytest.mark.parametrize("reason", ["x" * (REASON_CHARS_MAX + 1), "a\nb", "\x1b[2J", "a\u202eb", "\0"])
@pytest.mark.parametrize("signal", ["kv_usage", "from_tomorrow"])
def test_a_reason_that_is_too_long_or_not_printable_is_refused(signal: str, reason: str) -> None:
    refusal = heard(("models", "sound"), (signal, reason))
    assert isinstance(refusal, str)
    assert refusal.startswith("absent.1.reason: wanted at most 300 printable characters, got ")
    assert refusal.isprintable()
    assert len(refusal) < 200


def test_there_may_be_only_so_many() -> None:
    assert isinstance(heard(*[("kv_usage", "x")] * wire.ABSENT_MAX), Snapshot)
    assert heard(*[("kv_usage", "x")] * (wire.ABSENT_MAX + 1)) == "absent: wanted at most 64, got 65"
    assert len(SIGNALS) <= wire.ABSENT_MAX


@given(st.dictionaries(st.sampled_from(sorted(SIGNALS)), st.text(max_size=REASON_CHARS_MAX + 20)))
def test_whatever_an_engine_says_its_agent_tells_what_routers_take(reasons: dict[str, str]) -> None:
    absent = told_in(said(absent=tuple(sorted(reasons.items()))))
    assert [signal for signal, _ in absent] == sorted(reasons)
    for signal, reason in absent:
        whole = reasons[signal]
        assert len(reason) == min(len(whole), REASON_CHARS_MAX)
        if whole.isprintable() and len(whole) <= REASON_CHARS_MAX:
            assert reason == whole


@given(st.text(max_size=REASON_CHARS_MAX + 20))
def test_nor_is_a_report_refused_for_why_a_node_is_not_ready(reason: str) -> None:
    snapshot = said(state=NodeState.LOADING, not_ready_reason=reason)
    assert isinstance(snapshot, Snapshot)
    assert snapshot.not_ready_reason == agent_wire.shown_reason(reason)


def test_a_reason_that_was_cut_shows_it() -> None:
    assert agent_wire.shown_reason("x" * REASON_CHARS_MAX) == "x" * REASON_CHARS_MAX
    assert agent_wire.shown_reason("x" * (REASON_CHARS_MAX + 1)) == "x" * (REASON_CHARS_MAX - 1) + "…"
    assert agent_wire.shown_reason("a\nb") == "a?b"
