import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.agent.engines import pagevalues, vllm
from extproc.agent.engines.reading import FIRST_LOOK, MEASURED, NOT_TOLD, QUIET, EngineReading
from extproc.core.snapshot import COUNTER_MAX
from tests.agent.pages import sample, started, vllm_lines, vllm_totals


class Engine:
    """Looks again and again."""

    def __init__(self) -> None:
        self.before: pagevalues.Look | None = None

    def __call__(self, page: str) -> EngineReading:
        reading, self.before = vllm.read(page, self.before)
        return reading


def test_the_captured_busy_engine_is_read() -> None:
    reading = Engine()(sample("vllm_0.32.0_cpu_load_3.prom"))
    assert (reading.requests_running, reading.requests_waiting) == (8, 16)
    assert (reading.active_decodes, reading.pending_prefills) == (8, 16)
    assert reading.kv_usage == pytest.approx(48 / 16383)
    assert (reading.kv_blocks_total, reading.kv_block_size_tokens, reading.kv_blocks_available) == (16384, 128, 16336)
    assert reading.started_at_s == 1.79596785248e09
    assert not reading.asleep
    assert reading.absent.keys() == {"prefill_latency_ms", "decode_ms_per_token", "adapter_slots_free"}


def test_the_captured_engine_with_a_small_cache_is_read_and_its_preempted_request_clamped() -> None:
    reading = Engine()(sample("vllm_0.32.0_cpu_smallcache_5.prom"))
    assert (reading.requests_running, reading.requests_waiting) == (9, 14)
    assert reading.active_decodes == 9  # ten first tokens beyond the finished: one waits again
    assert (reading.kv_blocks_total, reading.kv_block_size_tokens, reading.kv_blocks_available) == (160, 32, 13)


def test_the_captured_sequence_gives_the_means_between_its_looks() -> None:
    engine = Engine()
    for name in ("idle_fresh", "load_3"):
        assert engine(sample(f"vllm_0.32.0_cpu_{name}.prom")).restarted is False
    reading = engine(sample("vllm_0.32.0_cpu_after.prom"))
    assert reading.decode_ms_per_token == pytest.approx((80.88271368900041 - 21.212086976999444) / 3569 * 1000)
    assert reading.prefill_latency_ms == pytest.approx((0.8522798220000141 - 0.0886637090000022) / 24 * 1000)
    assert (reading.active_decodes, reading.pending_prefills) == (0, 0)
    assert reading.absent == {"adapter_slots_free": NOT_TOLD}


def test_the_captured_engine_with_another_process_start_began_anew() -> None:
    engine = Engine()
    engine(sample("vllm_0.32.0_cpu_after.prom"))
    assert engine(sample("vllm_0.32.0_cpu_smallcache_5.prom")).restarted


def test_a_fallen_counter_is_a_restart_even_without_a_process_start() -> None:
    engine = Engine()
    engine(vllm_lines(running=5, first_tokens=50, finished=45))
    reading = engine(vllm_lines(running=2, first_tokens=1, finished=0, generated=3))
    assert reading.restarted
    assert reading.active_decodes == 1  # counted from the new start
    assert not engine(vllm_lines(running=2, first_tokens=2, finished=0, generated=3)).restarted


def test_fewer_finished_requests_than_before_are_a_restart_too() -> None:
    engine = Engine()
    engine(vllm_lines(finished=9))
    assert engine(vllm_lines(finished=8)).restarted


def test_nothing_is_compared_across_a_restart() -> None:
    engine = Engine()
    engine(started(1) + vllm_lines(running=2, first_tokens=7, finished=0, decode=(1.0, 10)))
    reading = engine(started(2) + vllm_lines(running=9, first_tokens=8, finished=0, decode=(2.0, 20)))
    assert reading.absent["decode_ms_per_token"] == FIRST_LOOK
    assert reading.active_decodes == 8  # and not one more than before


def test_the_same_process_with_rising_counters_did_not_restart() -> None:
    engine = Engine()
    engine(started(5.5) + vllm_lines(first_tokens=1, finished=1))
    assert not engine(started(5.5) + vllm_lines(first_tokens=2, finished=1, running=1)).restarted
    assert engine(started(9.5) + vllm_lines(first_tokens=2, finished=1, running=1)).restarted


