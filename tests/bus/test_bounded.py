"""Bounded queues, and echoes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.bus.bounded import Bounded
from extproc.bus.echo import Echo


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(1, 10), st.integers(1, 50))
def test_the_newest_stay_within_both_bounds(sizes: list[int], items_max: int, bytes_max: int) -> None:
    queue: Bounded[int] = Bounded(items_max, bytes_max)
    lost = sum(queue.put(index, size) for index, size in enumerate(sizes))
    kept = [queue.take() for _ in range(len(queue))]
    assert kept == list(range(lost, len(sizes)))
    assert len(kept) <= items_max
    assert sum(sizes[lost:]) <= bytes_max or len(kept) == 1
    # No more was lost than had to be.
    if lost:
        assert len(kept) == items_max or sum(sizes[lost - 1 :]) > bytes_max or items_max <= len(kept) + 1
    assert queue.bytes == 0


def test_at_the_edge_nothing_is_lost() -> None:
    queue: Bounded[str] = Bounded(2, 10)
    assert queue.put("a", 4) == 0
    assert queue.put("b", 6) == 0
    assert queue.bytes == 10
    assert queue.put("c", 1) == 1
    assert [queue.take(), queue.take()] == ["b", "c"]
    assert queue.put("long", 11) == 0
    assert queue.clear() == 1
    with pytest.raises(IndexError):
        queue.take()


async def test_the_reader_waits_until_there_is_something_or_it_is_woken() -> None:
    queue: Bounded[str] = Bounded(2, 10)
    waiting = asyncio.create_task(queue.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.put("a", 1)
    await waiting
    queue.wake()
    await queue.wait()


def test_an_echo_shows_half_of_its_time_and_one_that_is_out_its_age() -> None:
    echo = Echo()
    assert echo.way_s(0.0) == 0.0
    first = echo.send(10.0)
    assert echo.way_s(10.3) == pytest.approx(0.15)
    assert echo.hear(first, 10.4)
    assert echo.way_s(10.4) == echo.way_s(99.0) == pytest.approx(0.2)
    second, third = echo.send(11.0), echo.send(11.5)
    assert echo.age_s(13.0) == 2.0
    assert echo.way_s(13.0) == 1.0
    assert echo.hear(third, 13.5)  # the second is lost
    assert not echo.hear(second, 13.6)
    assert echo.age_s(14.0) == 0.0
    assert echo.way_s(14.0) == 1.0


def test_time_in_which_we_could_not_listen_is_not_the_paths() -> None:
    echo = Echo()
    mine = echo.send(10.0)
    echo.excuse(3.0)
    assert echo.age_s(13.5) == 0.5
    assert echo.age_s(12.5) == 0.0
    assert echo.hear(mine, 14.0)
    assert echo.way_s(14.0) == 0.5


def test_echoes_that_are_not_ours_show_nothing() -> None:
    echo = Echo()
    mine = echo.send(1.0)
    assert not echo.hear(b"", 1.1)
    assert not echo.hear(Echo().send(1.0), 1.1)
    assert echo.hear(mine, 2.0)
    assert not echo.hear(mine, 9.0)
    assert echo.way_s(9.0) == 0.5
