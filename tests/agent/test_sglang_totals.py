"""What SGLang's adapter makes of times and totals."""

import pytest

from extproc.agent.engines import pagevalues, sglang
from extproc.agent.engines.reading import FIRST_LOOK, QUIET, EngineReading
from tests.agent.sglangpages import computed, front, labels, looked_up, scheduler, stopwatch


class Engine:
    """Looks again and again."""

    def __init__(self) -> None:
        self.before: pagevalues.Look | None = None

    def __call__(self, page: str) -> EngineReading:
        reading, self.before = sglang.read(page, self.before)
        return reading


def read(page: str) -> EngineReading:
    return Engine()(page)


def test_requests_that_are_not_streamed_do_not_make_prefills_look_long() -> None:
    both = front(first_tokens=(2.0, 10), streamed=True) + front(first_tokens=(300.0, 10), streamed=False)
    late = read(scheduler() + both)
    assert (late.prefill_seconds_total, late.first_tokens_total) == (None, None)
    assert "not streamed" in late.absent["first_tokens_total"]
    clocked = read(scheduler() + both + stopwatch(prefills=(3.0, 20), queued_s=1.5))
    assert (clocked.prefill_seconds_total, clocked.first_tokens_total) == (4.5, 20)


def test_prefill_times_are_the_stopwatchs_or_those_of_streamed_first_tokens() -> None:
    engine = Engine()
    unstreamed = front(first_tokens=(500.0, 50), streamed=False)
    engine(scheduler() + front(first_tokens=(2.0, 10), streamed=True) + unstreamed.replace("500.0", "100.0"))
    reading = engine(scheduler() + front(first_tokens=(5.0, 20), streamed=True) + unstreamed)
    assert reading.prefill_latency_ms == pytest.approx(300)
    engine = Engine()
    engine(scheduler() + stopwatch(prefills=(1.0, 10), queued_s=0))
    assert engine(scheduler() + stopwatch(prefills=(1.5, 20), queued_s=9)).prefill_latency_ms == pytest.approx(50)


@pytest.mark.parametrize("name", ["inter_token_latency_seconds", "time_per_output_token_seconds"])
def test_the_time_of_a_token_is_the_mean_of_the_interval_by_either_name(name: str) -> None:
    engine = Engine()

    def page(seconds: float, count: float) -> str:
        return (scheduler() + front(gaps=(seconds, count))).replace("inter_token_latency_seconds", name)

    assert engine(page(1.0, 100)).absent["decode_ms_per_token"] == FIRST_LOOK
    assert engine(page(2.0, 150)).decode_ms_per_token == pytest.approx(20)
    assert engine(page(2.0, 150)).absent["decode_ms_per_token"] == QUIET


def test_what_is_found_in_the_cache_has_a_series_from_the_first_token_on() -> None:
    reading = read(scheduler() + computed(computed=500))
    assert (reading.prefill_tokens_total, reading.prefix_queries_total, reading.prefix_hits_total) == (500, 500, 0)
    reading = read(scheduler() + front(prompt=500))
    assert (reading.prefill_tokens_total, reading.prefix_hits_total) == (None, None)
    assert "cached_tokens_total is missing" in reading.absent["prefill_tokens_total"]


def test_more_hits_than_lookups_are_no_hits() -> None:
    reading = read(scheduler() + front(prompt=5, cached=6))
    assert (reading.prefill_tokens_total, reading.prefix_queries_total, reading.prefix_hits_total) == (None, None, None)


def test_the_cache_is_told_by_the_tiers_that_newer_versions_count() -> None:
    page = computed(computed=7, found=3) + looked_up(input=60, device_hit=30, host_hit=9, storage_hit=1)
    reading = read(scheduler() + page)
    assert (reading.prefill_tokens_total, reading.prefix_queries_total, reading.prefix_hits_total) == (7, 100, 40)


@pytest.mark.parametrize(
    ("slots", "wanted"),
    [
        ({0: (8, 3)}, 5),
        ({0: (8, 3), 1: (8, 7)}, 1),
        ({0: (4, 5)}, 0),
        ({0: (8, "NaN")}, None),
        ({0: (-1, 0)}, None),
        ({0: (8, 3), 1: (8, None)}, None),
    ],
)
def test_the_rank_with_the_fewest_slots_tells_how_many_adapters_fit(
    slots: dict[int, tuple[float, float | None]], wanted: int | None
) -> None:
    page = "".join(
        f"sglang:lora_pool_slots_{name}{labels(rank)} {count}\n"
        for rank, pair in slots.items()
        for name, count in zip(("total", "used"), pair, strict=True)
        if count is not None
    )
    reading = read(scheduler() + page)
    assert reading.adapter_slots_free == wanted
    assert (wanted is None) == ("lora_pool" in reading.absent.get("adapter_slots_free", ""))
