"""What vLLM counts since its start, and what of it a router may take differences of."""

import re

import pytest

from extproc.agent.engines import pagevalues, vllm
from extproc.agent.engines.reading import EngineReading
from extproc.core.snapshot import COUNTER_MAX
from tests.agent.pages import sample, started, vllm_lines, vllm_totals


class Engine:
    """Looks again and again."""

    def __init__(self) -> None:
        self.before: pagevalues.Look | None = None

    def __call__(self, page: str) -> EngineReading:
        reading, self.before = vllm.read(page, self.before)
        return reading


def totals(reading: EngineReading) -> tuple[int | None, float | None, int | None]:
    return reading.prefill_tokens_total, reading.prefill_seconds_total, reading.first_tokens_total


def test_the_captured_engine_tells_its_prefills_and_its_cache() -> None:
    reading = Engine()(sample("vllm_0.32.0_cpu_after.prom"))
    assert totals(reading) == (6976, 88.58656716346741, 25)
    assert (reading.prefix_queries_total, reading.prefix_hits_total) == (12352, 5376)


def test_without_sources_what_was_computed_is_what_was_not_found_in_the_cache() -> None:
    page = re.sub(r"(?m)^vllm:prompt_tokens_by_source_total.*\n", "", sample("vllm_0.32.0_cpu_after.prom"))
    assert totals(Engine()(page)) == (6976, 88.58656716346741, 25)


def test_hits_of_requests_in_prefill_take_nothing_away() -> None:
    engine = Engine()
    seen = [
        engine(vllm_lines() + vllm_totals(prompt=prompt, queries=5000, hits=hits)).prefill_tokens_total
        for prompt, hits in [(1000, 0), (1000, 300), (2000, 300)]
    ]
    assert seen == [1000, 1000, 1700]


def test_a_look_without_the_signal_does_not_let_it_fall_afterwards() -> None:
    engine = Engine()
    engine(vllm_lines() + vllm_totals(prompt=1000))
    page = vllm_lines() + vllm_totals(prompt=1000, queries=500, hits=300)
    assert engine(page.replace("prefix_cache_hits_total", "gone")).prefill_tokens_total is None
    assert engine(page).prefill_tokens_total == 1000


def test_hits_before_the_first_token_are_no_negative_work() -> None:
    assert Engine()(vllm_lines() + vllm_totals(queries=900, hits=500)).prefill_tokens_total == 0


def test_one_engine_in_prefill_takes_nothing_from_the_others() -> None:
    page = vllm_lines(0) + vllm_lines(1) + vllm_totals(0, prompt=1000, queries=1000)
    assert Engine()(page + vllm_totals(1, queries=900, hits=500)).prefill_tokens_total == 1000


@pytest.mark.parametrize("told", [True, False])
def test_engines_of_a_data_parallel_node_are_summed(told: bool) -> None:
    def counted(engine: int, *, prompt: int, hits: int, **numbers: float) -> str:
        computed = prompt - hits if told else None
        return vllm_totals(engine, prompt=prompt, hits=hits, queries=prompt, computed=computed, **numbers)

    first = vllm_lines(0, first_tokens=4) + counted(0, prompt=1000, hits=200, first_tokens_s=2.5)
    second = vllm_lines(1, first_tokens=1) + counted(1, prompt=100, hits=90, first_tokens_s=0.25)
    reading = Engine()(first + second)
    assert totals(reading) == (810, 2.75, 5)
    assert (reading.prefix_queries_total, reading.prefix_hits_total) == (1100, 290)


def test_a_restart_resets_what_is_held() -> None:
    engine = Engine()
    engine(started(1) + vllm_lines() + vllm_totals(prompt=1000))
    reading = engine(started(2) + vllm_lines() + vllm_totals(prompt=1000, queries=990, hits=990))
    assert (reading.restarted, reading.prefill_tokens_total) == (True, 10)


@pytest.mark.parametrize("counter", ["prompt", "queries", "hits"])
def test_a_counter_that_fell_in_every_engine_is_a_restart_and_one_that_fell_in_one_alone_is_none(counter: str) -> None:
    def page(first: int, second: int) -> str:
        counted = vllm_totals(0, **{counter: first}) + vllm_totals(1, **{counter: second})
        return vllm_lines(0) + vllm_lines(1) + counted

    engine = Engine()
    engine(page(10, 10))
    assert not engine(page(10, 50)).restarted
    assert not engine(page(9, 99)).restarted
    assert engine(page(8, 98)).restarted


