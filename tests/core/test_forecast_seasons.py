"""The time of day."""

import pytest

from extproc.core.seasons import SLOT_S, SLOTS, Seasons
from tests.core.forecasting import forecast, nodes, of

DAY_S = 86_400
NINE_S = 9 * 3600


def test_nothing_is_usual_before_a_day_is_over() -> None:
    seasons = Seasons(0.0)
    for hour in range(24):
        seasons.add(3600, 7200, hour * 3600.0)
        assert seasons.at(hour * 3600.0, hour * 3600.0) is None
    seasons.add(1, 1, DAY_S + SLOT_S)
    assert seasons.at(DAY_S + SLOT_S, DAY_S + SLOT_S) is not None


def filled(days: int) -> Seasons:
    """Two requests of 10 tokens a second from nine to five, one at other times."""
    seasons = Seasons(0.0)
    for slot in range(days * SLOTS + 2):
        busy = NINE_S <= slot * SLOT_S % DAY_S < 17 * 3600
        seasons.add(SLOT_S * (1 + busy), SLOT_S * (1 + busy) * 10, slot * SLOT_S)
    return seasons


@pytest.mark.parametrize("days", [1, 3])
def test_what_came_at_a_time_of_day_is_usual_then(days: int) -> None:
    seasons, now_s = filled(days), days * DAY_S + SLOT_S
    assert seasons.at(now_s + 3 * 3600, now_s) == pytest.approx((1, 10))
    assert seasons.at(days * DAY_S + 12 * 3600, now_s) == pytest.approx((2, 20))


def test_what_begins_on_the_hour_is_usual_from_then_on() -> None:
    seasons, now_s = filled(1), DAY_S + SLOT_S
    found = [seasons.at(DAY_S + NINE_S + part * SLOT_S, now_s) for part in (-1, -0.01, 0, 0.99)]
    assert [one[0] for one in found if one] == pytest.approx([1, 1, 2, 2])


def test_a_day_that_differs_counts_some() -> None:
    seasons = filled(2)
    for slot in range(2 * SLOTS + 2, 3 * SLOTS + 2):
        seasons.add(SLOT_S * 3, 0, slot * SLOT_S)
    found = seasons.at(3 * DAY_S + 12 * 3600, 3 * DAY_S + SLOT_S)
    assert found is not None
    assert 2 < found[0] < 3


def test_a_time_without_requests_is_usual_too() -> None:
    seasons = Seasons(0.0)
    seasons.add(SLOT_S, 0, 0)
    seasons.add(SLOT_S, 0, DAY_S)
    seasons.add(SLOT_S, 0, DAY_S + SLOT_S)
    assert seasons.at(DAY_S + 7200, DAY_S + SLOT_S) == (0, 0)


def test_what_nobody_asked_for_in_a_day_is_usual_no_more() -> None:
    seasons, last_s = filled(1), DAY_S + SLOT_S
    assert seasons.at(last_s + DAY_S, last_s + DAY_S) is not None
    assert seasons.at(last_s + DAY_S, last_s + DAY_S + SLOT_S) is None


def test_nodes_are_asked_for_before_the_morning_comes() -> None:
    read = forecast(cold_start_s=120)
    for second in range(0, DAY_S + NINE_S - 600, 30):
        busy = NINE_S <= second % DAY_S < 17 * 3600
        for _ in range(40 if busy else 1):
            read.arrived("m", 30_000, float(second))
    early_s, late_s = DAY_S + NINE_S - 600.0, DAY_S + NINE_S - 60.0
    early = of(read, nodes(early_s), early_s)
    assert (early.nodes_needed, early.saturated_in_s) == (1, 600)
    assert of(read, nodes(late_s), late_s).nodes_needed == 5, "nothing has come yet today, 40,000 tokens a second will"
