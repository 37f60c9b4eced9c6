"""SGLang's pages: text in, reading out.

Its scheduler writes gauges when a prefill begins, every forty decode steps, and after half a minute without work. A
request is in its queue, then in a prefill where no gauge counts it, then in the running batch: what runs is past its
first token, and the queue is what waits for one, so neither has to be reckoned from counters. (Of answers that are not
streamed its counters learn the first token fifty tokens late.) For half a minute after its last request it may tell of
running ones that are over; so only a queue is a sign that it should be at work.

With data parallelism each rank has series of its own, with the label `dp_rank`: they are summed. The ranks of tensor
and pipeline parallelism tell the same thing as often as there are ranks: the lowest speaks. Queues by priority are a
part of those without. Retracted requests are back in the queue, and the gauges of retracted and of paused ones count
what happened since the gauges were last written, no queue: they are left out.
"""

from collections.abc import Mapping

from extproc.agent.engines import sglangkv, sglangtotals
from extproc.agent.engines.adapter import Adapter, Pages, missing_of, page_of
from extproc.agent.engines.exposition import Page, Sample, samples_of, sums_by
from extproc.agent.engines.models import listed
from extproc.agent.engines.pagevalues import (
    Look,
    available_of,
    counters_in,
    mean_ms,
    remembered,
    requests_of,
    restarted,
    seconds_told,
    stands_still,
    sum_of,
    totals_in,
)
from extproc.agent.engines.reading import NOT_TOLD, EngineReading, count_of, reading_from, unread
from extproc.agent.engines.sglangkv import kv_cache_of
from extproc.core.snapshot import ADAPTERS_MAX, REQUESTS_MAX

_RUNNING = "sglang:num_running_reqs"
_QUEUE = "sglang:num_queue_reqs"
_MORE_QUEUES = (
    "sglang:num_grammar_queue_reqs",
    # Where prefill and decode are apart: those before the first, by both its names, and before the second.
    "sglang:num_prefill_bootstrap_queue_reqs",
    "sglang:num_prefill_prealloc_queue_reqs",
    "sglang:num_decode_prealloc_queue_reqs",
    "sglang:num_decode_transfer_queue_reqs",
)
_LORA_TOTAL = "sglang:lora_pool_slots_total"
_LORA_USED = "sglang:lora_pool_slots_used"
_DECODE = (
    "sglang:inter_token_latency_seconds",
    "sglang:time_per_output_token_seconds",  # before 0.4.6
    "sglang:request_time_per_output_token_seconds",
)
_GAUGES_EVERY_S = 2.0  # forty decode steps, of 50 ms
_STARTED = "process_start_time_seconds"
_STEPS = ("sglang:realtime_tokens_total", "sglang:generation_tokens_total")
_MOVES = (
    *_STEPS,
    _RUNNING,
    _QUEUE,
    *_MORE_QUEUES,
    "sglang:token_usage",
    "sglang:num_used_tokens",
    "sglang:gen_throughput",
)
_COUNTERS = (*sglangtotals.COUNTERS, "sglang:generation_tokens_total", *(f"{name}_count" for name in _DECODE))
_WANTED = frozenset(
    {_LORA_TOTAL, _LORA_USED, _STARTED, *_MOVES, *_COUNTERS}
    | {f"{name}_sum" for name in _DECODE}
    | sglangkv.WANTED
    | sglangtotals.WANTED
)
_RANK = sglangkv.RANK
_BY_PRIORITY = frozenset({_RUNNING, _QUEUE, *_MORE_QUEUES})
_COPIES = ("pp_rank", "tp_rank")
_RANK_DIGITS_MAX = 9


