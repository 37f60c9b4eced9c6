"""What is kept of the looks at an engine, and when a gauge stands still or does not fall."""

from extproc.agent.looks import APART_S, BUSY_SHARE_MIN, LOOKS_MAX, LOOKS_MIN, Looks, Mark, Window


def looked(*running: float | None, apart_s: float = 1.0, gauges_every_s: float = 0.0) -> Looks:
    looks = Looks()
    for place, value in enumerate(running):
        told = {} if value is None else {"requests_running": value}
        looks.take(place * apart_s, told, None, gauges_every_s)
    return looks


def marks(window: Window | None) -> int | None:
    return None if window is None else len(window.marks)


def test_looks_are_kept_so_far_apart() -> None:
    looks = Looks()
    times = [0.0, 0.5, 0.99, APART_S, 1.5, 1.99, 2.0]
    assert [looks.take(at_s, {}, None, 0.0) for at_s in times] == [True, False, False, True, False, False, True]
    assert [looks.take(at_s, {}, None, 10.0) for at_s in (3.0, 11.9, 12.0, 13.0, 22.0)] == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_a_gauge_is_judged_by_enough_looks_and_not_by_too_many() -> None:
    for count in (LOOKS_MIN - 1, LOOKS_MIN, LOOKS_MAX + 10):
        looks = looked(*[5.0] * count)
        expected = None if count < LOOKS_MIN else LOOKS_MIN
        assert (marks(looks.latest()), marks(looks.constant("requests_running"))) == (expected, expected)
        assert marks(looks.rising("requests_running")) == (None if expected is None else min(count, LOOKS_MAX))
    assert looked(*[5.0] * 50).constant("kv_usage") is None


def test_a_run_begins_with_the_look_that_changed_and_is_absent_with_the_gauge() -> None:
    still = [5.0] * LOOKS_MIN
    assert marks(looked(9.0, *still).rising("requests_running")) == LOOKS_MIN
    assert marks(looked(9.0, *still[1:]).rising("requests_running")) is None
    assert marks(looked(1.0, *still).rising("requests_running")) == LOOKS_MIN + 1
    assert marks(looked(1.0, *still).constant("requests_running")) == LOOKS_MIN
    assert marks(looked(1.0, *still[1:]).constant("requests_running")) is None
    assert looked(*still[1:], None, *still[1:]).constant("requests_running") is None
    assert looked(*still, None).run("requests_running") is None


def test_a_change_between_two_looks_that_are_kept_is_seen() -> None:
    """The one that is kept before it is of the run before."""
    looks = Looks()
    for second in range(LOOKS_MIN):
        looks.take(float(second), {"requests_running": 1.0}, None, 0.0)
    assert looks.constant("requests_running") is not None
    looks.take(LOOKS_MIN - 0.5, {"requests_running": 0.0}, None, 0.0)
    looks.take(LOOKS_MIN - 0.4, {"requests_running": 1.0}, None, 0.0)
    for second in range(LOOKS_MIN, 2 * LOOKS_MIN):
        assert looks.constant("requests_running") is None
        looks.take(float(second), {"requests_running": 1.0}, None, 0.0)
    assert looks.constant("requests_running") is not None


def window(*firsts: float | None, decoded_s: tuple[float | None, float | None] = (None, None)) -> Window:
    told = [{} if value is None else {"first_tokens_total": value} for value in firsts]
    seconds = [decoded_s[0], *[None] * (len(firsts) - 2), decoded_s[1]]
    return Window([Mark(float(at), one, spent) for at, (one, spent) in enumerate(zip(told, seconds, strict=True))])


def test_what_a_total_gained_is_known_where_it_did_not_fall() -> None:
    assert window(1, None, 4).gained("first_tokens_total") == 3
    assert window(4, 9, 4).gained("first_tokens_total") == 0
    for firsts in ((4, 9, 3), (None, 1, 2), (1, 2, None)):
        assert window(*firsts).gained("first_tokens_total") is None
    assert window(1, 1, decoded_s=(1.0, 3.5)).decode_seconds == 2.5
    for decoded_s in ((3.0, 1.0), (None, 1.0), (1.0, None)):
        assert window(1, 1, decoded_s=decoded_s).decode_seconds is None


def test_busy_is_an_engine_whose_counters_moved_half_of_the_time() -> None:
    assert BUSY_SHARE_MIN == 0.5
    assert window(1, 2, 2, 3, 3).is_busy
    assert not window(1, 2, 2, 2, 2).is_busy
    assert not window(1, 1, 1, 1, 9).is_busy
