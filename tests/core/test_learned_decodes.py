"""What is learned of decoding: how long a step takes."""

import pytest

from extproc.core.learned import STEP_RISE, STEP_S_MAX, LearnedRates
from tests.core.fleet import snapshot
from tests.core.totals import EXPECTED, Engine


@pytest.fixture
def learned() -> LearnedRates:
    return LearnedRates(EXPECTED)


def test_the_decode_time_is_learned_from_what_nodes_report(learned: LearnedRates) -> None:
    assert learned.decode_s_per_token == 0.01
    learned.observe(snapshot("a", decode_ms_per_token=20.0), 1.0)
    learned.observe(snapshot("b", decode_ms_per_token=40.0), 1.0)
    learned.observe(snapshot("b", decode_ms_per_token=None), 2.0)
    assert learned.decode_s_per_token == pytest.approx(0.03)
    assert learned.of("b").decode_s_per_token == 0.04
    learned.forget("b")
    assert learned.decode_s_per_token == pytest.approx(0.02)
    learned.forget("a")
    assert learned.decode_s_per_token == 0.01


def test_a_second_of_long_steps_changes_no_rate(learned: LearnedRates) -> None:
    """A report's mean is one of a second, in which a long prompt may share all steps. The next ones tell less again."""
    engine = Engine(learned)
    learned.observe(snapshot("a", decode_ms_per_token=10.0), 0.0)
    for _ in range(60):
        before = engine.report(1, 900, 1.5, 30)
    learned.observe(snapshot("a", decode_ms_per_token=2000.0), 60.0)
    assert learned.decode_s_per_token == 2.0
    assert learned.of("a").prefill_tokens_per_s == pytest.approx(before, rel=0.05)


def test_a_step_is_the_shortest_that_any_node_told_lately_and_rises_slowly(learned: LearnedRates) -> None:
    """Else a slow node would lengthen the steps of all, and look less slow by it."""
    for node_id, told_ms in (("slow", 60.0), ("a", 20.0), ("b", 25.0), ("told none", None)):
        learned.observe(snapshot(node_id, decode_ms_per_token=told_ms), 1.0)
    assert learned._step_s == 0.02
    learned.observe(snapshot("a", decode_ms_per_token=90.0), 2.0)
    assert learned._step_s == pytest.approx(0.02 * STEP_RISE)
    for _ in range(20):
        learned.observe(snapshot("a", decode_ms_per_token=90.0), 3.0)
    assert learned._step_s == 0.025, "another's is shorter now"
    learned.forget("b")
    assert 0.02 < learned._step_s < 0.06
    for _ in range(200):
        learned.observe(snapshot("a", decode_ms_per_token=90.0), 4.0)
        learned.observe(snapshot("slow", decode_ms_per_token=70.0), 4.0)
    assert learned._step_s == 0.07, "it lasts"
    learned.forget("slow")
    assert learned._step_s == 0.09
    learned.observe(snapshot("a", decode_ms_per_token=15.0), 5.0)
    assert learned._step_s == 0.015, "at once"
    for name in ("a", "told none"):
        learned.forget(name)
    assert learned._step_s == 0.01, "the configured one"


def test_no_step_is_taken_to_be_longer_than_a_bound() -> None:
    learned = LearnedRates(EXPECTED.model_copy(update={"decode_s_per_token": 5.0}))
    assert learned._step_s == STEP_S_MAX
    learned.observe(snapshot("a", decode_ms_per_token=900.0), 1.0)
    assert (learned._step_s, learned.decode_s_per_token) == (STEP_S_MAX, 0.9)
