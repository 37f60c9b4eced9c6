"""How many nodes a model needs, and when."""

from itertools import pairwise
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from extproc.core.forecast import TIMES_S, WARM_UP_S
from extproc.core.forecastsettings import ForecastSettings
from extproc.core.snapshot import NodeState
from tests.core.forecasting import LATER_S, LIMITS, at_random, forecast, nodes, of, snapshot, steady, view


def test_a_steady_load_needs_as_many_nodes_as_compute_it_and_the_headroom() -> None:
    read = forecast()
    now_s = steady(read, LATER_S, LATER_S + 600, 40)  # 40,000 tokens in a second, of 10,000 that a node can do
    found = of(read, nodes(now_s, 5), now_s)
    assert found.nodes_needed == 5  # 4 / 0.9
    assert found.saturation == pytest.approx(4 / 0.9 / 5)
    assert found.saturated_in_s is None
    assert found.requests_per_s == pytest.approx(40)
    assert found.prompt_tokens_per_s == pytest.approx(40_000)
    assert found.node_tokens_per_s == pytest.approx(10_000)


def test_answers_are_work_too() -> None:
    read = forecast()
    for _ in range(400):
        read.answered("m", 300, LATER_S)
    now_s = steady(read, LATER_S, LATER_S + 600, 20)
    bare = of(read, nodes(now_s), now_s).nodes_needed
    for _ in range(400):
        read.answered("m", 300, now_s)
    found = of(read, nodes(now_s), now_s)
    assert found.nodes_needed > bare
    assert found.output_tokens_per_s == pytest.approx(20 * 300, rel=0.05)


def test_prompts_that_are_cached_take_memory_and_no_time() -> None:
    def needed(prompt_tokens: int) -> float:
        read = forecast()
        read.arrived("m", 1, LATER_S)
        for _ in range(400):
            read.answered("m", 400, LATER_S)
        for second in range(600):
            for _ in range(20):
                read.arrived("m", 100, LATER_S + second, prompt_tokens=prompt_tokens)
        return of(read, nodes(LATER_S + 600), LATER_S + 600).saturation

    assert needed(100_000) > 1.5 * needed(100)


def test_refused_or_not_a_model_without_a_ready_node_needs_some_by_what_is_assumed() -> None:
    read = forecast()
    now_s = steady(read, LATER_S, LATER_S + 600, 40)
    found = of(read, [], now_s)
    assert (found.nodes_needed, found.nodes_ready, found.saturation, found.saturated_in_s) == (5, 0, inf, 0)


def test_a_node_that_loads_is_coming_and_no_capacity() -> None:
    read = forecast()
    now_s = steady(read, LATER_S, LATER_S + 600, 40)
    alone = of(read, nodes(now_s, 2), now_s)
    found = of(read, nodes(now_s, 2, loading=3), now_s)
    assert (found.nodes_ready, found.nodes_coming) == (2, 3)
    assert (found.saturation, found.saturated_in_s) == (alone.saturation, 0)
    assert found.saturation == pytest.approx(4 / 0.9 / 2)
    only = of(read, nodes(now_s, 0, loading=3), now_s)
    assert (only.nodes_ready, only.saturation) == (0, inf)


def test_nodes_that_drain_or_fell_silent_are_neither() -> None:
    read, now_s = forecast(), LATER_S
    members = [
        view(snapshot("drains", NodeState.DRAINING), now_s),
        view(snapshot("silent"), now_s - LIMITS.stale_s - 0.1),
        view(snapshot("stale"), now_s - LIMITS.stale_s + 0.1),
    ]
    found = of(read, members, now_s)
    assert (found.nodes_ready, found.nodes_coming) == (1, 0)