def test_engines_of_a_data_parallel_node_are_summed_and_their_kv_use_weighed_by_blocks() -> None:
    engine = Engine()
    reading = engine(
        vllm_lines(0, running=3, waiting=1, first_tokens=2, kv_usage=0.5, blocks=3000)
        + vllm_lines(1, running=1, waiting=0, first_tokens=1, kv_usage=0.1, blocks=1000)
    )
    assert (reading.requests_running, reading.requests_waiting) == (4, 1)
    assert (reading.active_decodes, reading.pending_prefills) == (3, 2)
    assert reading.kv_usage == pytest.approx(0.4)
    assert (reading.kv_blocks_total, reading.kv_blocks_available) == (4000, 2400)


def test_offsets_are_kept_per_engine() -> None:
    engine = Engine()
    # Engine 0 is idle after five aborts; engine 1 is busy: the sum alone would never see an idle moment.
    engine(vllm_lines(0, first_tokens=5) + vllm_lines(1, running=2, first_tokens=2))
    reading = engine(vllm_lines(0, running=4, first_tokens=6) + vllm_lines(1, running=2, first_tokens=2))
    assert reading.active_decodes == 1 + 2


def test_one_engine_that_drifts_too_fast_makes_the_sum_absent() -> None:
    engine = Engine()
    for step in range(8):
        reading = engine(vllm_lines(0, running=2, first_tokens=10 * (1 + step // 2)) + vllm_lines(1, running=1))
    assert (reading.active_decodes, reading.pending_prefills) == (None, None)
    assert "drift" in reading.absent["active_decodes"]
    assert reading.requests_running == 3


def test_older_names_are_read() -> None:
    old = (
        vllm_lines(running=1, kv_usage=0.25, decode=(1.0, 10))
        .replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
        .replace("inter_token_latency_seconds", "time_per_output_token_seconds")
        .replace("request_prefill_time_seconds", "time_to_first_token_seconds")
        .replace("engine=", "other=")
    )
    engine = Engine()
    engine(old)
    reading = engine(
        old.replace('token_seconds_sum{other="0",model_name="m"} 1.0', 'token_seconds_sum{other="0"} 1.5').replace(
            'token_seconds_count{other="0",model_name="m"} 10', 'token_seconds_count{other="0"} 20'
        )
    )
    assert reading.kv_usage == 0.25
    assert reading.kv_blocks_available == 750
    assert reading.decode_ms_per_token == pytest.approx(50)


def test_means_are_of_the_last_interval_and_absent_without_a_request() -> None:
    engine = Engine()
    assert engine(vllm_lines(prefill=(4.0, 2), decode=(9.0, 100))).absent["prefill_latency_ms"] == FIRST_LOOK
    reading = engine(vllm_lines(prefill=(4.6, 4), decode=(9.0, 100)))
    assert reading.prefill_latency_ms == pytest.approx(300)
    assert (reading.decode_ms_per_token, reading.absent["decode_ms_per_token"]) == (None, QUIET)


def test_without_prefill_times_the_first_token_times_stand_in() -> None:
    lines = vllm_lines().replace("request_prefill_time_seconds", "gone")
    engine = Engine()
    engine(lines + "vllm:time_to_first_token_seconds_sum 1\n")
    reading = engine(lines.replace("first_token_seconds_count{engine=\"0\",model_name=\"m\"} 0",
                                   "first_token_seconds_count{engine=\"0\"} 4")
                     + "vllm:time_to_first_token_seconds_sum 3\n")  # fmt: skip
    assert reading.prefill_latency_ms == pytest.approx(500)


@pytest.mark.parametrize("state", ["weights_offloaded", "discard_all"])
def test_a_sleeping_engine_is_asleep(state: str) -> None:
    page = f'vllm:engine_sleep_state{{sleep_state="awake"}} 0.0\nvllm:engine_sleep_state{{sleep_state="{state}"}} 1.0\n'
    assert Engine()(vllm_lines() + page).asleep
    assert not Engine()(vllm_lines() + page.replace("0.0", "1.0")).asleep


@pytest.mark.parametrize(
    ("before", "after", "signal", "reason"),
    [
        ("num_requests_running{", "gone{", "requests_running", "missing"),
        ('running{engine="0",model_name="m"} 0', "running NaN", "requests_running", "whole number"),
        ('running{engine="0",model_name="m"} 0', "running -1", "requests_running", "whole number"),
        ('waiting{engine="0",model_name="m"} 0', "waiting 1.5", "requests_waiting", "whole number"),
        ('waiting{engine="0",model_name="m"} 0', "waiting +Inf", "requests_waiting", "whole number"),
        ("kv_cache_usage_perc{", "gone{", "kv_usage", "missing"),
        ('perc{engine="0",model_name="m"} 0.0', 'perc{engine="0"} 1.01', "kv_usage", "0..1"),
        ('perc{engine="0",model_name="m"} 0.0', 'perc{engine="0"} NaN', "kv_usage", "0..1"),
        ('num_gpu_blocks="1000"', 'num_gpu_blocks="None"', "kv_blocks_total", "num_gpu_blocks"),
        ('num_gpu_blocks="1000"', 'num_gpu_blocks="0"', "kv_blocks_available", "num_gpu_blocks"),
        ('block_size="16"', 'block_size="-1"', "kv_block_size_tokens", "block_size"),
        ("time_to_first_token_seconds_count{", "gone{", "active_decodes", "missing"),
        ("request_success_total{", "gone{", "pending_prefills", "missing"),
        ("inter_token_latency_seconds_sum{", "gone{", "decode_ms_per_token", "missing"),
    ],
)
def test_a_missing_or_senseless_signal_is_absent_with_its_reason(
    before: str, after: str, signal: str, reason: str
) -> None:
    page = vllm_lines()
    assert before in page
    reading = Engine()(page.replace(before, after))
    assert getattr(reading, signal) is None
    assert reason in reading.absent[signal]


def test_a_page_that_stands_still_with_work_is_frozen() -> None:
    engine = Engine()
    busy = vllm_lines(running=1, generated=5)
    assert not engine(busy).frozen
    assert engine(busy).frozen
    assert not engine(vllm_lines(running=1, generated=6)).frozen
    idle = vllm_lines(generated=6)
    engine(idle)
    assert not engine(idle).frozen


def test_a_page_without_a_counter_of_steps_is_never_frozen() -> None:
    engine = Engine()
    busy = vllm_lines(running=1).replace("generation_tokens_total", "gone")
    engine(busy)
    assert not engine(busy).frozen


def test_one_of_several_engines_that_moves_makes_the_page_younger() -> None:
    engine = Engine()
    engine(vllm_lines(0, running=1, generated=5) + vllm_lines(1, running=1, generated=9))
    assert not engine(vllm_lines(0, running=1, generated=5) + vllm_lines(1, running=1, generated=10)).frozen


NUMBERS = st.one_of(st.floats(), st.integers(-3, 40), st.sampled_from([1e300, -1e300]))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.fixed_dictionaries(
    {"running": NUMBERS, "waiting": NUMBERS, "first_tokens": NUMBERS, "finished": NUMBERS, "kv_usage": NUMBERS,
     "generated": NUMBERS, "prefill": st.tuples(NUMBERS, NUMBERS), "decode": st.tuples(NUMBERS, NUMBERS)}
), max_size=5), st.lists(st.fixed_dictionaries(
    {"prompt": NUMBERS, "computed": st.none() | NUMBERS, "queries": NUMBERS, "hits": NUMBERS, "first_tokens_s": NUMBERS}
), min_size=5, max_size=5))  # fmt: skip
def test_whatever_the_numbers_are_every_signal_is_sane_or_absent(
    looks: list[dict[str, object]], totals: list[dict[str, float | None]]
) -> None:
    engine = Engine()
    for numbers, counted in zip(looks, totals, strict=False):
        since_start = vllm_totals(**counted) + vllm_totals(1, prompt=40, queries=40)  # type: ignore[arg-type]
        reading = engine(vllm_lines(**numbers) + vllm_lines(1) + since_start)  # type: ignore[arg-type]
        for name in MEASURED:
            value = getattr(reading, name)
            assert (value is None) == (name in reading.absent)
            assert value is None or 0 <= value <= COUNTER_MAX
        if reading.prefix_hits_total is not None and reading.prefix_queries_total is not None:
            assert reading.prefix_hits_total <= reading.prefix_queries_total


def test_a_running_gauge_that_is_0_for_a_while_leaves_the_count_of_decodes_as_it_was() -> None:
    look = None
    for generated, running in ((10, 6), (20, 0), (30, 0), (40, 0), (50, 6)):
        page = vllm_lines(running=running, first_tokens=6, generated=generated)
        reading, look = vllm.read(page, look)
        assert reading.active_decodes == running
        assert reading.pending_prefills == 0
