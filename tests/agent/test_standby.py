"""Which reports a stream is spared of."""

from dataclasses import dataclass, field

import pytest

from extproc.agent.standby import IDLE_LINK_S, Standby
from extproc.agent.wire import Report
from extproc.core.snapshot import NodeState, Snapshot
from extproc.nodes.ingest import SILENCE_S_MAX
from extproc.pb.nodes_pb2 import Acknowledgement

APPLIED = Acknowledgement.VERDICT_APPLIED
IGNORED = Acknowledgement.VERDICT_IGNORED
REFUSED = Acknowledgement.VERDICT_REFUSED
MISSED = Acknowledgement.VERDICT_MISSED
READY = NodeState.READY


def report(sequence: int, node_id: str = "n", boot_id: str = "b.0", state: NodeState = READY) -> Report:
    return Report(Snapshot(node_id, "10.0.0.1:80", boot_id, sequence, 0.0, state), 0.0)


@dataclass
class Stream:
    """A stream to router `r`, and the bus, in the hands of a test."""

    now_s: float = 100.0
    heard: set[str] = field(default_factory=lambda: {"r"})

    def __post_init__(self) -> None:
        self.standby = Standby(self.heard.__contains__, lambda: self.now_s)

    def answer(self, sequence: int, verdict: Acknowledgement.Verdict.ValueType = IGNORED, node_id: str = "n") -> None:
        told = Acknowledgement(node_id=node_id, sequence=sequence, verdict=verdict, router="r")
        self.standby.acknowledged(told, self.now_s)


def rested() -> Stream:
    """A stream whose router has the node's reports by the bus."""
    stream = Stream()
    stream.standby.begin({})
    assert stream.standby.needs(report(1))
    stream.answer(1)
    assert not stream.standby.needs(report(2))
    return stream


def test_what_the_router_had_already_is_spared_from_then_on() -> None:
    stream = rested()
    assert not stream.standby.needs(report(3))
    assert stream.standby.needs(report(1, "o"))  # of another node it has not said so


@pytest.mark.parametrize("verdict", [APPLIED, REFUSED])
def test_what_the_router_did_not_have_is_sent_on(verdict: Acknowledgement.Verdict.ValueType) -> None:
    stream = Stream()
    stream.standby.begin({})
    assert stream.standby.needs(report(1))
    stream.answer(1, verdict)
    assert stream.standby.needs(report(2))


@pytest.mark.parametrize("verdict", [MISSED, REFUSED])
def test_what_was_spared_of_a_node_that_the_router_misses_goes_out(verdict: Acknowledgement.Verdict.ValueType) -> None:
    stream = rested()
    stream.standby.needs(report(1, "o"))
    stream.answer(1, node_id="o")
    assert not stream.standby.needs(report(2, "o"))
    stream.answer(0, verdict)
    assert stream.standby.missed() == {"n"}
    assert stream.standby.missed() == set()
    assert stream.standby.needs(report(3))
    stream.answer(3)
    assert not stream.standby.needs(report(4))


def test_of_a_missed_node_of_which_nothing_was_spared_the_next_report_goes_out() -> None:
    stream = Stream()
    stream.standby.begin({})
    assert stream.standby.needs(report(1))
    stream.answer(1)
    stream.answer(0, MISSED)
    assert stream.standby.missed() == set()
    assert stream.standby.needs(report(2))


def test_a_report_that_the_stream_before_may_have_brought_shows_nothing() -> None:
    stream = rested()
    stream.standby.begin({"n": report(1)})
    stream.answer(1)
    assert stream.standby.needs(report(2))
    stream.answer(2)
    assert not stream.standby.needs(report(3))


def test_an_answer_to_an_earlier_report_shows_nothing() -> None:
    stream = Stream()
    stream.standby.begin({})
    assert stream.standby.needs(report(1))
    assert stream.standby.needs(report(2))
    stream.answer(1)
    stream.answer(0)
    assert stream.standby.needs(report(3))


def test_a_node_that_was_never_told_is_not_remembered() -> None:
    stream = rested()
    stream.answer(7, node_id="who")
    assert stream.standby.needs(report(7, "who"))


def test_it_is_asked_again_and_sooner_than_the_router_loses_patience() -> None:
    stream = rested()
    stream.now_s += IDLE_LINK_S - 0.001
    assert not stream.standby.needs(report(3))
    stream.now_s += 0.001
    assert stream.standby.needs(report(4))
    assert stream.standby.needs(report(5))  # until it says again that it had it
    stream.answer(5)
    assert not stream.standby.needs(report(6))
    assert IDLE_LINK_S * 2 < SILENCE_S_MAX


@pytest.mark.parametrize("changed", [report(3, state=NodeState.DRAINING), report(1, boot_id="b.1")])
def test_what_a_node_becomes_goes_out_and_then_it_is_spared_again(changed: Report) -> None:
    stream = rested()
    assert stream.standby.needs(changed)
    again = report(9, boot_id=changed.snapshot.boot_id, state=changed.snapshot.state)
    assert not stream.standby.needs(again)


def test_once_the_router_is_not_heard_what_was_spared_goes_out() -> None:
    stream = rested()
    assert stream.standby.missed() == set()
    stream.heard.clear()
    assert stream.standby.missed() == {"n"}
    assert stream.standby.missed() == set()
    assert stream.standby.needs(report(3))
    stream.heard.add("r")
    assert stream.standby.needs(report(4))  # what was known does not count any more


def test_nothing_waits_for_the_bus_before_the_router_is_known_to_be_there() -> None:
    stream = Stream()
    stream.standby.begin({})
    assert not stream.standby.is_second
    stream.standby.acknowledged(Acknowledgement(router=""), 0.0)
    assert not stream.standby.is_second
    stream.standby.acknowledged(Acknowledgement(router="r"), 0.0)
    assert stream.standby.is_second
    stream.standby.begin({})
    assert not stream.standby.is_second
