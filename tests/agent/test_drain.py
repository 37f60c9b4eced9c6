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
