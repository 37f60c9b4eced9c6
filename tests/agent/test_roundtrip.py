from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.roundtrip import ASK_INTERVAL_S, ASKED_AT_ONCE, MEASUREMENTS, Key, RoundTrip


def key(number: int, node_id: str = "n") -> Key:
    return node_id, number


def measured(*trips_s: float) -> float:
    """After these round trips, one after the other, the connection's first message before them."""
    round_trip = RoundTrip()
    now_s = 100.0
    for number, trip_s in enumerate((5.0, *trips_s)):
        assert round_trip.send(key(number), now_s)
        round_trip.acknowledge(key(number), now_s + trip_s)
        now_s += trip_s + ASK_INTERVAL_S
    return round_trip.seconds


def test_it_is_the_time_from_a_message_to_its_acknowledgement() -> None:
    assert measured(0.25) == 0.25


def test_it_is_zero_until_it_was_measured_and_the_first_message_measures_the_connection() -> None:
    assert RoundTrip().seconds == 0
    assert measured() == 0


def test_a_stall_leaves_no_mark() -> None:
    assert measured(0.25, 4.0, 0.5, 4.0) == 0.25


def test_a_way_that_became_longer_shows_once_the_older_measurements_are_gone() -> None:
    assert measured(0.25, *[0.5] * (MEASUREMENTS - 1)) == 0.25
    assert measured(0.25, *[0.5] * MEASUREMENTS) == 0.5


def test_of_messages_under_way_together_the_first_is_timed_and_the_others_are_not_mistaken_for_it() -> None:
    round_trip = RoundTrip()
    asked = [round_trip.send(key(number), now_s) for number, now_s in enumerate((0.0, 1.0, 1.25, 1.5))]
    assert asked == [True, True, False, False]
    round_trip.acknowledge(key(0), 9.0)
    assert round_trip.seconds == 0
    round_trip.acknowledge(key(1), 9.5)
    assert round_trip.seconds == 8.5
    assert round_trip.send(key(4), 10.0)
    for number in (2, 3):  # as routers acknowledge that do not know quiet messages
        round_trip.acknowledge(key(number), 10.25)
    round_trip.acknowledge(key(4, "o"), 10.25)
    assert round_trip.seconds == 8.5
    round_trip.acknowledge(key(4), 10.5)
    assert round_trip.seconds == 0.5


def test_it_is_asked_for_until_some_were_measured_and_then_now_and_then() -> None:
    round_trip = RoundTrip()
    asked_s = []
    for second in range(60):
        if round_trip.send(key(second), float(second)):
            asked_s.append(second)
            round_trip.acknowledge(key(second), second + 0.25)
    at_once = list(range(1 + ASKED_AT_ONCE))
    assert asked_s == at_once + list(range(at_once[-1] + int(ASK_INTERVAL_S), 60, int(ASK_INTERVAL_S)))


def test_a_router_that_acknowledges_nothing_costs_nothing_and_too_much_does_no_harm() -> None:
    round_trip = RoundTrip()
    for number in range(3):
        round_trip.acknowledge(key(number), 0.0)
    assert round_trip.seconds == 0
    assert sum(round_trip.send(key(number), 1.0) for number in range(1000)) == 2
    assert round_trip.seconds == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.floats(0, 10))))
def test_whatever_comes_in_whatever_order_it_is_no_longer_than_it_took(steps: list[tuple[bool, int, float]]) -> None:
    round_trip, now_s = RoundTrip(), 0.0
    for sends, number, pause_s in steps:
        now_s += pause_s
        if sends:
            round_trip.send(key(number), now_s)
        else:
            round_trip.acknowledge(key(number), now_s)
        assert 0 <= round_trip.seconds <= now_s
