"""What an engine can be told: costs, sizes and speed."""

import dataclasses
import re

import pytest

from extproc.sim.engine import Engine, EngineSettings
from extproc.sim.events import Finished, Request
from extproc.sim.steptime import StepCost, StepWork
from tests.sim.secondsteps import drained, engine_of, times


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
