from dataclasses import replace

import pytest

from extproc.agent.drain import Drain
from extproc.agent.engines.reading import EngineReading
from extproc.agent.watch import Sighting
from extproc.core.snapshot import NodeState

READY, LOADING = NodeState.READY, NodeState.LOADING


def seen(
    running: int | None = 0,
    waiting: int | None = 0,
    *,
    at_s: float = 20.0,
    state: NodeState = READY,
    gone: bool = False,
) -> Sighting:
    reading = EngineReading(requests_running=running, requests_waiting=waiting)
    return Sighting(state, None, None, None, reading, at_s, generation=0, gone=gone)


def draining(*looks: Sighting) -> Drain:
    """One that was ready, and drains since 10 s; the looks begin at 20 s."""
    drain = Drain()
    drain.saw(seen(at_s=5.0), 5.0)
    drain.begin(10.0)
    for look in looks:
        drain.saw(look, 20.0)
    return drain


@pytest.mark.parametrize(
    ("looks", "empty"),
    [
        ([], False),
        ([seen()], False),  # a request may be on its way
        ([seen(), seen()], True),
        ([seen(), seen(1), seen()], False),
        ([seen(), seen(), seen(0, 1)], False),
        ([seen(None), seen(None)], False),  # not told
        ([seen(0, None), seen(0, None)], False),
        ([seen(at_s=5.0), seen(at_s=5.0)], False),  # the sample of before
        ([seen(None, None, state=LOADING)], False),
        ([seen(None, None, state=LOADING, gone=True)], True),
    ],
)
def test_it_is_empty_once_two_looks_in_a_row_show_no_request_or_the_engine_is_gone(
    looks: list[Sighting], empty: bool
) -> None:
    assert draining(*looks).is_empty is empty


def test_looks_that_began_before_do_not_count() -> None:
    drain = draining(seen())
    drain.saw(seen(at_s=9.0), 9.0)
    assert not drain.is_empty


def test_what_does_not_drain_is_not_empty_and_begins_anew() -> None:
    drain = draining(seen(), seen())
    drain.end()
    assert not drain.is_empty
    drain.begin(15.0)
    assert not drain.is_empty
    drain.saw(seen(), 20.0)
    drain.saw(seen(), 20.0)
    assert drain.is_empty


def test_an_engine_that_never_was_ready_has_nothing() -> None:
    drain = Drain()
    drain.saw(seen(None, None, state=LOADING), 5.0)
    drain.begin(10.0)
    assert drain.is_empty


BACK = replace(seen(), generation=1)
GONE = seen(None, None, state=LOADING, gone=True)


@pytest.mark.parametrize(
    ("looks", "on"),
    [
        ([seen()], True),
        ([BACK], False),
        ([GONE], True),
        ([GONE, seen()], False),  # not seen before it went: its generation is what it was
        ([replace(BACK, state=LOADING)], True),  # started, and not ready
        ([replace(BACK, state=LOADING), BACK], False),
        ([seen(state=LOADING), seen()], True),  # a health check failed, and that was all
    ],
)
def test_it_ends_once_the_engine_began_anew_and_is_ready_unless_held(looks: list[Sighting], on: bool) -> None:
    assert draining(*looks).on is on
    held = draining()
    held.begin(11.0, hold=True)
    held.begin(12.0)  # as a preStop may ask for a drain that somebody holds
    assert [held.saw(look, 20.0) for look in looks] == [False] * len(looks)
    assert held.on


def test_an_end_is_told_once_and_a_later_drain_is_held_no_more() -> None:
    drain = draining()
    assert [drain.saw(BACK, 20.0), drain.saw(BACK, 21.0)] == [True, False]
    drain.begin(22.0, hold=True)
    drain.end()
    drain.begin(23.0)
    assert drain.saw(replace(BACK, generation=2), 24.0)


def test_an_engine_that_began_anew_before_does_not_end_it() -> None:
    drain = draining(BACK)
    drain.begin(30.0)
    drain.saw(BACK, 31.0)
    drain.saw(replace(BACK, generation=2), 29.0)  # a look from before it
    assert drain.on
