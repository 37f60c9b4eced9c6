"""SGLang's adapter: versions before and after 0.5.11, ranks, queues, and a page that is late."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.agent.engines import kinds, pagevalues, sglang
from extproc.agent.engines.enginekind import EngineKind
from extproc.agent.engines.reading import FIRST_LOOK, NOT_TOLD, EngineReading
from extproc.core.snapshot import ServedModel
from tests.agent.anypages import assert_sane, pages
from tests.agent.pages import started
from tests.agent.sglangpages import FULL, config_info, front, labels, scheduler


class Engine:
    """Looks again and again."""

    def __init__(self) -> None:
        self.before: pagevalues.Look | None = None

    def __call__(self, page: str) -> EngineReading:
        reading, self.before = sglang.read(page, self.before)
        return reading


def read(page: str) -> EngineReading:
    return Engine()(page)


def test_a_recent_page_is_read() -> None:
    reading = read(FULL)
    assert (reading.requests_running, reading.requests_waiting) == (7, 3)
    assert (reading.active_decodes, reading.pending_prefills) == (7, 3)
    assert (reading.kv_usage, reading.kv_block_size_tokens) == (0.25, 16)
    assert (reading.kv_blocks_total, reading.kv_blocks_available) == (1000, 750)
    assert (reading.prefill_tokens_total, reading.first_tokens_total, reading.prefill_seconds_total) == (900, 20, 10.0)
    assert (reading.prefix_queries_total, reading.prefix_hits_total) == (1000, 100)
    assert (reading.adapter_slots_free, reading.decode_seconds_total) == (5, 30.0)
    assert reading.absent == {"prefill_latency_ms": FIRST_LOOK, "decode_ms_per_token": FIRST_LOOK}


def test_a_page_before_0_5_11_is_read() -> None:
    page = scheduler(running=2, queue=1, usage=0.5, pages=None) + config_info(pages="500", page_size="64")
    reading = read(page + front(prompt=900, cached=200, first_tokens=(3.0, 6)))
    assert (reading.kv_blocks_total, reading.kv_block_size_tokens, reading.kv_blocks_available) == (500, 64, 250)
    assert (reading.prefill_tokens_total, reading.prefix_queries_total, reading.prefix_hits_total) == (700, 900, 200)
    assert (reading.prefill_seconds_total, reading.first_tokens_total) == (3.0, 6)
    assert reading.absent["adapter_slots_free"] == NOT_TOLD


def test_without_pages_a_block_is_one_token() -> None:
    reading = read(scheduler(usage=0.25, pages=None))
    assert (reading.kv_blocks_total, reading.kv_block_size_tokens, reading.kv_blocks_available) == (4096, 1, 3072)


@pytest.mark.parametrize(
    ("pools", "wanted"),
    [
        ({"full_token_usage": 0.2, "swa_token_usage": 0.7}, 0.7),
        ({"full_token_usage": 0.2, "swa_token_usage": 0.1, "mamba_usage": 0.9}, 0.9),
        ({"swa_token_usage": 0.1}, 0.1),
        ({"full_token_usage": 0.2, "mamba_usage": "NaN"}, None),
        ({"full_token_usage": 1.2}, None),
        ({}, None),
        ({"token_usage": 0.4, "full_token_usage": 0.3, "swa_token_usage": 0.4}, 0.4),
    ],
)
def test_the_fullest_pool_stands_in_for_the_usage(pools: dict[str, float | str], wanted: float | None) -> None:
    page = scheduler().replace("sglang:token_usage", "sglang:gone")
    reading = read(page + "".join(f"sglang:{name}{labels()} {share}\n" for name, share in pools.items()))
    assert reading.kv_usage == wanted
    assert (wanted is None) == ("sglang:token_usage" in reading.absent.get("kv_usage", ""))


def test_every_queue_waits_and_what_was_retracted_or_paused_is_no_queue() -> None:
    queues = [
        "num_prefill_bootstrap_queue_reqs",
        "num_prefill_prealloc_queue_reqs",
        "num_decode_prealloc_queue_reqs",
        "num_decode_transfer_queue_reqs",
    ]
    more = "".join(f"sglang:{name}{labels()} {10 ** (2 + index)}\n" for index, name in enumerate(queues))
    assert read(scheduler(queue=3, grammar=20) + more).requests_waiting == 111_123
    assert read(scheduler(queue=3, grammar=20) + more.replace("100\n", "NaN\n")).requests_waiting is None


def test_queues_by_priority_are_a_part_of_the_whole_one() -> None:
    whole = labels(priority="")
    page = scheduler(whole, running=5, queue=4)
    for priority, running in (("0", 2), ("7", 3)):
        page += f"sglang:num_running_reqs{labels(priority=priority)} {running}\n"
        page += f"sglang:num_queue_reqs{labels(priority=priority)} 2\n"
    assert (read(page).requests_running, read(page).requests_waiting) == (5, 4)


def test_counters_by_priority_are_summed() -> None:
    counts = "".join(
        f'sglang:time_to_first_token_seconds_{part}{{model_name="m",priority="{priority}"}} {priority}\n'
        for priority in (1, 2)
        for part in ("sum", "count")
    )
    reading = read(scheduler() + counts)
    assert (reading.prefill_seconds_total, reading.first_tokens_total) == (3.0, 3)


def test_data_parallel_ranks_are_summed_and_their_usage_weighed_by_size() -> None:
    reading = read(
        scheduler(labels(0, tp=0), running=3, queue=1, usage=0.5, pages=3000)
        + scheduler(labels(1, tp=4), running=1, queue=2, usage=0.1, pages=1000)
    )
    assert (reading.requests_running, reading.requests_waiting) == (4, 3)
    assert reading.kv_usage == pytest.approx(0.4)
    assert (reading.kv_blocks_total, reading.kv_blocks_available) == (4000, 2400)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.floats(0, 1), st.integers(1, 9999)), min_size=1,
             max_size=4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 99),
)  # fmt: skip
def test_a_sum_over_ranks_counts_no_copy_of_tensor_or_pipeline_parallelism(
    ranks: list[tuple[int, int, float, int]], tensors: int, pipelines: int, order: int
) -> None:
    lines = [
        line
        for dp, (running, queue, usage, size) in enumerate(ranks)
        for tp in range(tensors)
        for pp in range(pipelines)
        for line in scheduler(
            labels(dp, tp + dp * tensors, pp), running=running, queue=queue, usage=usage, pages=size, decoded=7
        ).splitlines()
    ]
    random.Random(order).shuffle(lines)
    reading = read("\n".join(lines))
    assert reading.requests_running == sum(running for running, *_ in ranks)
    assert reading.requests_waiting == sum(queue for _, queue, *_ in ranks)
    assert reading.kv_blocks_total == sum(size for *_, size in ranks)
    assert reading.kv_usage == pytest.approx(
        sum(usage * size for *_, usage, size in ranks) / sum(size for *_, size in ranks)
    )


def test_a_rank_without_its_size_leaves_the_total_unknown() -> None:
    page = scheduler(labels(0), usage=0.2) + scheduler(labels(1), usage=0.4).replace("num_pages", "gone")
    reading = read(page)
    assert reading.kv_usage == pytest.approx(0.3)
    assert "dp_rank" in reading.absent["kv_blocks_total"]
    assert "dp_rank" in reading.absent["kv_blocks_available"]


@pytest.mark.parametrize("size", [0, -1, 1.5, "NaN", "+Inf", 1e300])
def test_a_senseless_size_is_absent(size: float) -> None:
    reading = read(scheduler(usage=0.5, pages=size, page_size=size))
    assert (reading.kv_usage, reading.kv_blocks_total, reading.kv_block_size_tokens) == (0.5, None, None)


def test_ranks_with_pages_of_different_sizes_have_no_block_size() -> None:
    reading = read(scheduler(labels(0), page_size=16) + scheduler(labels(1), page_size=64))
    assert (reading.kv_blocks_total, reading.kv_block_size_tokens) == (2000, None)


def test_a_fallen_counter_or_another_start_is_a_restart() -> None:
    engine = Engine()
    engine(scheduler(decoded=50) + front(gaps=(1.0, 10)))
    reading = engine(scheduler(decoded=4) + front(gaps=(0.5, 3)))
    assert reading.restarted
    assert reading.absent["decode_ms_per_token"] == FIRST_LOOK
    assert not engine(scheduler(decoded=5) + front(gaps=(0.6, 4))).restarted
    engine(started(1) + scheduler())
    assert engine(started(2) + scheduler()).restarted


def test_counters_that_are_not_back_yet_are_remembered() -> None:
    engine = Engine()
    engine(scheduler() + front(prompt=500, cached=5))
    assert not engine(scheduler()).restarted
    assert engine(scheduler() + front(prompt=3)).restarted
    assert not engine(scheduler() + front(prompt=4)).restarted


def test_a_page_that_stands_still_with_a_queue_is_frozen_and_one_that_only_shows_what_ran_is_not() -> None:
    engine = Engine()
    engine(scheduler(running=5, queue=2, decoded=50))
    assert engine(scheduler(running=5, queue=2, decoded=50)).frozen
    assert not engine(scheduler(running=5, queue=2, decoded=51)).frozen
    engine(scheduler(running=5, decoded=51))
    assert not engine(scheduler(running=5, decoded=51)).frozen
    engine(scheduler(queue=2))
    assert not engine(scheduler(queue=2)).frozen, "no counter of steps"


@pytest.mark.parametrize(
    ("before", "after", "signals"),
    [
        ("num_running_reqs{", "gone{", {"requests_running", "active_decodes"}),
        ("num_queue_reqs{", "gone{", {"requests_waiting", "pending_prefills"}),
        ("token_usage{", "gone{", {"kv_usage", "kv_blocks_available"}),
        ("num_pages{", "gone{", {"kv_blocks_total", "kv_blocks_available"}),
        ("page_size{", "gone{", {"kv_block_size_tokens"}),
        ("inter_token_latency_seconds_sum{", "gone{", {"decode_ms_per_token"}),
    ],
)
def test_what_is_missing_has_a_reason_that_names_it(before: str, after: str, signals: set[str]) -> None:
    assert before in FULL
    reading = read(FULL.replace(before, after))
    reasons = reading.absent
    assert {name for name in reasons if reasons[name] != FIRST_LOOK} == signals
    assert all("sglang:" in reasons[name] and "missing" in reasons[name] for name in signals)


def test_the_page_is_known_for_sglangs_by_the_beginning_of_a_line_only() -> None:
    assert kinds.kind_of("# HELP sglang:x y\n" + FULL) is EngineKind.SGLANG
    assert kinds.kind_of('a{b="\\nsglang:x"} 1\n xsglang:y 1\nsglang_x 1\n') is None


def test_models_have_their_length_and_adapters_their_bases() -> None:
    entries = [{"id": "m", "max_model_len": 4096}, {"id": "a", "parent": "m", "root": "/a"}]
    models = sglang.ADAPTER.models_of({"/v1/models": json.dumps({"data": entries})})
    assert models == tuple(ServedModel(name, context_length_tokens=4096) for name in ("m", "a"))


VALUES = {
    "dp_rank": ["0", "1", "", "x", "-1"],
    "tp_rank": ["0", "1", "9" * 20, "²"],
    "pp_rank": ["0", "1"],
    "priority": ["", "0", "5"],
    "mode": ["prefill_compute", "prefill_cache", "decode", "input", "device_hit"],
    "stage": ["prefill_forward", "x"],
    "is_streaming": ["true", "false"],
    "page_size": ["16", "None", "0"],
    "num_pages": ["100", "9" * 18, ""],
}


@given(st.lists(pages(sglang._WANTED, VALUES), max_size=2))
def test_whatever_a_page_shows_every_signal_is_sane_or_absent(looks: list[str]) -> None:
    engine = Engine()
    for page in looks:
        assert_sane(engine(page))
        assert_sane(engine(FULL + page))
