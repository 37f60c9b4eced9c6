"""What is learned of nodes: rates by their formula, and what false, lost and hostile figures do to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.learned import OUTLIER, LearnedRates
from extproc.core.prefills import PRIOR_S, SLOWNESS_MAX, SPAN_S, WINDOW_S
from extproc.core.snapshot import COUNTER_MAX, LATENCY_MS_MAX
from tests.core.fleet import snapshot
from tests.core.totals import EXPECTED, Engine


@pytest.fixture
def learned() -> LearnedRates:
    return LearnedRates(EXPECTED)


def test_a_node_of_which_nothing_is_known_is_taken_to_be_like_the_fleet(learned: LearnedRates) -> None:
    assert learned.of("a").prefill_tokens_per_s == 1000
    assert learned.observe(snapshot("a", prefill_tokens_total=None), 1.0).prefill_tokens_per_s == 1000
    Engine(learned, "b").report(100, 40_000, 10)
    fleet = learned.prefill_tokens_per_s
    assert fleet > 1000
    assert [learned.of(name).prefill_tokens_per_s for name in ("a", "never seen")] == [fleet, fleet]


@pytest.mark.parametrize(
    ("passed_s", "waited_s", "firsts", "busy_s", "steps_s"),
    [
        (10, 0, 0, 0, 0),
        (20, 0.1, 1, 2 / 20.1, 0.015 * 20 / 20.1),
        (10, 10, 40, 5, 0.6 / 2),
        (10, 1000, 40, 10_000 / 1010, 0.6 * 10 / 1010),
        (10, 1, 60, 10 / 11, 0.9 * 10 / 11),
    ],
)
def test_rates_are_tokens_over_busy_seconds_beside_the_waits_for_steps_with_two_seconds_of_the_prior(
    learned: LearnedRates, passed_s: float, waited_s: float, firsts: int, busy_s: float, steps_s: float
) -> None:
    """S seconds of waiting in T seconds of time: busy for S·T / (S + T). Each prompt waits for 1.5 steps of 10 ms."""
    rate = Engine(learned).report(passed_s, 3000, waited_s, firsts)
    fleet = (3000 + 2 * 1000) / (busy_s - steps_s + 2)
    assert learned.prefill_tokens_per_s == pytest.approx(fleet)
    assert rate == pytest.approx(fleet * (steps_s + 3000 / fleet + 2) / (busy_s + 2))


def test_what_waits_for_steps_is_at_most_nine_tenths_of_the_time(learned: LearnedRates) -> None:
    """However wrong the steps are told: else short prompts would look as if they took no time at all."""
    Engine(learned).report(10, 3000, 10, 10_000)
    assert learned.prefill_tokens_per_s == pytest.approx((3000 + 2 * 1000) / (0.5 + 2))


def test_an_engine_that_tells_no_first_tokens_is_measured_by_its_whole_prefills(learned: LearnedRates) -> None:
    """llama.cpp: no prompt's wait for steps is known, and what it takes in its own stead is busy time."""
    for second in range(60):
        told = snapshot("a", prefill_tokens_total=2000 * second, prefill_seconds_total=1e6 * second)
        rate = learned.observe(told, float(second)).prefill_tokens_per_s
    assert rate == pytest.approx(2000, rel=0.05)
    assert learned.of("a").prefill_tokens_mean == 500, "assumed"


def test_a_node_is_measured_by_the_fleet(learned: LearnedRates) -> None:
    """Two that are busy all the time: one computes 3000 tokens a second, one 1000; both together 2000."""
    engines = Engine(learned, "fast"), Engine(learned, "slow")
    for _ in range(60):
        for engine, tokens in zip(engines, (3000, 1000), strict=True):
            engine.report(1, tokens, 1e6, 0)
    fast, slow = (learned.of(name).prefill_tokens_per_s for name in ("fast", "slow"))
    assert learned.prefill_tokens_per_s == pytest.approx(2000, rel=0.05)
    assert [fast, slow] == pytest.approx([3000, 1000], rel=0.1)


@pytest.mark.parametrize(("tokens", "waited_s", "times"), [(0, 1e6, 1 / SLOWNESS_MAX), (16_000, 1e-6, SLOWNESS_MAX)])
def test_no_node_is_taken_to_be_slower_or_faster_than_the_fleet_by_more_than_a_bound(
    learned: LearnedRates, tokens: int, waited_s: float, times: float
) -> None:
    others, odd = [Engine(learned, f"n{number}") for number in range(8)], Engine(learned, "odd")
    for _ in range(1000):
        rates = [one.report(1, 1000, 1e6, 0) for one in others]
        rate = odd.report(1, tokens, waited_s, 0)
    assert rate == pytest.approx(learned.prefill_tokens_per_s * times)
    assert rates == pytest.approx([1000] * 8, rel=0.1), "the others are measured by themselves as well"


def test_what_was_learned_counts_half_after_a_minute_of_prefill(learned: LearnedRates) -> None:
    """So a node that became three times faster is believed within two windows, whatever came before."""
    engine = Engine(learned)
    for _ in range(100):
        rate = engine.report(10, 10 * 1000, 1e6)
    assert rate == pytest.approx(1000, rel=0.01)
    for _ in range(round(2 * WINDOW_S / 10)):
        rate = engine.report(10, 10 * 3000, 1e6)
    assert rate > 2500