def test_a_node_that_does_not_tell_its_models_yet_is_coming_where_all_serve_the_same() -> None:
    read, now_s = forecast(), LATER_S
    untold = view(snapshot("new", NodeState.LOADING, models=None), now_s)
    assert of(read, [*nodes(now_s, 2), untold], now_s).nodes_coming == 1
    others = nodes(now_s, 1, models=("other",))
    others = [view(snapshot("b", models=("other",)), now_s)]
    assert of(read, [*nodes(now_s, 2), *others, untold], now_s).nodes_coming == 0, "nobody knows which"
    read.arrived("m", 10, now_s)
    assert of(read, [untold], now_s).nodes_coming == 1, "it may be what is asked for"


def test_a_model_without_traffic_needs_the_least() -> None:
    for nodes_min in (0, 1, 3):
        found = of(forecast(nodes_min=nodes_min), nodes(LATER_S, 4), LATER_S)
        assert (found.nodes_needed, found.saturation, found.saturated_in_s) == (nodes_min, 0, None)


def test_soon_after_the_start_no_node_is_given_back() -> None:
    read = forecast(started_s=LATER_S)
    assert of(read, nodes(LATER_S + WARM_UP_S - 1, 4, 2), LATER_S + WARM_UP_S - 1).nodes_needed == 6
    assert of(read, nodes(LATER_S + WARM_UP_S, 4, 2), LATER_S + WARM_UP_S).nodes_needed == 1


def test_what_is_gone_is_forgotten_after_the_window() -> None:
    read = forecast(window_s=128)
    now_s = steady(read, LATER_S, LATER_S + 200, 40)
    needed = [of(read, nodes(now_s + after), now_s + after).nodes_needed for after in (0, 32, 64, 96, 128, 1e6)]
    assert needed[0] == 5
    assert needed[-2:] == [1, 1]
    assert needed == sorted(needed, reverse=True)
    assert needed[3] < needed[0]


def test_bursts_need_more_nodes_than_their_mean_and_are_forgotten() -> None:
    calm, bursty = forecast(), forecast()
    now_s = steady(calm, LATER_S, LATER_S + 600, 8)
    for second in range(600):
        for _ in range(64 if second % 64 < 8 else 0):
            bursty.arrived("m", 1000, LATER_S + second)
    assert of(calm, nodes(now_s), now_s).nodes_needed == 1
    assert of(bursty, nodes(now_s), now_s).nodes_needed >= 3
    steady(bursty, now_s, now_s + 600, 8)
    assert of(bursty, nodes(now_s + 600), now_s + 600).nodes_needed == 1


def test_a_step_up_is_met_within_a_minute_and_a_half() -> None:
    read = forecast()
    now_s = steady(read, LATER_S, LATER_S + 600, 10)
    assert of(read, nodes(now_s), now_s).nodes_needed == 2
    now_s = steady(read, now_s, now_s + 90, 40)
    assert of(read, nodes(now_s), now_s).nodes_needed >= 5


def test_a_rising_load_is_met_a_cold_start_ahead() -> None:
    read = forecast(cold_start_s=60)
    now_s = steady(read, LATER_S, LATER_S + 600, 10, growth=0.05)
    now_load = (10 + 0.05 * 600) / 10 / 0.9
    found = of(read, nodes(now_s, 4), now_s)
    assert found.saturation * 4 == pytest.approx(now_load, rel=0.03)
    assert found.nodes_needed == 5  # (10 + 0.05 * 660) / 10 / 0.9 = 4.8


def test_the_time_to_saturation_shrinks_as_the_trend_rises() -> None:
    times = []
    for growth in (0.01, 0.02, 0.04):
        read = forecast()
        # All come to 30 a second, on their ways.
        now_s = steady(read, LATER_S, LATER_S + 600, 30 - 600 * growth, growth=growth)
        times.append(of(read, nodes(now_s, 4), now_s).saturated_in_s)
    assert None not in times
    assert times == sorted(times, key=lambda one: -(one or 0))
    assert len(set(times)) == 3


def test_chance_is_no_trend() -> None:
    for seed in range(5):
        read = forecast()
        now_s = at_random(read, LATER_S, LATER_S + 600, 30, seed)
        assert of(read, nodes(now_s, 6), now_s).saturated_in_s is None


