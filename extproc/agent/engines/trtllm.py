"""`trtllm-serve`'s pages, of TensorRT-LLM 1.1 and later: text in, reading out.

It has metrics with `return_perf_metrics: true`, and gauges with `enable_iter_perf_stats: true` besides.

Gauges are of the last finished step. What runs is counted at that step's beginning, what waits at its end: an engine
without work goes on to show its last batch. Newer versions have `trtllm_scheduled_batch_size`, which is 0 then; before,
nothing tells such an engine from one in a long step, unless something waits. Totals are of requests that ended.
"""

from extproc.agent.engines.adapter import Adapter, Pages, missing_of, page_of
from extproc.agent.engines.blocks import block_size_of, kv_cache_of
from extproc.agent.engines.exposition import Page, samples_of, sums_by
from extproc.agent.engines.models import entries_of, served_all
from extproc.agent.engines.pagevalues import (
    Look,
    count_over,
    label_count,
    mean_ms,
    pending_of,
    requests_of,
    restarted,
    seconds_over,
    share_over,
    stands_still,
    sum_of,
    totals_in,
)
from extproc.agent.engines.reading import NOT_TOLD, EngineReading, reading_from, unread
from extproc.core.snapshot import KV_BLOCKS_MAX, ServedModel

_METRICS = "/prometheus/metrics"

_RUNNING = "trtllm_num_requests_running"
_WAITING = "trtllm_num_requests_waiting"
_BATCH = "trtllm_scheduled_batch_size"  # one series for each rank
_DECODES = "trtllm_num_generation_requests"
_STEP_S = "trtllm_iteration_latency_seconds"
_KV_USAGE = "trtllm_kv_cache_utilization"
_KV_TOTAL, _KV_USED = "trtllm_kv_cache_max_blocks", "trtllm_kv_cache_used_blocks"
_KV_SIZE = "trtllm_kv_cache_tokens_per_block"
_TTFT = "trtllm_time_to_first_token_seconds"
_PREFILL = ("trtllm_request_prefill_time_seconds", _TTFT)  # the first is newer
_DECODE = ("trtllm_time_per_output_token_seconds",)
_PROMPT, _CACHED = "trtllm_prompt_tokens_total", "trtllm_prompt_cached_tokens_total"
_MODEL = "trtllm_model_config_info"

_COUNTERS = (
    "trtllm_request_success_total",
    "trtllm_num_requests_completed_total",
    "trtllm_generation_tokens_total",
    _PROMPT,
    _CACHED,
    *(f"{name}_count" for name in (*_PREFILL, *_DECODE)),
)
_MARKS = (_STEP_S, _RUNNING, _WAITING, _DECODES, _KV_USED, *_COUNTERS)
_WANTED = frozenset(
    {_BATCH, _KV_USAGE, _KV_TOTAL, _KV_SIZE, *_MARKS} | {f"{name}_sum" for name in (*_PREFILL, *_DECODE)}
)


def read(metrics: str, before: Look | None) -> tuple[EngineReading, Look]:
    """One look at /prometheus/metrics. Raises for no input."""
    page = samples_of(metrics, _WANTED)
    counters = {(name, ""): sum_ for name in _COUNTERS if (sum_ := sum_of(page, name)) is not None}
    began_anew = restarted(None, counters, before)
    if began_anew:
        before = None

    running, waiting, decodes = (requests_of(page, name) for name in (_RUNNING, _WAITING, _DECODES))
    batch = requests_of(page, _BATCH)
    if batch == 0 and waiting == 0 and isinstance(running, int):
        running = 0
    if isinstance(running, int) and isinstance(decodes, int):
        decodes = min(decodes, running)
    prompts, cached = (count_over(page.get(name, ()), name) for name in (_PROMPT, _CACHED))
    if isinstance(prompts, int) and isinstance(cached, int) and cached > prompts:
        prompts = cached = f"{_CACHED} is over {_PROMPT}"
    prefilled = _computed(prompts, cached, before)
    used, total = (count_over(page.get(name, ()), name, KV_BLOCKS_MAX) for name in (_KV_USED, _KV_TOTAL))
    cache = kv_cache_of(used, total, share_over(sums_by(page, _KV_USAGE, "pid"), {}, _KV_USAGE), _KV_TOTAL)
    totals = totals_in(page, (*_PREFILL, *_DECODE))
    marks = tuple(sum_of(page, name) for name in _MARKS)

    reading = reading_from(
        {
            "requests_running": running,
            "requests_waiting": waiting,
            "active_decodes": decodes,
            "pending_prefills": pending_of(decodes, running, waiting),
            "kv_usage": cache.usage,
            "kv_blocks_total": cache.total,
            "kv_block_size_tokens": block_size_of(page.get(_KV_SIZE, ()), _KV_SIZE),
            "kv_blocks_available": cache.available,
            "prefill_latency_ms": mean_ms(_PREFILL, totals, before),
            "decode_ms_per_token": mean_ms(_DECODE, totals, before),
            "prefill_tokens_total": prefilled,
            "prefill_seconds_total": seconds_over(page, f"{_TTFT}_sum"),
            "first_tokens_total": count_over(page.get(f"{_TTFT}_count", ()), f"{_TTFT}_count"),
            "prefix_queries_total": prompts,
            "prefix_hits_total": cached,
            "adapter_slots_free": NOT_TOLD,
        },
        restarted=began_anew,
        frozen=stands_still(marks, 1, batch, waiting, before),
    )
    known = prefilled if isinstance(prefilled, int) else None if before is None else before.prefill_tokens
    return reading, Look(counters=counters, totals=totals, marks=marks, prefill_tokens=known)


def _computed(prompts: int | str, cached: int | str, before: Look | None) -> int | str:
    """Prompt tokens that no cache had. The two counters rise one after the other, and a page may stand between."""
    if isinstance(prompts, str):
        return prompts
    if isinstance(cached, str):
        return cached
    return max(prompts - cached, (before and before.prefill_tokens) or 0)


def models_of(models: str, metrics: str | None) -> tuple[ServedModel, ...] | str:
    """The models of a /v1/models answer, or what is wrong with it. Newer metrics have the one model's length."""
    entries = entries_of(models)
    if isinstance(entries, str):
        return entries
    page: Page = samples_of(metrics or "", (_MODEL,))
    lengths = {label_count(sample.labels.get("max_model_len")) for sample in page.get(_MODEL, ())}
    length = lengths.pop() if len(lengths) == 1 and len(entries) == 1 else None
    return served_all([(entry.id, entry.max_model_len or length) for entry in entries])


def _look(pages: Pages, before: Look | None) -> tuple[EngineReading, Look | None]:
    metrics = page_of(pages, _METRICS)
    return (unread(missing_of(pages, _METRICS)), before) if metrics is None else read(metrics, before)


def _listed(pages: Pages) -> tuple[ServedModel, ...] | str:
    models = page_of(pages, "/v1/models")
    return missing_of(pages, "/v1/models") if models is None else models_of(models, page_of(pages, _METRICS))


ADAPTER = Adapter(_look, _listed, metrics=_METRICS, lists=("/v1/models", _METRICS))
"""Reads TensorRT-LLM's own server."""
