"""What holds for an engine whatever is asked of it, in small engines that run out of everything."""

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.sim.engine import Engine, EngineSettings
from extproc.sim.events import FirstToken, Preempted, Token
from extproc.sim.steptime import StepCost
from tests.sim.enginescripts import (
    CONTEXT_TOKENS,
    Abort,
    Advance,
    Call,
    Run,
    Submit,
    run_of,
    scripts,
    small_engines,
    submits_after,
    totals,
)

gaps = st.sampled_from([0.0, 0.001, 0.02, 0.0188, 0.1, 0.5])
calls = scripts(gaps)
submits = submits_after(gaps)
engines = small_engines(StepCost())


@settings(deadline=None, max_examples=60)
@given(engines, calls)
def test_every_request_finishes_or_was_aborted_and_no_block_leaks(
    settings_: EngineSettings, script: list[Call]
) -> None:
    run = run_of(settings_, script)
    assert len(run.finished) == len(set(run.finished))
    assert set(run.finished) | run.aborted == set(run.asked)
    assert not set(run.finished) & run.aborted
    assert run.engine.requests_open == run.engine.requests_running == run.engine.requests_waiting == 0
    assert run.engine.pool.usage == 0.0


@settings(deadline=None, max_examples=60)
@given(engines, calls)
def test_at_any_time_open_requests_are_running_or_waiting_and_blocks_are_in_range(
    settings_: EngineSettings, script: list[Call]
) -> None:
    run = Run(Engine(settings_))
    engine = run.engine
    for call in script:
        run.call(call)
        run.events += engine.advance(run.now_s)
        assert engine.requests_open == len(run.asked) - len(run.finished) - len(run.aborted)
        # A running sequence that was aborted is in the batch until the step ends.
        assert engine.requests_open <= engine.requests_running + engine.requests_waiting
        assert engine.requests_running <= settings_.sequences_max
        assert 0 <= engine.pool.blocks_free < settings_.kv_blocks
        assert (engine.next_step_end_s is None) == (engine.requests_running == 0)
        assert engine.requests_running or not engine.requests_waiting


@settings(deadline=None, max_examples=60)
@given(engines, calls)
def test_gauges_are_the_truth_at_the_end_of_a_step(settings_: EngineSettings, script: list[Call]) -> None:
    run = Run(Engine(settings_))
    engine = run.engine
    for call in script:
        run.call(call)
    while (end_s := engine.next_step_end_s) is not None:
        run.now_s = max(run.now_s, end_s)
        engine.advance(run.now_s)
        gauges = engine.counters.num_requests_running + engine.counters.num_requests_waiting
        assert gauges == engine.requests_open == engine.requests_running + engine.requests_waiting
    assert engine.counters.kv_cache_usage == 0.0


@settings(deadline=None, max_examples=60)
@given(engines, calls)
def test_tokens_are_conserved(settings_: EngineSettings, script: list[Call]) -> None:
    run = run_of(settings_, script)
    counters = run.engine.counters
    firsts = [event.request_id for event in run.events if isinstance(event, FirstToken)]
    tokens = [event.request_id for event in run.events if isinstance(event, FirstToken | Token)]
    assert len(firsts) == len(set(firsts)) == counters.time_to_first_token.count
    for request_id in run.finished:
        assert tokens.count(request_id) == run.asked[request_id].output_tokens
    for request_id in run.aborted:
        assert tokens.count(request_id) <= run.asked[request_id].output_tokens
    assert counters.generation_tokens == len(tokens)
    assert counters.inter_token_latency.count == len(tokens) - len(firsts)
    prefilled = set(firsts) | set(run.finished)
    assert counters.prompt_tokens == sum(run.asked[request_id].prompt_tokens for request_id in prefilled)
    assert counters.iteration_tokens.sum == counters.prompt_tokens_computed + counters.generation_tokens
    assert sum(counters.request_success.values()) == counters.e2e_request_latency.count == len(run.finished)
    assert counters.preemptions == sum(isinstance(event, Preempted) for event in run.events)
    assert counters.prefix_cache_hits <= counters.prefix_cache_queries


