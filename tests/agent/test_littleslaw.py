"""Single windows of looks, and what Little's law says of them, at its bounds."""

import pytest

from extproc.agent.littleslaw import (
    PENDING_MIN,
    UNDER_RATIO,
    cache_stands_still,
    computes_too_fast,
    hides_pending,
    is_counter,
    is_over,
    is_under,
)
from extproc.agent.looks import LOOKS_MIN, Mark, Window

SECONDS = LOOKS_MIN - 1


def window(decoding: float | None = 0.0, **rates: float | tuple[float, float]) -> Window:
    """Looks a second apart. A rate is what a total gains in each, a pair where a gauge begins and what it gains."""

    def told(second: int) -> dict[str, float]:
        pairs = {name: rate if isinstance(rate, tuple) else (0.0, rate) for name, rate in rates.items()}
        return {name: begins + gains * second for name, (begins, gains) in pairs.items()}

    decoded_s = (None if decoding is None else decoding * second for second in range(LOOKS_MIN))
    return Window([Mark(float(second), told(second), spent) for second, spent in enumerate(decoded_s)])


@pytest.mark.parametrize(("running", "is_too_many"), [(49, True), (48, False)])
def test_running_requests_are_over_four_times_what_their_seconds_show_and_eight(
    running: float, is_too_many: bool
) -> None:
    seen = window(6.0, first_tokens_total=1, prefill_seconds_total=4, requests_running=(running, 0))
    assert is_over(seen, "requests_running") == is_too_many
    assert not is_over(window(None, first_tokens_total=1, prefill_seconds_total=4), "requests_running")
    assert not is_over(window(6.0, first_tokens_total=0.5, prefill_seconds_total=4), "requests_running"), "too few"


@pytest.mark.parametrize(
    ("begins", "rises", "waits_s", "is_one"),
    [
        (100, 1.0, 2.0, True),
        (100, 0.49, 2.0, False),
        (100, 2.0, 2.0, True),
        (100, 2.01, 2.0, False),
        (16, 1.0, 2.0, False),
        (17, 1.0, 2.0, True),
        (1000, 1.0, 14.4, True),
        (1000, 1.0, 14.6, False),
    ],
)
def test_a_queue_is_a_counter_if_it_rises_like_one_and_nobody_waited_for_it(
    begins: float, rises: float, waits_s: float, is_one: bool
) -> None:
    """What comes in the window waits for half of it at most."""
    seen = window(1.0, first_tokens_total=1, prefill_seconds_total=waits_s, requests_waiting=(begins, rises))
    assert is_counter(seen, "requests_waiting") == is_one
    assert not is_counter(window(None, first_tokens_total=1, prefill_seconds_total=waits_s), "requests_waiting")


def test_a_queue_that_rises_while_nobody_is_served_is_no_counter() -> None:
    def queue(served: list[float], risen: list[float]) -> bool:
        told = [
            {"first_tokens_total": came, "requests_waiting": 100.0 + more, "prefill_seconds_total": came * 0.1}
            for came, more in zip(served, risen, strict=True)
        ]
        return is_counter(Window([Mark(float(at), one, float(at)) for at, one in enumerate(told)]), "requests_waiting")

    steady = [float(at) for at in range(31)]
    assert queue(steady, steady)
    early, late = [min(2.0 * at, 30.0) for at in steady], [max(0.0, 2.0 * at - 30) for at in steady]
    assert not queue(early, late)
    assert not queue(early, steady)
    assert not queue(steady, late)


def test_preempted_requests_wait_and_are_not_missed_where_they_run() -> None:
    decoding = UNDER_RATIO * 10 + 1.1
    assert is_under(window(decoding, requests_waiting=(9, 0)), 0)
    assert not is_under(window(decoding, requests_waiting=(10.1, 0)), 0)
    assert is_under(window(decoding, requests_waiting=(0, 0)), 10)
    assert not is_under(window(decoding, requests_waiting=(1, 0)), 10)
    assert not is_under(window(None), 0)


@pytest.mark.parametrize(
    ("waiting", "firsts", "is_hidden"), [(PENDING_MIN + 0.1, 8, True), (PENDING_MIN - 0.1, 8, False), (9, 19, False)]
)
def test_prompts_are_hidden_that_are_many_and_wait_for_many_steps(
    waiting: float, firsts: float, is_hidden: bool
) -> None:
    seen = window(1.0, first_tokens_total=firsts, prefill_seconds_total=waiting, decode_ms_per_token=(100.0, 0))
    assert hides_pending(seen) == is_hidden
    assert not hides_pending(window(1.0, first_tokens_total=firsts, prefill_seconds_total=waiting)), "how long is one?"
    assert not hides_pending(window(None, first_tokens_total=8, prefill_seconds_total=99, decode_ms_per_token=(1, 0)))


def test_a_cache_must_move_by_what_is_held_there() -> None:
    """Of 10,000 blocks with 16 tokens a fiftieth is 3200 tokens."""
    size = {"kv_blocks_total": (10_000.0, 0.0), "kv_block_size_tokens": (16.0, 0.0)}
    prompts = {"first_tokens_total": 2.0, "prefill_tokens_total": 2000.0}
    for decoding, running, usage, moves in (
        (3.2, 0.0, 0.0, True),
        (3.1, 0.0, 0.0, False),
        (0.0, 3.2, 0.0, True),
        (9.0, 9.0, 0.5, False),
        (9.0, 9.0, 0.95, False),
    ):
        seen = window(decoding, **size, **prompts, requests_running=(running, 0.0))
        assert cache_stands_still(seen, usage, running_is_sound=True) == moves
    changing = window(0.0, **size, **prompts, requests_running=(1.0, 0.2))
    assert cache_stands_still(changing, 0.5, running_is_sound=True)
    assert not cache_stands_still(changing, 0.95, running_is_sound=True)
    assert not cache_stands_still(changing, 0.5, running_is_sound=False)
    assert not cache_stands_still(window(9.0, **size, requests_running=(9, 1)), 0.0, running_is_sound=True)


def test_no_engine_computes_a_million_tokens_in_a_second() -> None:
    def too_fast(tokens: float, seconds: float, before_s: float = 0.0) -> bool:
        total: dict[str, float | tuple[float, float]] = {
            "prefill_tokens_total": tokens / SECONDS,
            "prefill_seconds_total": (before_s, seconds / SECONDS),
        }
        return computes_too_fast(window(0.0, **total))

    assert too_fast(2_000_000, 1.9)
    assert not too_fast(2_000_000, 2.0)
    assert too_fast(40_000, 0.0)
    assert not too_fast(19_000, 0.0)
    assert not too_fast(40_000, 0.0, before_s=10_000), "six digits do not show it"
    assert not computes_too_fast(window(prefill_tokens_total=1e6))
