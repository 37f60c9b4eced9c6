"""What an engine does not compute again."""

from extproc.sim.counters import FinishReason
from extproc.sim.events import Finished, Request
from tests.sim.secondsteps import drained, engine_of, finish_times, keys


def test_a_shared_prefix_is_not_computed_again() -> None:
    engine = engine_of(step_tokens=16)
    engine.submit(Request("a", 64, 1, block_keys=keys(1, 4)), 0.0)
    assert finish_times(drained(engine)) == {"a": 4.0}
    engine.submit(Request("b", 80, 1, block_keys=keys(1, 4) + keys(2, 1)), 10.0)
    assert drained(engine)[-1] == Finished("b", 11.0, FinishReason.LENGTH, cached_tokens=64)
    assert engine.counters.prefix_cache_queries == 144
    assert engine.counters.prefix_cache_hits == engine.counters.prompt_tokens_cached == 64
    assert engine.counters.prompt_tokens_computed == 80
    assert engine.counters.prompt_tokens == 144
    assert engine.counters.request_prefill_kv_computed_tokens.sum == 64 + 16


def test_of_a_prompt_that_is_cached_whole_the_last_block_is_computed_again() -> None:
    engine = engine_of()
    engine.submit(Request("a", 64, 1, block_keys=keys(1, 4)), 0.0)
    drained(engine)
    engine.submit(Request("b", 64, 1, block_keys=keys(1, 4)), 10.0)
    assert drained(engine)[-1] == Finished("b", 11.0, FinishReason.LENGTH, cached_tokens=48)


def test_a_partial_block_is_never_shared() -> None:
    engine = engine_of()
    engine.submit(Request("a", 31, 1, block_keys=keys(1, 2)), 0.0)
    drained(engine)
    engine.submit(Request("b", 40, 1, block_keys=keys(1, 2)), 10.0)
    assert drained(engine)[-1] == Finished("b", 11.0, FinishReason.LENGTH, cached_tokens=16)


def test_blocks_filled_by_an_answer_are_shared_with_the_next_turn() -> None:
    engine = engine_of()
    engine.submit(Request("a", 16, 33, block_keys=keys(1, 3)), 0.0)
    drained(engine)
    engine.submit(Request("b", 64, 1, block_keys=keys(1, 3)), 100.0)
    assert drained(engine)[-1] == Finished("b", 101.0, FinishReason.LENGTH, cached_tokens=48)


def test_requests_of_one_step_share_their_prefix() -> None:
    engine = engine_of(step_tokens=256)
    engine.submit(Request("first", 1, 1), 0.0)
    engine.submit(Request("a", 64, 1, block_keys=keys(1, 4)), 0.1)
    engine.submit(Request("b", 64, 1, block_keys=keys(1, 4)), 0.2)
    assert drained(engine)[-1] == Finished("b", 2.0, FinishReason.LENGTH, cached_tokens=48)