def test_the_older_names_of_the_prefix_cache_are_read_where_the_newer_are_missing() -> None:
    page = vllm_lines() + vllm_totals(prompt=100, queries=100, hits=40)
    both = "vllm:gpu_prefix_cache_queries_total 999\nvllm:gpu_prefix_cache_hits_total 999\n"
    for text in (page.replace("prefix_cache_", "gpu_prefix_cache_"), page + both):
        reading = Engine()(text)
        assert (reading.prefix_queries_total, reading.prefix_hits_total) == (100, 40)
        assert reading.prefill_tokens_total == 60


SENSELESS = ["NaN", "+Inf", "-1", "1e300", str(COUNTER_MAX + 2)]
SIGNALS = {
    "vllm:prompt_tokens_total": ["prefill_tokens_total"],
    "vllm:prefix_cache_queries_total": ["prefix_queries_total"],
    "vllm:prefix_cache_hits_total": ["prefix_hits_total", "prefill_tokens_total"],
    "vllm:time_to_first_token_seconds_sum": ["prefill_seconds_total"],
    "vllm:time_to_first_token_seconds_count": ["first_tokens_total"],
}
PAGE = vllm_lines(first_tokens=5) + vllm_totals(prompt=300, queries=300, hits=100, first_tokens_s=1.0)


def absent_where(counter: str, page: str) -> list[str]:
    """The signals of this counter that are absent, each with a reason that names it."""
    reading = Engine()(page)
    assert getattr(reading, SIGNALS[counter][0]) is None
    return [name for name, reason in reading.absent.items() if counter in reason]


@pytest.mark.parametrize("counter", SIGNALS)
@pytest.mark.parametrize("value", SENSELESS)
def test_what_is_no_number_or_out_of_range_is_absent_with_its_reason(counter: str, value: str) -> None:
    page = re.sub(rf"({counter}{{.*}}) .*", rf"\1 {value}", PAGE)
    assert set(absent_where(counter, page)) >= set(SIGNALS[counter])


@pytest.mark.parametrize("counter", SIGNALS)
def test_what_is_missing_is_absent_with_its_reason(counter: str) -> None:
    assert set(absent_where(counter, PAGE.replace(counter, "gone"))) >= set(SIGNALS[counter])


@pytest.mark.parametrize("value", ["NaN", "-1", "1.5", "1e300"])
def test_a_senseless_source_is_not_made_up_from_the_other_counters(value: str) -> None:
    reading = Engine()(vllm_lines() + vllm_totals(prompt=300, computed=float(value)))
    assert reading.prefill_tokens_total is None
    assert "prompt_tokens_by_source_total" in reading.absent["prefill_tokens_total"]


def test_one_senseless_engine_is_not_hidden_in_the_sum() -> None:
    page = vllm_lines(0) + vllm_totals(0, prompt=500, queries=500) + vllm_lines(1) + vllm_totals(1, prompt=-1)
    assert Engine()(page).prefill_tokens_total is None


def test_a_sum_out_of_range_is_absent() -> None:
    page = vllm_totals(0, queries=COUNTER_MAX, first_tokens_s=COUNTER_MAX) + vllm_totals(1, queries=2, first_tokens_s=9)
    reading = Engine()(vllm_lines(0) + vllm_lines(1) + page)
    assert (reading.prefix_queries_total, reading.prefill_seconds_total) == (None, None)


def test_more_hits_than_queries_are_neither() -> None:
    reading = Engine()(vllm_lines() + vllm_totals(prompt=10, queries=5, hits=6))
    assert (reading.prefix_queries_total, reading.prefix_hits_total) == (None, None)
    assert "is over" in reading.absent["prefix_hits_total"]


def test_an_engine_that_tells_no_hits_leaves_the_computed_tokens_unknown() -> None:
    page = vllm_lines(0) + vllm_lines(1) + vllm_totals(0, prompt=9) + 'vllm:prompt_tokens_total{engine="1"} 5\n'
    assert "for an engine" in Engine()(page).absent["prefill_tokens_total"]
