import dataclasses
import re

import pytest

from extproc.sim.counters import FinishReason
from extproc.sim.engine import Engine, EngineSettings
from extproc.sim.events import Event, Finished, FirstToken, Preempted, Request, Token
from extproc.sim.steptime import StepCost, StepWork

SECOND_PER_STEP = StepCost(1.0, 0.0, 0.0, 0.0, 0.0)


def engine_of(kv_blocks: int = 100, context: int = 512, sequences: int = 8, step_tokens: int = 64) -> Engine:
    """Every step lasts a second, so a time is a number of steps."""
    return Engine(
        EngineSettings(
            kv_blocks=kv_blocks,
            context_length_tokens=context,
            sequences_max=sequences,
            step_tokens_max=step_tokens,
            cost=SECOND_PER_STEP,
        )
    )


def keys(family: int, blocks: int) -> tuple[int, ...]:
    return tuple(family * 1000 + index for index in range(blocks))


def drained(engine: Engine) -> list[Event]:
    events = []
    while (end_s := engine.next_step_end_s) is not None:
        events += engine.advance(end_s)
    return events


def times(events: list[Event], request_id: str) -> list[float]:
    return [e.at_s for e in events if e.request_id == request_id and isinstance(e, FirstToken | Token)]


def finish_times(events: list[Event]) -> dict[str, float]:
    return {e.request_id: e.at_s for e in events if isinstance(e, Finished)}


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


def test_a_step_costs_what_its_work_costs() -> None:
    cost = StepCost(1.0, 0.1, 0.01, 0.001, 0.0001)
    assert cost.seconds(StepWork(3, 5, 7, 11.0)) == pytest.approx(1.0 + 0.3 + 0.05 + 0.007 + 0.0011)
    settings = EngineSettings(kv_blocks=10, context_length_tokens=100, sequences_max=4, step_tokens_max=40, cost=cost)
    engine = Engine(settings)
    engine.submit(Request("a", 60, 3), 0.0)
    first = 1.0 + 4.0 + 40 * 20 * 0.0001
    second = 1.0 + 2.0 + 20 * (40 + 10) * 0.0001
    decode = 1.0 + 0.01 + 61 * 0.001
    events = drained(engine)
    assert times(events, "a")[:2] == pytest.approx([first + second, first + second + decode])
    fast = Engine(dataclasses.replace(settings, speed=2.0))
    fast.submit(Request("a", 60, 3), 0.0)
    assert times(drained(fast), "a") == pytest.approx([at_s / 2 for at_s in times(events, "a")])


@pytest.mark.parametrize(
    ("prompt", "output", "at_once", "ttft_s", "gap_s"),
    [(5000, 500, 1, (0.36, 0.41), (0.0186, 0.0199)), (500, 2000, 50, (0.04, 0.30), (0.025, 0.027))],
)
def test_the_default_costs_are_those_of_a_published_engine(
    prompt: int, output: int, at_once: int, ttft_s: tuple[float, float], gap_s: tuple[float, float]
) -> None:
    engine = Engine(EngineSettings())
    for index in range(at_once):
        engine.submit(Request(str(index), prompt, output), index * output * 0.0258 / at_once)
    drained(engine)
    ttft, gap = engine.counters.time_to_first_token, engine.counters.inter_token_latency
    assert ttft_s[0] < ttft.sum / ttft.count < ttft_s[1]
    # Half of the time fewer than all are there: ramp up and down.
    assert gap_s[0] - (0.003 if at_once > 1 else 0) < gap.sum / gap.count < gap_s[1]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kv_blocks": 8, "context_length_tokens": 113}, "113 tokens of context need 9 kv_blocks, got 8"),
        ({"step_tokens_max": 7, "sequences_max": 8}, "step_tokens_max (7) must not be less than sequences_max (8)"),
        ({"speed": 0.0}, "must be over 0"),
        ({"speed": float("inf")}, "must be over 0"),
        ({"speed": float("nan")}, "must be over 0"),
        ({"sequences_max": 0}, "must be over 0"),
        ({"context_length_tokens": 0}, "must be over 0"),
        ({"block_size_tokens": 0}, "must be over 0"),
        ({"block_size_tokens": 64, "kv_blocks": 2048}, "131072 tokens of context need 2049 kv_blocks, got 2048"),
    ],
)
def test_settings_that_could_not_run_are_refused(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        EngineSettings(**wrong)  # type: ignore[arg-type]


def test_a_context_that_just_fits_the_cache_is_allowed_and_can_be_used_whole() -> None:
    engine = engine_of(kv_blocks=8, context=112)
    engine.submit(Request("a", 100, 12), 0.0)
    assert isinstance(drained(engine)[-1], Finished)


def test_blocks_may_be_larger() -> None:
    engine = Engine(
        EngineSettings(
            kv_blocks=9, block_size_tokens=64, context_length_tokens=512, sequences_max=8, step_tokens_max=64
        )
    )
    engine.submit(Request("a", 130, 1, block_keys=range(2)), 0.0)
    assert engine.pool.blocks_free == 7
    drained(engine)
    engine.submit(Request("b", 200, 1, block_keys=range(3)), 100.0)
    finished = drained(engine)[-1]
    assert isinstance(finished, Finished)
    assert finished.cached_tokens == 128
