"""What others send takes a part of the event loop's time, of which requests have the rest."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.bus.bus import BusCounts
from extproc.bus.handlers import Handlers
from extproc.bus.share import PART, REST_S_MAX, SLICE_S, Share
from tests.bus.busing import Told
from tests.waiting import until

WORK_S_MAX = REST_S_MAX * PART / (1 - PART)
"""A longer piece of work takes more than its part."""


class Working:
    """On a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.share = Share(lambda: self.now_s)
        self.worked_s = 0.0

    def work(self, took_s: float) -> float:
        self.now_s += took_s
        self.worked_s += took_s
        rest_s = self.share.rest_s(took_s)
        self.now_s += rest_s
        return rest_s


@given(st.lists(st.floats(1e-6, WORK_S_MAX / 2), min_size=1, max_size=200))
def test_work_without_end_takes_its_part_and_a_slice(pieces: list[float]) -> None:
    one = Working()
    for took_s in pieces:
        one.work(took_s)
    assert one.worked_s <= (one.now_s - 50.0) * PART + SLICE_S + 1e-6
    assert one.worked_s >= (one.now_s - 50.0) * PART - 1e-6  # and never much less


def test_little_work_never_rests() -> None:
    one = Working()
    for _ in range(1000):
        assert one.work(0.001) == 0
        one.now_s += 0.001 / PART - 0.001
    assert one.work(SLICE_S - 0.0001) == 0
    assert one.work(SLICE_S) > 0


def test_it_rests_from_a_slice_on_and_never_long() -> None:
    assert Working().work(SLICE_S * 0.99) == 0
    assert Working().work(SLICE_S) == pytest.approx(SLICE_S / PART - SLICE_S)
    one = Working()
    assert one.work(WORK_S_MAX * 0.99) < REST_S_MAX
    assert one.work(60.0) == one.work(60.0) == pytest.approx(REST_S_MAX)
    assert one.work(0.0001) == 0


async def test_handlers_leave_the_loop_to_others_however_much_is_heard() -> None:
    pieces: list[tuple[float, float]] = []

    def work(_: str, __: bytes) -> None:
        began_s = time.monotonic()
        while time.monotonic() < began_s + 0.001:
            pass
        pieces.append((began_s, time.monotonic()))

    handlers = Handlers(BusCounts(), time.monotonic, Told().log)
    handlers.listen("loads", work)
    for _ in range(100):
        handlers.hear("loads", "", b"")
    await until(lambda: len(pieces) >= 50)
    for _ in range(100):
        handlers.hear("loads", "", b"")
    await until(lambda: len(pieces) == 200)
    worked_s = sum(end_s - begin_s for begin_s, end_s in pieces)
    assert pieces[-1][1] - pieces[0][0] > 2 * worked_s
