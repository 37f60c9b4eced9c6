"""How an engine serves: steps, chunks, admission, ends and aborts."""

import pytest

from extproc.sim.counters import FinishReason
from extproc.sim.events import Finished, FirstToken, Request, Token
from tests.sim.secondsteps import drained, engine_of, finish_times, times


def test_an_idle_engine_has_no_next_step() -> None:
    engine = engine_of()
    assert engine.next_step_end_s is None
    assert engine.advance(100.0) == []


def test_a_request_gets_a_first_token_then_one_each_step_then_ends() -> None:
    engine = engine_of()
    engine.submit(Request("a", 10, 3), 5.0)
    assert engine.next_step_end_s == 6.0
    assert drained(engine) == [
        FirstToken("a", 6.0),
        Token("a", 7.0),
        Token("a", 8.0),
        Finished("a", 8.0, FinishReason.LENGTH, 0),
    ]
    assert engine.requests_open == 0


def test_nothing_is_told_before_its_time() -> None:
    engine = engine_of()
    engine.submit(Request("a", 10, 1), 0.0)
    assert engine.advance(0.999) == []
    assert engine.advance(1.0) == [FirstToken("a", 1.0), Finished("a", 1.0, FinishReason.LENGTH, 0)]


def test_a_long_prompt_is_computed_in_chunks_of_the_step_budget() -> None:
    engine = engine_of(step_tokens=64)
    engine.submit(Request("a", 129, 1), 0.0)
    assert times(drained(engine), "a") == [3.0]


def test_running_answers_go_on_while_a_prompt_is_computed_in_chunks() -> None:
    engine = engine_of(step_tokens=64)
    engine.submit(Request("old", 10, 10), 0.0)
    engine.submit(Request("new", 160, 1), 0.5)
    events = drained(engine)
    assert times(events, "old") == [float(step) for step in range(1, 11)]
    # 63 tokens a step beside the one of "old", from the second step on.
    assert times(events, "new") == [4.0]


def test_what_arrives_during_a_step_waits_for_the_next() -> None:
    engine = engine_of()
    engine.submit(Request("a", 10, 2), 0.0)
    engine.submit(Request("b", 10, 1), 0.1)
    assert (engine.requests_running, engine.requests_waiting) == (1, 1)
    assert times(drained(engine), "b") == [2.0]


def test_no_more_sequences_run_at_once_than_allowed() -> None:
    engine = engine_of(sequences=2)
    engine.submit(Request("first", 5, 1), 0.0)
    for name in "abc":
        engine.submit(Request(name, 5, 3), 0.5)
    engine.advance(1.0)
    assert (engine.requests_running, engine.requests_waiting) == (2, 1)
    assert finish_times(drained(engine)) == {"a": 4.0, "b": 4.0, "c": 7.0}


def test_a_request_is_admitted_only_when_its_whole_prompt_fits() -> None:
    engine = engine_of(kv_blocks=9, context=112, step_tokens=16)
    engine.submit(Request("a", 64, 2), 0.0)  # 4 blocks in 4 steps, a fifth for its second token
    engine.submit(Request("b", 80, 1), 0.0)  # 5 blocks; its first chunk alone would fit
    engine.advance(4.0)
    assert (engine.requests_running, engine.requests_waiting) == (1, 1)
    assert finish_times(drained(engine)) == {"a": 5.0, "b": 10.0}


def test_later_requests_do_not_overtake_one_that_does_not_fit() -> None:
    engine = engine_of(kv_blocks=9, context=112, step_tokens=128)
    engine.submit(Request("a", 64, 3), 0.0)
    engine.submit(Request("large", 80, 1), 0.1)
    engine.submit(Request("small", 16, 1), 0.2)
    events = drained(engine)
    assert [e.request_id for e in events if isinstance(e, FirstToken)] == ["a", "large", "small"]


def test_pooling_ends_with_its_prefill_and_has_no_first_token() -> None:
    engine = engine_of()
    engine.submit(Request("a", 100, 0, FinishReason.STOP), 0.0)
    assert drained(engine) == [Finished("a", 2.0, FinishReason.STOP, 0)]
    counters = engine.counters
    assert counters.time_to_first_token.count == counters.generation_tokens == 0
    assert counters.request_success == {FinishReason.STOP: 1, FinishReason.LENGTH: 0}
    assert counters.iteration_tokens.sum == counters.prompt_tokens == 100


def test_an_aborted_waiting_request_leaves_at_once() -> None:
    engine = engine_of(sequences=1)
    engine.submit(Request("a", 5, 2), 0.0)
    engine.submit(Request("b", 5, 2), 0.0)
    engine.abort("b", 0.5)
    assert engine.requests_waiting == 0
    assert finish_times(drained(engine)) == {"a": 2.0}


def test_an_aborted_running_request_keeps_its_blocks_until_the_step_ends() -> None:
    engine = engine_of(kv_blocks=33, context=512)
    engine.submit(Request("a", 32, 9), 0.0)
    engine.abort("a", 0.5)
    assert (engine.requests_open, engine.requests_running, engine.pool.blocks_free) == (0, 1, 30)
    assert engine.next_step_end_s == 1.0
    assert engine.advance(1.0) == []
    assert (engine.requests_running, engine.pool.blocks_free) == (0, 32)
    assert engine.next_step_end_s is None


def test_an_aborted_request_stays_in_what_it_reached_and_never_succeeds() -> None:
    engine = engine_of()
    engine.submit(Request("a", 10, 9), 0.0)
    engine.advance(2.0)
    engine.abort("a", 2.5)
    drained(engine)
    counters = engine.counters
    assert counters.time_to_first_token.count == 1
    assert counters.generation_tokens == 2
    assert set(counters.request_success.values()) == {0}
    assert counters.e2e_request_latency.count == counters.request_prompt_tokens.count == 0
    assert counters.num_requests_running == 0


@pytest.mark.parametrize("request_id", ["a", "never"])
def test_aborting_what_is_not_open_is_harmless(request_id: str) -> None:
    engine = engine_of()
    engine.submit(Request("a", 10, 1), 0.0)
    drained(engine)
    engine.abort(request_id, 5.0)
    assert engine.counters.request_success[FinishReason.LENGTH] == 1
