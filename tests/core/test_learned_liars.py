"""What a node tells of itself, by fault or malice, says little of the others."""

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.learned import SPREAD, LearnedRates
from extproc.core.snapshot import COUNTER_MAX, LATENCY_MS_MAX
from tests.core.fleet import snapshot
from tests.core.totals import EXPECTED, Engine

HONEST = {"a": 1000, "b": 1000, "c": 1000, "slow": 333}
"""Tokens that each computes in a second; all are busy for half of the time."""
DECODE_MS = 20.0

more = st.one_of(st.just(0), st.integers(0, 100), st.integers(0, COUNTER_MAX // 100))
LIES = st.lists(
    st.tuples(more, more, more, st.sampled_from([0.0, 1e-9, 0.001, 1.0, DECODE_MS, LATENCY_MS_MAX])), min_size=1
)


def told(lies: list[tuple[int, int, int, float]]) -> tuple[LearnedRates, list[Engine]]:
    """A minute of a fleet in which one node lies again and again."""
    learned = LearnedRates(EXPECTED)
    honest = [Engine(learned, name) for name in HONEST]
    liar = Engine(learned, "liar")
    for second in range(60):
        for engine, tokens in zip(honest, HONEST.values(), strict=True):
            engine.report(1, tokens / 2, 1, 1)
            learned.observe(snapshot(engine.node_id, decode_ms_per_token=DECODE_MS), engine.now_s)
        tokens_more, waited_s, firsts, decode_ms = lies[second % len(lies)]
        liar.report(1, tokens_more, waited_s, firsts)
        learned.observe(snapshot("liar", decode_ms_per_token=decode_ms), liar.now_s)
    return learned, honest


@given(lies=LIES)
def test_a_node_that_lies_changes_what_is_thought_of_others_by_little(lies: list[tuple[int, int, int, float]]) -> None:
    learned, _ = told(lies)
    rates = [learned.of(name).prefill_tokens_per_s for name in HONEST]
    assert all(0.6 < rate / HONEST[name] < 2.5 for name, rate in zip(HONEST, rates, strict=True)), rates
    assert rates[0] / rates[3] > 1.5, "the slow one is told from the others"
    assert max(rates[:3]) < 1.11 * min(rates[:3]), "the equal ones are not"
    assert DECODE_MS / SPREAD < 1000 * learned.decode_s_per_token < DECODE_MS * 3
    assert 1000 / SPREAD / 2 < learned.prefill_tokens_per_s < 1000 * SPREAD


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