@settings(deadline=None, max_examples=60)
@given(engines, calls)
def test_counters_never_fall(settings_: EngineSettings, script: list[Call]) -> None:
    run = Run(Engine(settings_))
    before = totals(run.engine.counters)
    for call in [*script, Advance(0.05), Advance(0.3)]:
        run.call(call)
        after = totals(run.engine.counters)
        assert all(old <= new for old, new in zip(before, after, strict=True))
        before = after


@settings(deadline=None, max_examples=60)
@given(engines, calls)
def test_first_tokens_come_in_order_of_arrival(settings_: EngineSettings, script: list[Call]) -> None:
    run = run_of(settings_, script)
    firsts = [int(event.request_id) for event in run.events if isinstance(event, FirstToken)]
    assert firsts == sorted(firsts)


@settings(deadline=None, max_examples=60)
@given(engines, st.lists(st.tuples(gaps, st.integers(1, 60), st.integers(0, 2))), st.integers(1, 36))
def test_answers_of_one_length_finish_in_order_of_arrival(
    settings_: EngineSettings, arrivals: list[tuple[float, int, int]], output_tokens: int
) -> None:
    run = run_of(settings_, [Submit(gap_s, prompt, output_tokens, family) for gap_s, prompt, family in arrivals])
    assert [int(request_id) for request_id in run.finished] == list(range(len(arrivals)))


@settings(deadline=None, max_examples=60)
@given(engines, calls)
def test_a_prefix_cache_changes_costs_and_never_answers(settings_: EngineSettings, script: list[Call]) -> None:
    patient = [call for call in script if not isinstance(call, Abort)]
    with_cache, without = run_of(settings_, patient), run_of(settings_, patient, sharing=False)
    assert without.engine.counters.prefix_cache_hits == 0
    for request_id in with_cache.asked:
        told = [
            [type(event) for event in run.events if event.request_id == request_id and not isinstance(event, Preempted)]
            for run in (with_cache, without)
        ]
        assert told[0] == told[1]


@settings(deadline=None, max_examples=60)
@given(engines, st.lists(submits, min_size=1))
def test_a_request_alone_is_never_slower_for_a_prefix_that_is_cached(
    settings_: EngineSettings, script: list[Submit]
) -> None:
    alone = [Submit(1000.0, call.prompt_tokens, call.output_tokens, call.family) for call in script]
    with_cache, without = run_of(settings_, alone), run_of(settings_, alone, sharing=False)
    for hit, miss in zip(with_cache.events, without.events, strict=True):
        assert hit.at_s <= miss.at_s + 1e-9  # the same sums, added up in another order


@settings(deadline=None, max_examples=60)
@given(engines, calls, st.lists(st.integers(1, 4)))
def test_how_advance_is_split_changes_nothing(settings_: EngineSettings, script: list[Call], splits: list[int]) -> None:
    whole = run_of(settings_, script)
    split = Run(Engine(settings_))
    for index, call in enumerate(script):
        parts = splits[index] if index < len(splits) else 1
        start_s = split.now_s
        for part in range(1, parts):
            split.events += split.engine.advance(start_s + call.gap_s * part / parts)
        split.call(call)
    split.drain()
    assert split.events == whole.events
    assert totals(split.engine.counters) == totals(whole.engine.counters)


def test_the_scripts_reach_what_they_are_meant_to_reach() -> None:
    """The small engines do preempt and share: without that the properties above would say little."""
    settings_ = EngineSettings(kv_blocks=8, context_length_tokens=CONTEXT_TOKENS, sequences_max=4, step_tokens_max=40)
    run = run_of(settings_, [Submit(0.001, 30, 30, 0), Submit(0.001, 40, 30, 1), Submit(0.5, 50, 9, 0)])
    assert run.engine.counters.preemptions > 0
    assert run.engine.counters.prefix_cache_hits > 0
