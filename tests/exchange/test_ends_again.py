"""Ends that a router may have missed, since it was cut off, or we were, before anybody noticed."""

import pytest

from extproc.bus.bus import ENDS, ROUTERS
from extproc.core.outcome import Answered, Ending
from extproc.exchange import endswire, wire
from extproc.exchange.ends import AGAIN_S, TELLINGS_MAX, TOLD_MAX, TOLD_S_MAX, WAITING_MAX, WAITING_S_MAX, EndsTold
from extproc.exchange.wire import Here
from extproc.ops.metrics import Metrics
from tests.exchange.scripted import Line, Router, pass_time


def ids(messages: list[bytes], router: str = "one") -> list[str]:
    """Of the ends in them."""
    found = [endswire.ends_of(message, router, 0.0) for message in messages]
    return [end.request_id for ends in found if isinstance(ends, list) for end in ends]


class Told:
    """Ends of a router that the test hears, and lets come and go."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.heard_s = self.now_s
        self.reached = True
        self.sent: list[bytes] = []
        self.metrics = Metrics()
        self.ends = EndsTold(
            self.sent.append,
            lambda _: self.reached,
            lambda _: self.heard_s,
            lambda: self.now_s,
            self.metrics.exchange,
        )

    def tell(self, *numbers: int) -> None:
        for number in numbers:
            self.ends.tell("one", Answered(f"one-{number}", Ending.SERVED))
        self.flush()

    def flush(self) -> None:
        for _ in range(WAITING_MAX // endswire.ENDS_MAX + 1):
            self.ends.flush()

    def again(self) -> list[str]:
        """What is told again now."""
        self.sent.clear()
        self.ends.again("one")
        self.flush()
        return ids(self.sent)

    def pass_time(self, seconds: float, *, heard: bool = False) -> None:
        self.now_s += seconds
        if heard:
            self.heard_s = self.now_s
        self.flush()

    @property
    def rests(self) -> bool:
        return not self.ends._routers


@pytest.fixture
async def told() -> Told:
    return Told()


@pytest.mark.parametrize("away_s", [4.0, 14.0, 20.0, 300.0])
@pytest.mark.parametrize("cut_off", ["one", "other"])
async def test_counters_come_to_rest_after_a_partition(away_s: float, cut_off: str) -> None:
    line = Line()
    one, other = Router(line, "one"), Router(line, "other")
    for router in (one, other):
        router.connect()
    pass_time(1.0, one, other)
    for number in range(8):
        one.route(f"one-{number}")
        one.balancer.leave(f"one-{number}", one.now_s)
    (cut,) = (router for router in (one, other) if router.exchange._router == cut_off)
    cut.bus.stalled = True  # nobody has noticed yet
    for number in range(4):
        other.exchange.ended(Answered(f"one-{number}", Ending.SERVED))
    pass_time(3.5, one, other)
    for number in range(4, 8):
        other.exchange.ended(Answered(f"one-{number}", Ending.SERVED))
    pass_time(away_s - 3.5, one, other)
    assert one.balancer.requests_open == 8
    cut.bus.stalled = False
    pass_time(1.0, one, other)  # what is said comes before the connection is found to be a new one
    cut.connect()
    pass_time(2.0, one, other)
    assert one.balancer.requests_open == 0
    assert other.counted("extproc_exchange_dropped_total", reason="ends_late") == 0


async def test_what_a_router_was_told_and_spoke_after_is_kept_for_a_while(told: Told) -> None:
    told.tell(1)
    told.pass_time(100.0)
    assert not told.rests, "it has not spoken"
    told.pass_time(1.0, heard=True)
    told.pass_time(TOLD_S_MAX, heard=True)
    assert told.again() == ["one-1"]
    told.pass_time(1.0, heard=True)
    told.pass_time(TOLD_S_MAX + 0.1, heard=True)
    assert told.rests


async def test_what_a_router_was_told_that_never_speaks_is_kept_as_long_as_it_matters(told: Told) -> None:
    told.tell(1)
    told.pass_time(WAITING_S_MAX)
    assert not told.rests
    told.pass_time(0.1)
    assert told.rests


async def test_who_cries_that_it_is_new_is_told_again_now_and_then_and_not_for_ever(told: Told) -> None:
    told.tell(1, 2)
    looks = round(AGAIN_S / 0.05)
    for look in range(20 * looks):
        told.ends.again("one")
        told.pass_time(0.05, heard=True)
        assert len(ids(told.sent)) <= 2 * (2 + look // looks)
    assert len(ids(told.sent)) == 2 * TELLINGS_MAX
    assert told.rests


async def test_a_cry_that_comes_too_soon_is_answered_later(told: Told) -> None:
    told.tell(1)
    assert told.again() == ["one-1"]
    assert told.again() == []
    told.pass_time(AGAIN_S)
    assert ids(told.sent) == ["one-1"]


async def test_an_end_that_is_told_again_has_its_first_date(told: Told) -> None:
    told.tell(1)
    told.pass_time(5.0)
    told.again()
    (ends,) = (endswire.ends_of(message, "one", told.now_s) for message in told.sent)
    assert isinstance(ends, list)
    (end,) = ends
    assert end.at_s == pytest.approx(told.now_s - 5.0)


async def test_ends_that_are_kept_are_bounded_and_each_message_too(told: Told) -> None:
    told.tell(*range(WAITING_MAX))
    told.tell(*range(WAITING_MAX, WAITING_MAX + 5))
    sent = told.again()
    assert len(sent) == TOLD_MAX
    assert sent[-1] == f"one-{WAITING_MAX + 4}"
    assert max(len(ids([message])) for message in told.sent) == endswire.ENDS_MAX


async def test_the_router_of_which_the_most_waits_loses_the_most(told: Told) -> None:
    told.reached = False
    told.ends.tell("few", Answered("few-1", Ending.SERVED))
    for number in range(WAITING_MAX + 10):
        told.ends.tell("one", Answered(f"one-{number}", Ending.SERVED))
    assert told.metrics.exchange.counts["dropped"] == {"ends_late": 11}
    told.reached = True
    told.flush()
    assert ids(told.sent, "few") == ["few-1"]
    assert ids(told.sent)[0] == "one-11"


async def test_others_who_say_that_a_router_is_new_do_not_multiply_what_it_is_told() -> None:
    line = Line()
    one, other = Router(line, "one"), Router(line, "other")
    for router in (one, other):
        router.connect()
    pass_time(0.5, one, other)
    for number in range(100):
        other.exchange.ended(Answered(f"one-{number}", Ending.SERVED))
    for _ in range(100):
        for _ in range(20):
            other.bus.hear(ROUTERS, wire.here_bytes(Here("one", is_new=True)))
        pass_time(0.1, one, other)
    assert len(ids(line.of(ENDS))) <= 100 * TELLINGS_MAX
