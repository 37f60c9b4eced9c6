"""What an engine does when its KV blocks run out."""

from extproc.sim.counters import FinishReason
from extproc.sim.events import Finished, Preempted, Request
from tests.sim.secondsteps import drained, engine_of, finish_times, keys, times


def test_the_latest_arrival_is_preempted_and_computed_anew() -> None:
    engine = engine_of(kv_blocks=5, context=64, step_tokens=64)
    engine.submit(Request("a", 31, 20), 0.0)
    engine.submit(Request("b", 31, 20), 0.0)
    events = drained(engine)
    # Both hold two of the four blocks; "a" needs a third to compute its 33rd token, in the third step.
    assert [e for e in events if isinstance(e, Preempted)] == [Preempted("b", 2.0)]
    assert times(events, "a") == [float(step) for step in range(1, 21)]
    assert len(times(events, "b")) == 20
    assert times(events, "b")[:3] == [2.0, 21.0, 22.0]
    assert engine.counters.preemptions == 1
    assert engine.counters.request_num_preemptions.sum == 1
    assert engine.pool.usage == 0.0


def test_a_preempted_request_returns_before_those_that_still_wait() -> None:
    engine = engine_of(kv_blocks=5, context=64, step_tokens=64)
    for name in "abc":
        engine.submit(Request(name, 31, 20), 0.0)
    events = drained(engine)
    assert Preempted("b", 2.0) in events
    assert list(finish_times(events)) == ["a", "b", "c"]
    assert times(events, "c")[0] >= times(events, "b")[1]


def test_a_preempted_request_finds_what_is_left_of_its_own_prefix() -> None:
    engine = engine_of(kv_blocks=6, context=64, step_tokens=31)
    engine.submit(Request("a", 31, 20), 0.0)
    engine.submit(Request("b", 31, 20, block_keys=keys(1, 1)), 0.0)
    events = drained(engine)
    assert [e for e in events if isinstance(e, Preempted)] == [Preempted("b", 4.0)]
    # 17 of 33 tokens are computed anew, in one step; all of them would take two.
    assert times(events, "b")[:3] == [3.0, 4.0, 21.0]
    # Such a hit is in no counter, as in vLLM.
    assert engine.counters.prefix_cache_hits == engine.counters.prompt_tokens_cached == 0


def test_what_a_preempted_request_computes_anew_is_shared_again() -> None:
    engine = engine_of(kv_blocks=5, context=64, step_tokens=64)
    engine.submit(Request("a", 31, 20), 0.0)  # ends with all four blocks
    engine.submit(Request("b", 31, 20, block_keys=keys(1, 1)), 0.0)
    drained(engine)
    assert engine.counters.preemptions == 1
    engine.submit(Request("c", 20, 1, block_keys=keys(1, 1)), 100.0)
    assert drained(engine)[-1] == Finished("c", 101.0, FinishReason.LENGTH, cached_tokens=16)


def test_a_preempted_request_has_one_first_token_and_counts_its_prompt_once() -> None:
    engine = engine_of(kv_blocks=5, context=64, step_tokens=64)
    engine.submit(Request("a", 31, 20), 0.0)
    engine.submit(Request("b", 31, 20), 0.0)
    drained(engine)
    counters = engine.counters
    assert counters.time_to_first_token.count == 2
    assert counters.inter_token_latency.count == 38
    assert counters.prompt_tokens == counters.prefix_cache_queries == 62
    assert counters.generation_tokens == 40