def test_an_idle_night_says_nothing_of_a_busy_morning(learned: LearnedRates) -> None:
    """Were waiting and time summed over both, all of the morning would look busy, and four times as slow."""
    engine = Engine(learned)
    for _ in range(8 * 60):
        engine.report(60, 1000, 1.0)
    rates = [engine.report(1, 1000 * 5 / 6, 5.0) for _ in range(120)]
    assert all(900 < rate < 1300 for rate in rates)


def test_one_interval_counts_for_no_more_than_a_bound_and_washes_out(learned: LearnedRates) -> None:
    engine = Engine(learned)
    for _ in range(60):
        engine.report(1, 1000, 1e6)
    jumped = engine.report(1, 2**50, 1e6)
    assert jumped < (1000 * 60 + OUTLIER * 1000 * 1.1 + PRIOR_S * 1500) / (30 + PRIOR_S)
    for _ in range(round(3 * WINDOW_S)):
        rate = engine.report(1, 1000, 1e6)
    assert rate == pytest.approx(1000, rel=0.1)


def test_a_false_sum_of_seconds_makes_no_more_busy_than_its_span(learned: LearnedRates) -> None:
    engine = Engine(learned)
    for second in range(1500):
        rate = engine.report(1, 100, 1e9 if second == 150 else 0.1)
        if second >= 150:
            assert rate > 100 * 150 / (15 + SPAN_S + PRIOR_S)
    assert rate == pytest.approx(1000, rel=0.25)


@pytest.mark.parametrize("fallen", range(3))
def test_counters_that_fall_are_no_measure_and_counting_goes_on_behind_them(learned: LearnedRates, fallen: int) -> None:
    engine = Engine(learned)
    before = engine.report(10, 20_000, 1e6, 20)
    engine.totals[fallen] -= 5
    assert engine.report(10, firsts=0) == before
    assert learned.of("a").prefill_tokens_mean == 1000
    assert engine.report(10, 20_000, 1e6, 20) > before


@pytest.mark.parametrize("passed_s", [0.0, -1.0])
def test_two_reports_of_one_moment_are_no_measure(learned: LearnedRates, passed_s: float) -> None:
    engine = Engine(learned)
    before = engine.report(10, 20_000, 1e6)
    assert engine.report(passed_s, 1e9, 1e9) == before


def test_a_node_that_tells_less_for_a_while_is_measured_over_the_gap(learned: LearnedRates) -> None:
    engine = Engine(learned)
    learned.observe(snapshot("a", prefill_tokens_total=99, prefill_seconds_total=None), 5.0)
    assert engine.report(10, 20_000, 1e6) > 1200


def test_a_restart_forgets_all(learned: LearnedRates) -> None:
    engine = Engine(learned)
    engine.report(10, 90_000, 1e6, 10)
    learned.observe(snapshot("a", decode_ms_per_token=20.0, prefix_hits_total=0), 20.0)
    learned.expected_hits("a", 10**6)
    learned.forget("a")
    assert learned.of("a") == learned.of("never seen")
    engine.totals = [5.0, 5.0, 5.0]
    engine.report(10)
    assert learned.of("a").prefill_tokens_mean == 500
    assert learned.of("a").cache_trust == 1.0


def test_the_mean_prompt_follows_what_a_node_computes(learned: LearnedRates) -> None:
    engine = Engine(learned)
    assert learned.of("a").prefill_tokens_mean == 500, "assumed"
    engine.report(1, 4000, 1, 4)
    assert learned.of("a").prefill_tokens_mean == 1000
    engine.report(1, 200, 1, 1)
    assert learned.of("a").prefill_tokens_mean == 1000 - 800 / 32, "one request says little"
    engine.report(1, 64 * 200, 1, 64)
    assert learned.of("a").prefill_tokens_mean == 200, "many say all"
    engine.report(1, 0, 0, 0)
    assert learned.of("a").prefill_tokens_mean == 200


Report = tuple[str, float, int | None, float | None, int | None, int | None, int, float | None]
counters = st.none() | st.integers(0, COUNTER_MAX)
REPORTS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.floats(-10, 1000),
        counters,
        st.none() | st.floats(0, COUNTER_MAX),
        counters,
        counters,
        st.integers(0, 10**7),
        st.none() | st.floats(0, LATENCY_MS_MAX),
    ),
    max_size=30,
)


@given(reports=REPORTS)
def test_whatever_is_reported_rates_and_shares_stay_within_their_bounds(
    reports: list[Report],
) -> None:
    learned, now_s = LearnedRates(EXPECTED), 0.0
    for node_id, passed_s, tokens, seconds, firsts, hits, expected, decode_ms in reports:
        now_s += passed_s
        told = snapshot(
            node_id,
            prefill_tokens_total=tokens,
            prefill_seconds_total=seconds,
            first_tokens_total=firsts,
            prefix_hits_total=hits,
            decode_ms_per_token=decode_ms,
        )
        found = learned.observe(told, now_s)
        learned.expected_hits(node_id, expected)
        assert 0 < found.prefill_tokens_per_s < float("inf")
        assert 0 <= found.prefill_tokens_mean <= COUNTER_MAX
        assert 0 < found.cache_trust <= 1
        assert 0 < learned.prefill_tokens_per_s < float("inf")
