from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.roundtrip import MEASUREMENTS, RoundTrip


def measured(*trips_s: float) -> float:
    """After these round trips, one after the other, the connection's first message before them."""
    round_trip = RoundTrip()
    now_s = 100.0
    for trip_s in (5.0, *trips_s):
        round_trip.send(now_s)
        now_s += trip_s
        round_trip.acknowledge(now_s)
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
    for now_s in (0.0, 1.0, 1.25, 1.5):
        round_trip.send(now_s)
    round_trip.acknowledge(9.0)
    assert round_trip.seconds == 0
    round_trip.acknowledge(9.5)  # of the message of 1.0
    assert round_trip.seconds == 8.5
    round_trip.send(10.0)
    for now_s in (10.0, 10.25):  # of those of 1.25 and 1.5
        round_trip.acknowledge(now_s)
    assert round_trip.seconds == 8.5
    round_trip.acknowledge(10.5)
    assert round_trip.seconds == 0.5


def test_a_router_that_acknowledges_nothing_costs_nothing_and_too_much_does_no_harm() -> None:
    round_trip = RoundTrip()
    for _ in range(3):
        round_trip.acknowledge(0.0)
    assert round_trip.seconds == 0
    for _ in range(1000):
        round_trip.send(1.0)
    assert round_trip.seconds == 0


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 10))))
def test_whatever_comes_in_whatever_order_it_is_no_longer_than_it_took(steps: list[tuple[bool, float]]) -> None:
    round_trip, now_s = RoundTrip(), 0.0
    for sends, pause_s in steps:
        now_s += pause_s
        (round_trip.send if sends else round_trip.acknowledge)(now_s)
        assert 0 <= round_trip.seconds <= now_s