def test_a_falling_load_is_not_met_before_it_has_fallen() -> None:
    read = forecast()
    now_s = steady(read, LATER_S, LATER_S + 600, 100, growth=-0.1)
    assert of(read, nodes(now_s), now_s).nodes_needed >= 4  # 40 a second are left


def test_a_long_prompt_is_no_burst() -> None:
    def needed(tokens: int, every_s: int) -> int:
        read = forecast()
        for second in range(0, 600, every_s):
            read.arrived("m", tokens, LATER_S + second)
        return of(read, nodes(LATER_S + 600), LATER_S + 600).nodes_needed

    assert needed(30_000, 6) == needed(5000, 1) == 1


def test_the_objective_and_the_share_of_bursts_say_how_many() -> None:
    def needed(**settings: float) -> int:
        read, chance = forecast(**settings), Random(3)
        for second in range(600):
            for _ in range(int(chance.expovariate(1 / 100))):
                read.arrived("m", 1000, LATER_S + second)
        return of(read, nodes(LATER_S + 600), LATER_S + 600).nodes_needed

    assert needed(ttft_s=0.5) > needed(ttft_s=2.0) > needed(ttft_s=20.0)
    assert needed(burst_share=0.999, headroom=0) > needed(burst_share=0.5, headroom=0)
    assert needed(headroom=0.8, ttft_s=20.0) > needed(ttft_s=20.0)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=100),
    st.integers(1, 4),
    st.integers(1, 20_000),
    st.integers(0, 8),
)
def test_more_of_the_same_never_needs_fewer_nodes(counts: list[int], factor: int, tokens: int, ready: int) -> None:
    one, more = forecast(), forecast()
    for second, count in enumerate(counts):
        for number in range(count * factor):
            more.arrived("m", tokens, LATER_S + second)
            if number < count:
                one.arrived("m", tokens, LATER_S + second)
    now_s = LATER_S + len(counts)
    members = nodes(now_s, ready)
    if any(counts) or ready:
        less, much = of(one, members, now_s), of(more, members, now_s)
        assert 1 <= less.nodes_needed <= much.nodes_needed
        assert 0 <= less.saturation <= much.saturation
        assert (less.saturated_in_s if less.saturated_in_s is not None else inf) >= (
            much.saturated_in_s if much.saturated_in_s is not None else inf
        )


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 1_000_000)), max_size=50), st.floats(0, 1e7))
def test_time_may_jump(arrivals: list[tuple[float, int]], later_s: float) -> None:
    read, now_s = forecast(), LATER_S
    for gap_s, tokens in arrivals:
        now_s += gap_s
        read.arrived("m", tokens, now_s)
    now_s += later_s
    found = of(read, nodes(now_s), now_s)
    assert found.nodes_needed >= 1
    assert 0 <= found.saturation < inf


def test_a_reading_changes_nothing() -> None:
    read = forecast()
    now_s = steady(read, LATER_S, LATER_S + 100, 10)
    first = read.of(nodes(now_s), now_s)
    read.of(nodes(now_s + 5000), now_s + 5000)
    assert read.of(nodes(now_s), now_s) == first


def test_an_hour_is_looked_ahead_and_the_longest_usual_cold_start_finely() -> None:
    assert (TIMES_S[0], TIMES_S[-1]) == (0, 3600)
    assert all(later > earlier for earlier, later in pairwise(TIMES_S))
    assert ForecastSettings().cold_start_max_s in TIMES_S


@pytest.mark.parametrize(
    ("key", "value"),
    [("burst_share", 0.49), ("headroom", 0.91), ("ttft_s", 0), ("window_s", 63), ("models_max", 0), ("nodes_min", -1)],
)
def test_settings_have_bounds(key: str, value: float) -> None:
    with pytest.raises(ValidationError):
        ForecastSettings.model_validate({key: value})


def test_a_cold_start_stands_between_its_bounds() -> None:
    with pytest.raises(ValidationError, match="cold_start_min_s"):
        ForecastSettings(cold_start_s=200)
    assert ForecastSettings(cold_start_s=120).cold_start_s == 120
