"""What an engine counts."""

import pytest

from extproc.sim.events import Request
from tests.sim.secondsteps import drained, engine_of


def test_gauges_describe_the_last_finished_step() -> None:
    engine = engine_of(kv_blocks=101, sequences=1, context=512)
    engine.submit(Request("a", 32, 3), 0.0)
    engine.submit(Request("b", 32, 1), 0.5)
    counters = engine.counters
    assert (counters.num_requests_running, counters.num_requests_waiting, counters.kv_cache_usage) == (0, 0, 0.0)
    engine.advance(1.0)
    assert (counters.num_requests_running, counters.num_requests_waiting) == (1, 1)
    assert counters.kv_cache_usage == pytest.approx(0.02)
    engine.submit(Request("c", 32, 1), 1.5)
    assert counters.num_requests_waiting == 1
    engine.advance(2.0)
    assert counters.num_requests_waiting == 2


def test_a_step_that_answers_nobody_is_no_iteration() -> None:
    engine = engine_of(step_tokens=64)
    engine.submit(Request("a", 200, 2), 0.0)
    engine.advance(3.0)
    assert engine.counters.iteration_tokens.count == 0
    drained(engine)
    # The whole prompt counts with the first token.
    assert engine.counters.iteration_tokens.count == 2
    assert engine.counters.iteration_tokens.sum == 202


def test_the_times_of_a_finished_request_are_observed() -> None:
    engine = engine_of(sequences=1)
    engine.submit(Request("a", 10, 2), 0.0)
    engine.submit(Request("b", 100, 5), 0.5)
    drained(engine)
    counters = engine.counters
    # "b": queued from 0.5 to 2, prefill until 4, four more tokens until 8.
    assert counters.time_to_first_token.sum == 1.0 + 3.5
    assert counters.request_queue_time.sum == 0.0 + 1.5
    assert counters.request_prefill_time.sum == 1.0 + 2.0
    assert counters.request_decode_time.sum == 1.0 + 4.0
    assert counters.request_inference_time.sum == 2.0 + 6.0
    assert counters.e2e_request_latency.sum == 2.0 + 7.5
    assert counters.request_time_per_output_token.sum == 1.0 + 1.0
    assert counters.inter_token_latency.sum == 5.0
    assert counters.request_generation_tokens.sum == 7
