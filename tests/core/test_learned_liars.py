"""What a node tells of itself, by fault or malice, says little of the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.learned import RENEWED_AT_ONCE, SPREAD, LearnedRates
from extproc.core.snapshot import COUNTER_MAX, LATENCY_MS_MAX
from tests.core.fleet import snapshot
from tests.core.totals import EXPECTED, Engine

HONEST = {"a": 1000, "b": 1000, "c": 1000, "slow": 333}
"""Tokens that each computes in a second."""
DECODE_MS = 20.0

more = st.one_of(st.just(0), st.integers(0, 100), st.integers(0, COUNTER_MAX // 100))
LIES = st.lists(
    st.tuples(more, more, more, st.sampled_from([0.0, 1e-9, 0.001, 1.0, DECODE_MS, LATENCY_MS_MAX])), min_size=1
)


def told(lies: list[tuple[int, int, int, float]], busy: float) -> LearnedRates:
    """A minute of a fleet whose nodes are busy for this share of the time, but for one that lies again and again."""
    learned = LearnedRates(EXPECTED)
    honest = [Engine(learned, name) for name in HONEST]
    liar = Engine(learned, "liar")
    for second in range(60):
        for engine, tokens in zip(honest, HONEST.values(), strict=True):
            engine.report(1, tokens * busy, busy / (1 - busy), 2 * busy)
            learned.observe(snapshot(engine.node_id, decode_ms_per_token=DECODE_MS), engine.now_s)
        tokens_more, waited_s, firsts, decode_ms = lies[second % len(lies)]
        liar.report(1, tokens_more, waited_s, firsts)
        learned.observe(snapshot("liar", decode_ms_per_token=decode_ms), liar.now_s)
    return learned


@given(lies=LIES)
def test_a_node_that_lies_changes_what_is_thought_of_others_by_little(lies: list[tuple[int, int, int, float]]) -> None:
    learned = told(lies, busy=0.5)
    rates = [learned.of(name).prefill_tokens_per_s for name in HONEST]
    assert all(0.6 < rate / HONEST[name] < 2.5 for name, rate in zip(HONEST, rates, strict=True)), rates
    assert rates[0] / rates[3] > 1.5, "the slow one is told from the others"
    assert max(rates[:3]) < 1.01 * min(rates[:3]), "the equal ones are not"


@given(lies=LIES, busy=st.floats(0.001, 0.9))
def test_however_little_the_others_do_a_node_that_lies_moves_all_of_them_together_and_within_a_bound(
    lies: list[tuple[int, int, int, float]], busy: float
) -> None:
    """Hardly anything is known of them: they have the fleet's rate, which the liar makes."""
    learned = told(lies, busy)
    rates = [learned.of(name).prefill_tokens_per_s for name in HONEST]
    assert max(rates[:3]) < 1.01 * min(rates[:3])
    assert rates[3] < 1.01 * rates[0]
    assert all(300 / SPREAD < rate < 1100 * SPREAD for rate in rates)
    assert DECODE_MS / SPREAD < 1000 * learned.decode_s_per_token < DECODE_MS * 3
    assert DECODE_MS / SPREAD <= 1000 * learned._step_s * 1.001 <= DECODE_MS * 1.001


@pytest.mark.parametrize(("times", "counts"), [(SPREAD - 1, True), (SPREAD + 1, False)])
def test_who_counts_for_the_fleet_is_within_a_bound_of_the_median(times: float, counts: bool) -> None:
    learned = LearnedRates(EXPECTED)
    engines = [Engine(learned, name) for name in ("a", "b", "other")]
    for _ in range(200):
        for engine, tokens in zip(engines, (1000, 1000, 1000 * times), strict=True):
            engine.report(1, tokens, 1e6, 0)
    of_all = 1000 * (2 + times) / 3
    assert learned.prefill_tokens_per_s == pytest.approx(of_all if counts else 1000, rel=0.05)


def test_nodes_that_computed_nothing_say_nothing() -> None:
    """Most are idle, and stand with the assumed rate of 1000: the fleet's is that of the two that work."""
    learned = LearnedRates(EXPECTED)
    for number in range(5):
        Engine(learned, f"idle{number}")
    engines = [Engine(learned, name) for name in "ab"]
    for _ in range(200):
        for engine in engines:
            engine.report(1, 20_000, 1e6, 0)
    assert learned.prefill_tokens_per_s > 15_000


def test_a_fleet_is_looked_through_about_once_a_round_of_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each report it would be the square of the nodes; and as well when many leave at once."""
    learned = LearnedRates(EXPECTED)
    looks: list[int] = []
    renew = learned._renew

    def look() -> None:
        looks.append(1)
        renew()

    monkeypatch.setattr(learned, "_renew", look)
    engines = [Engine(learned, f"n{number}") for number in range(200)]
    looks.clear()
    for engine in engines:
        engine.report(1, 500, 1, 1)
        learned.observe(snapshot(engine.node_id, decode_ms_per_token=20.0), engine.now_s)
    assert 1 <= len(looks) <= 3
    looks.clear()
    for engine in engines[RENEWED_AT_ONCE:]:
        learned.forget(engine.node_id)
    assert 1 <= len(looks) <= 12, "the fewer are left, the less it takes"
    for engine in engines[:RENEWED_AT_ONCE]:
        looks.clear()
        engine.report(1, 500, 1, 1)
        assert looks == [1]


@pytest.mark.parametrize("told", [(0, 0, 0), (0, 0, 3)])
def test_a_report_that_tells_nothing_new_makes_nobody_look(
    told: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = LearnedRates(EXPECTED)
    engine = Engine(learned)
    engine.report(1, 500, 1, 1)
    monkeypatch.setattr(learned, "_renew", lambda: pytest.fail("nothing has changed"))
    engine.report(1, *told)


def test_one_that_is_really_other_than_all_is_learned_as_it_is() -> None:
    """A node ten times as fast: the fleet's rate is that of the others, its own is not."""
    learned = LearnedRates(EXPECTED)
    engines = [Engine(learned, name) for name in ("a", "b", "c", "fast")]
    for _ in range(200):
        for engine in engines[:3]:
            engine.report(1, 500, 1, 1)
        fast = engines[3].report(1, 5000, 1, 1)
    assert 900 < learned.prefill_tokens_per_s < 1150
    assert 8000 < fast < 11_500
