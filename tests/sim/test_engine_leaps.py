"""An engine that leaps tells what one tells that takes each step by itself."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.sim.counters import Counters, FinishReason
from extproc.sim.engine import Engine, EngineSettings
from extproc.sim.events import Event, Finished, FirstToken, Request, Token
from extproc.sim.steptime import StepCost
from tests.sim.enginescripts import (
    EXACT_COST,
    Abort,
    Advance,
    Call,
    Run,
    Submit,
    run_of,
    scripts,
    shown,
    small_engines,
)
from tests.sim.plainengine import PlainEngine

exact_gaps = st.sampled_from([0.0, 2**-10, 2**-6, 3 * 2**-6, 0.125, 0.5])
exact_calls = scripts(exact_gaps)
exact_engines = small_engines(EXACT_COST, block_sizes=(4, 16, 32))
small_costs = small_engines(StepCost(), block_sizes=(4, 16, 32))
examples = settings(deadline=None, max_examples=300)


class StepwiseEngine(Engine):
    """Every leap is one step long."""

    def _steps_alike(self) -> int:
        return 1


def leaping(settings_: EngineSettings) -> Engine:
    return Engine(settings_, tell_tokens=False)


def stepwise(settings_: EngineSettings) -> Engine:
    return StepwiseEngine(settings_, tell_tokens=False)


def without_tokens(events: list[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, Token)]


@examples
@given(exact_engines, exact_calls)
def test_leaps_tell_and_count_what_single_steps_do(settings_: EngineSettings, script: list[Call]) -> None:
    leaps, steps = run_of(settings_, script, engine_of=leaping), run_of(settings_, script, engine_of=stepwise)
    assert leaps.events == steps.events
    assert shown(leaps.engine.counters) == shown(steps.engine.counters)


@examples
@given(small_costs, scripts(st.floats(0, 2)))
def test_rounding_moves_nothing_by_more_than_a_billionth(settings_: EngineSettings, script: list[Call]) -> None:
    leaps, steps = run_of(settings_, script, engine_of=leaping), run_of(settings_, script, engine_of=stepwise)
    assert [(type(event), event.request_id) for event in leaps.events] == [
        (type(event), event.request_id) for event in steps.events
    ]
    assert [event.at_s for event in leaps.events] == pytest.approx([event.at_s for event in steps.events], rel=1e-9)
    assert shown(leaps.engine.counters) == pytest.approx(shown(steps.engine.counters), rel=1e-9)


@examples
@given(exact_engines, exact_calls)
def test_tokens_are_told_or_not_and_nothing_else_changes(settings_: EngineSettings, script: list[Call]) -> None:
    telling, silent = Run(Engine(settings_)), Run(leaping(settings_))
    for call in [*script, Advance(0.5), Advance(3.0)]:
        for run in (telling, silent):
            run.call(call)
            run.events += run.engine.advance(run.now_s)
        assert silent.events == without_tokens(telling.events)
        assert shown(silent.engine.counters) == shown(telling.engine.counters)
        assert silent.engine.next_step_end_s == telling.engine.next_step_end_s
        assert silent.engine.pool.blocks_free == telling.engine.pool.blocks_free


@examples
@given(exact_engines, exact_calls)
def test_the_plain_rules_tell_the_same(settings_: EngineSettings, script: list[Call]) -> None:
    run, plain = Run(Engine(settings_)), PlainEngine(settings_)
    for call in [*script, Advance(0.25), Advance(1000.0)]:
        run.call(call)
        match call:
            case Submit():
                plain.submit(list(run.asked.values())[-1], run.now_s)
            case Abort(_, which) if run.asked:
                plain.abort(str(which % len(run.asked)), run.now_s)
            case _:
                plain.catch_up(run.now_s)
        assert kept_by_plain(run.engine.counters) == kept_by_plain(plain.counters)
        assert run.engine.pool.blocks_free == plain.pool.blocks_free
        assert run.engine.requests_running == len(plain.running)
        assert run.engine.requests_waiting == len(plain.waiting)
        assert run.engine.next_step_end_s == plain.end_s
    assert by_request(run.events) == by_request(plain.events)
    # Only tokens of the same moment have no order between requests.
    assert without_tokens(run.events) == without_tokens(plain.events)


def kept_by_plain(counters: Counters) -> list[float]:
    gauges = counters.num_requests_running, counters.num_requests_waiting, counters.kv_cache_usage
    gaps = counters.inter_token_latency
    return [*gauges, counters.preemptions, counters.generation_tokens, *gaps.in_bucket, gaps.sum]


def by_request(events: list[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(event.request_id, []).append(event)
    return found


@examples
@given(small_costs, scripts(st.floats(0, 2)))
def test_it_does_not_matter_how_often_it_is_asked(settings_: EngineSettings, script: list[Call]) -> None:
    seldom, often = run_of(settings_, script, engine_of=leaping), Run(leaping(settings_))
    for call in script:
        arrival_s = often.now_s + call.gap_s
        while (end_s := often.engine.next_step_end_s) is not None and end_s <= arrival_s:
            often.events += often.engine.advance(end_s)
        often.call(call)
    while (end_s := often.engine.next_step_end_s) is not None:
        often.events += often.engine.advance(end_s)
    assert often.events == seldom.events
    assert shown(often.engine.counters) == shown(seldom.engine.counters)


@examples
@given(exact_engines, exact_calls)
def test_a_driver_that_goes_from_event_to_event_hears_each_at_its_time(
    settings_: EngineSettings, script: list[Call]
) -> None:
    run = Run(leaping(settings_))
    for call in script:
        arrival_s = run.now_s + call.gap_s
        hear(run, arrival_s)
        run.call(dataclasses.replace(call, gap_s=arrival_s - run.now_s))
    hear(run, float("inf"))
    assert run.events == run_of(settings_, script, engine_of=stepwise).events


def hear(run: Run, until_s: float) -> None:
    """Visit every moment that the engine names, and no other."""
    while (event_s := run.engine.next_event_s) is not None and event_s <= until_s:
        assert run.engine.advance(max(run.now_s, math.nextafter(event_s, 0.0))) == []
        events = run.engine.advance(event_s)
        assert {event.at_s for event in events} <= {event_s}
        run.events += events
        run.now_s = event_s


def test_the_moments_to_visit_are_as_many_as_events_and_not_as_tokens() -> None:
    engine = leaping(EngineSettings())
    for index in range(30):
        engine.submit(Request(str(index), 500, 1000 + index), index / 8)
    moments = 0
    while (event_s := engine.next_event_s) is not None:
        moments += 1
        engine.advance(event_s)
    assert engine.counters.generation_tokens == sum(range(1000, 1030))
    # A first token and an end each, and a step in flight that an arrival cut off.
    assert moments <= 3 * 30


def test_a_leap_goes_on_while_a_prompt_waits_that_cannot_fit() -> None:
    engine = leaping(EngineSettings(kv_blocks=80, context_length_tokens=1024))
    engine.submit(Request("a", 500, 400), 0.0)
    engine.submit(Request("b", 800, 1), 0.0)
    engine.advance(engine.next_event_s or 0.0)
    assert (engine.requests_running, engine.requests_waiting) == (1, 1)
    assert len(engine.advance(engine.next_event_s or 0.0)) == 1
    assert engine.counters.generation_tokens == 400


def test_a_waiting_prompt_is_let_in_by_what_another_publishes() -> None:
    settings_ = EngineSettings(kv_blocks=8, context_length_tokens=112, cost=StepCost(1.0, 0.0, 0.0, 0.0, 0.0))
    engine = leaping(settings_)
    # "a" holds three blocks of seven. "b" needs five besides the two full ones, until at 8 s "a" fills its third.
    engine.submit(Request("a", 40, 30, block_keys=range(7)), 0.0)
    engine.submit(Request("b", 112, 0, block_keys=range(7)), 0.0)
    assert engine.advance(100.0) == [
        FirstToken("a", 1.0),
        Finished("b", 9.0, FinishReason.LENGTH, cached_tokens=48),
        Finished("a", 30.0, FinishReason.LENGTH, cached_tokens=0),
    ]


def test_events_that_a_call_has_caught_up_with_are_to_be_told_now() -> None:
    engine = leaping(EngineSettings(cost=StepCost(1.0, 0.0, 0.0, 0.0, 0.0)))
    engine.submit(Request("a", 10, 5), 0.0)
    engine.submit(Request("b", 10, 5), 2.5)
    assert engine.next_event_s == 2.5
    assert engine.advance(2.5) == [FirstToken("a", 1.0)]
    assert engine.next_event_s == 3.0
