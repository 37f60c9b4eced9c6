"""Ends of answers that reach another router than the one whose requests they were."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.bus.bus import ENDS
from extproc.core.outcome import Answered, Ending
from extproc.core.request import HOST_CHARS_MAX
from extproc.exchange import endswire
from extproc.exchange.ends import HEARD_MAX, WAITING_MAX, WAITING_S_MAX, EndsHeard, EndsTold
from extproc.ops.metrics import Metrics
from extproc.pb import exchange_pb2
from tests.exchange.scripted import Line, Router, pass_time
from tests.waiting import until

NOW_S = 500.0

answers = st.builds(
    Answered,
    st.integers(0, 10**9).map(lambda number: f"r1-{number}"),
    st.sampled_from(Ending),
    host=st.none() | st.just("10.0.0.1:8000"),
    over=st.booleans(),
    used_tokens=st.none() | st.integers(0, 2**53),
    at_s=st.none() | st.floats(NOW_S - 400, NOW_S - 0.01),
)


@given(st.lists(answers, max_size=5))
def test_ends_come_as_they_were_told(ends: list[Answered]) -> None:
    heard = [
        one
        for message in endswire.ends_bytes("r1", ends, NOW_S)
        for one in endswire.ends_of(message, "r1", NOW_S + 1) or []
    ]
    assert len(heard) == len(ends)
    for one, other in zip(ends, heard, strict=True):
        assert isinstance(other, Answered)
        if one.at_s is not None:
            assert other.at_s == pytest.approx(one.at_s + 1, abs=0.001)
        for name in ("request_id", "ending", "host", "over", "used_tokens", "model", "output_tokens"):
            assert getattr(other, name) == getattr(one, name), name


def test_many_ends_are_several_messages() -> None:
    ends = [Answered(f"r1-{number}", Ending.SERVED) for number in range(endswire.ENDS_MAX + 1)]
    counts = [len(endswire.ends_of(one, "r1", NOW_S) or "") for one in endswire.ends_bytes("r1", ends, NOW_S)]
    assert counts == [endswire.ENDS_MAX, 1]


def message(router: str = "r1", **changes: Any) -> bytes:
    end: Any = {"request_id": "r1-1", **changes}
    return exchange_pb2.AnswerEnds(router=router, ends=[end]).SerializeToString()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (message(request_id="r2-1"), "ends.0.request_id: wanted r1- and a number, got 'r2-1'"),
        (message(request_id="r1"), "ends.0.request_id: wanted"),
        (message(request_id="r1-" + "1" * 62), "ends.0.request_id: wanted"),
        (message(request_id="r1-\n"), "ends.0.request_id: wanted"),
        (message(host="h" * (HOST_CHARS_MAX + 1)), "ends.0.host: wanted at most 64"),
        (message(host="\0"), "ends.0.host: wanted"),
        (message(used_tokens=2**53 + 1), "ends.0.used_tokens: wanted"),
        (message(ago_ms=10**8 + 1), "ends.0.ago_ms: wanted"),
        (message(router="?"), "router: wanted"),
        (exchange_pb2.AnswerEnds(router="r1", ends=[{}] * 1001).SerializeToString(), "ends: wanted at most 1000"),  # type: ignore[list-item]
    ],
)
def test_a_message_that_is_wrong_somewhere_is_refused_whole(wrong: bytes, reason: str) -> None:
    refusal = endswire.ends_of(wrong, "r1", NOW_S)
    assert isinstance(refusal, str)
    assert refusal.startswith(reason)


def test_endings_to_come_say_nothing_and_others_ends_are_not_ours() -> None:
    heard = endswire.ends_of(message(ending=99), "r1", NOW_S)
    assert heard == [Answered("r1-1", Ending.UNTOLD)]
    assert endswire.ends_of(message(router="r2"), "r1", NOW_S) is None


@pytest.mark.parametrize(
    ("request_id", "router"),
    [("ab12-7", "ab12"), ("ab12-7-8", "ab12"), ("ab12", None), ("-7", None), ("a b-7", None), ("", None)],
)
def test_an_id_tells_whose_request_it_is(request_id: str, router: str | None) -> None:
    assert endswire.router_of(request_id) == router


async def test_the_oldest_of_too_many_are_dropped_and_counted() -> None:
    sent: list[bytes] = []
    metrics = Metrics()
    told = EndsTold(sent.append, lambda _: True, lambda _: NOW_S, lambda: NOW_S, metrics.exchange)
    for number in range(WAITING_MAX + 3):
        told.tell("r1", Answered(f"r1-{number}", Ending.SERVED))
    assert not sent
    await until(lambda: sent)
    while len(sent) < WAITING_MAX // endswire.ENDS_MAX:
        told.flush()
    first = endswire.ends_of(sent[0], "r1", NOW_S)
    assert isinstance(first, list)
    assert first[0].request_id == "r1-3"
    assert all(len(endswire.ends_of(one, "r1", NOW_S) or ()) == endswire.ENDS_MAX for one in sent)
    assert metrics.exchange.counts["dropped"] == {"ends_late": 3}


async def test_an_end_that_another_router_was_told_of_reaches_whose_it_is() -> None:
    line = Line()
    one, other, third = (Router(line, name) for name in ("one", "other", "third"))
    for router in (one, other, third):
        router.connect()
    other.hears_ends = True
    pass_time(1.0, one, other, third)
    one.route("one-1")
    one.balancer.leave("one-1", one.now_s)
    assert not one.exchange.ends_are_told, "that some Envoy tells others is no promise that ours does"
    for request_id in ("one-1", "unknown-1", "other-9", "nobodys"):
        other.exchange.ended(Answered(request_id, Ending.SERVED, used_tokens=700))
    other.exchange._ends_told.flush()
    assert len(line.of(ENDS)) == 1
    assert one.balancer.requests_open == 0
    assert (one.exchange.ends_are_told, other.exchange.ends_are_told, third.exchange.ends_are_told) == (
        True,
        False,
        False,
    )
    one.bus.connected = False
    assert not one.exchange.ends_are_told
    one.connect()
    pass_time(10.0, one, other, third)
    assert one.exchange.ends_are_told, "whoever told once tells on while it hears some"
    other.hears_ends = False
    pass_time(0.6, one, other, third)
    assert not one.exchange.ends_are_told


async def test_ends_wait_for_the_bus_and_for_the_router_and_say_when_they_were() -> None:
    line = Line()
    one, other = Router(line, "one"), Router(line, "other")
    for router in (one, other):
        router.connect()
    pass_time(1.0, one, other)
    for number in (1, 2, 3):
        one.route(f"one-{number}")
        one.balancer.leave(f"one-{number}", one.now_s)

    def ended(number: int) -> None:
        other.exchange.ended(Answered(f"one-{number}", Ending.SERVED))

    other.bus.connected = False
    ended(1)
    pass_time(5.0, one, other)
    assert one.balancer.requests_open == 3
    other.connect()
    pass_time(2.0, one, other)
    assert one.balancer.requests_open == 2
    one.bus.connected = False
    ended(2)  # on its way before anybody notices
    pass_time(2.0, other)
    pass_time(2.0, one, other)
    ended(3)
    pass_time(2.0, one, other)
    assert one.balancer.requests_open == 2
    one.connect()
    pass_time(0.6, one, other)
    assert one.balancer.requests_open == 0
    assert other.counted("extproc_exchange_dropped_total", reason="ends_late") == 0


async def test_ends_of_a_router_that_never_comes_back_are_dropped() -> None:
    sent: list[bytes] = []
    metrics, now_s = Metrics(), NOW_S
    told = EndsTold(sent.append, lambda _: False, lambda _: NOW_S, lambda: now_s, metrics.exchange)
    told.tell("r1", Answered("r1-1", Ending.SERVED))
    now_s += WAITING_S_MAX
    told.flush()
    assert metrics.exchange.counts["dropped"] == {}
    now_s += 0.1
    told.flush()
    assert metrics.exchange.counts["dropped"] == {"ends_late": 1}
    assert not sent


def test_an_end_that_comes_again_is_not_taken_twice() -> None:
    heard = EndsHeard()
    before, after = (Answered("r1-1", Ending.UNREACHABLE, host="h", over=over) for over in (False, True))
    assert [heard.is_new(one) for one in (before, after, before, after)] == [True, True, False, False]
    for number in range(HEARD_MAX):
        assert heard.is_new(Answered(f"r2-{number}", Ending.SERVED))
    assert heard.is_new(before), "so many are remembered and no more"