def read(metrics: str, before: Look | None) -> tuple[EngineReading, Look]:
    """One look at /metrics. Raises for no input."""
    page = _of_lowest_ranks(samples_of(metrics, _WANTED))
    started_at_s = sum_of(page, _STARTED)
    counters = counters_in(page, _COUNTERS, _RANK)
    began_anew = restarted(started_at_s, counters, before)
    if began_anew:
        before = None

    running, waiting = requests_of(page, _RUNNING), _waiting(page)
    usage, blocks_total, block_size = kv_cache_of(page)
    prefill_ms, prefill_totals = sglangtotals.prefill_latency_of(page, before)
    totals = {**prefill_totals, **totals_in(page, _DECODE)}
    marks = tuple(sum_of(page, name) for name in _MOVES)
    reading = reading_from(
        {
            "requests_running": running,
            "requests_waiting": waiting,
            "active_decodes": running,
            "pending_prefills": waiting,
            "kv_usage": usage,
            "kv_blocks_total": blocks_total,
            "kv_block_size_tokens": block_size,
            "kv_blocks_available": available_of(usage, blocks_total),
            "prefill_latency_ms": prefill_ms,
            "decode_ms_per_token": mean_ms(_DECODE, totals, before),
            **sglangtotals.totals_of(page),
            "adapter_slots_free": _adapter_slots_free(page),
        },
        restarted=began_anew,
        frozen=stands_still(marks, len(_STEPS), 0, waiting, before),
        started_at_s=started_at_s,
        decode_seconds_total=seconds_told(_DECODE[:1], totals),
        gauges_every_s=_GAUGES_EVERY_S,
    )
    return reading, Look(started_at_s, remembered(counters, before), totals=totals, marks=marks)


def _of_lowest_ranks(page: Page) -> dict[str, list[Sample]]:
    """Of each metric and data-parallel rank, the series of the lowest rank otherwise; gauges not by priority."""
    kept: dict[str, list[Sample]] = {}
    for name, samples in page.items():
        whole = [one for one in samples if name not in _BY_PRIORITY or not one.labels.get("priority")]
        lowest: dict[str, tuple[int, ...]] = {}
        for sample in whole:
            rank, copy = sample.labels.get(_RANK, ""), _copy_of(sample.labels)
            lowest[rank] = min(copy, lowest.get(rank, copy))
        if whole:
            kept[name] = [one for one in whole if _copy_of(one.labels) == lowest[one.labels.get(_RANK, "")]]
    return kept


def _copy_of(labels: Mapping[str, str]) -> tuple[int, ...]:
    """Which of the ranks that tell the same it is; what is no rank comes last."""
    return tuple(_rank_of(labels.get(name, "0")) for name in _COPIES)


def _rank_of(label: str) -> int:
    sound = label.isascii() and label.isdigit() and len(label) <= _RANK_DIGITS_MAX
    return int(label) if sound else 10**_RANK_DIGITS_MAX


def _waiting(page: Page) -> int | str:
    queues = [requests_of(page, name) for name in (_QUEUE, *_MORE_QUEUES) if name == _QUEUE or name in page]
    for queue in queues:
        if isinstance(queue, str):
            return queue
    return count_of(sum(queue for queue in queues if isinstance(queue, int)), REQUESTS_MAX, _QUEUE)


def _adapter_slots_free(page: Page) -> int | str:
    """Of the rank with the fewest; engines without adapters have no slots."""
    if _LORA_TOTAL not in page:
        return NOT_TOLD
    slots, used = sums_by(page, _LORA_TOTAL, _RANK), sums_by(page, _LORA_USED, _RANK)
    if slots.keys() != used.keys():
        return f"{_LORA_USED} is not told for every {_RANK}"
    free = []
    for rank in slots:
        pair = [count_of(told[rank], ADAPTERS_MAX, name) for told, name in ((slots, _LORA_TOTAL), (used, _LORA_USED))]
        total, taken = pair
        if isinstance(total, str) or isinstance(taken, str):
            return total if isinstance(total, str) else str(taken)
        free.append(max(0, total - taken))
    return min(free)


def _look(pages: Pages, before: Look | None) -> tuple[EngineReading, Look | None]:
    metrics = page_of(pages, "/metrics")
    return (unread(missing_of(pages, "/metrics")), before) if metrics is None else read(metrics, before)


ADAPTER = Adapter(_look, listed, health="/v1/models")
"""Reads SGLang. Its /health computes a token, unless it was told not to: what lists its models is up, too."""
