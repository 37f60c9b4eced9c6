"""LMDeploy's pages: text in, reading out. The label `engine` has one series per data-parallel engine.

Its gauges are written every ten seconds, its counters at once. So what runs and waits may be over, and a difference of
gauges and counters would be one of two moments: how many requests are past their first token is not told, and a page
that stands still is no sign of a long step. A prompt is counted whole at its first token, with what its prefix cache
had; so the tokens are those computed only while that had nothing.
"""

from extproc.agent.engines.adapter import Adapter, Pages, missing_of, page_of
from extproc.agent.engines.exposition import Page, samples_of, sums_by
from extproc.agent.engines.models import listed
from extproc.agent.engines.pagevalues import (
    Look,
    count_over,
    counters_in,
    mean_ms,
    remembered,
    requests_of,
    restarted,
    seconds_over,
    seconds_told,
    share_over,
    sum_of,
    totals_in,
)
from extproc.agent.engines.reading import NOT_TOLD, EngineReading, count_of, reading_from, unread
from extproc.core.snapshot import REQUESTS_MAX

_RUNNING = "lmdeploy:num_requests_running"
_WAITING = "lmdeploy:num_requests_waiting"
_API_WAITING = "lmdeploy:num_api_requests_waiting"  # before the engine has them; older versions do not tell
_KV_USAGE = "lmdeploy:gpu_cache_usage_perc"  # a share, despite its name
_HIT_RATE = "lmdeploy:prefix_cache_hit_rate"
_PROMPT = "lmdeploy:prompt_tokens_total"
_FIRST_TOKEN = "lmdeploy:time_to_first_token_seconds"  # noqa: S105 - a metric
_PREFILL = ("lmdeploy:request_prefill_time_seconds", _FIRST_TOKEN)
_DECODE = ("lmdeploy:time_per_output_token_seconds",)
_GAP = "lmdeploy:iter_token_latency"
_GAUGES_EVERY_S = 10.0
_STARTED = "process_start_time_seconds"
_COUNTERS = (
    _PROMPT,
    "lmdeploy:generation_tokens_total",
    "lmdeploy:request_success_total",
    *(f"{name}_count" for name in (*_PREFILL, *_DECODE, _GAP)),
)
_WANTED = frozenset(
    {_RUNNING, _WAITING, _API_WAITING, _KV_USAGE, _HIT_RATE, _STARTED, *_COUNTERS}
    | {f"{name}_sum" for name in (*_PREFILL, *_DECODE, _GAP)}
)


def read(metrics: str, before: Look | None) -> tuple[EngineReading, Look]:
    """One look at /metrics. Raises for no input."""
    page = samples_of(metrics, _WANTED)
    started_at_s = sum_of(page, _STARTED)
    counters = counters_in(page, _COUNTERS, "engine")
    began_anew = restarted(started_at_s, counters, before)
    if began_anew:
        before = None
    totals = totals_in(page, (*_PREFILL, *_DECODE, _GAP))
    reading = reading_from(
        {
            "requests_running": requests_of(page, _RUNNING),
            "requests_waiting": _waiting(page),
            "active_decodes": NOT_TOLD,
            "pending_prefills": NOT_TOLD,
            "kv_usage": share_over(sums_by(page, _KV_USAGE, "engine"), {}, _KV_USAGE),
            "kv_blocks_total": NOT_TOLD,
            "kv_block_size_tokens": NOT_TOLD,
            "kv_blocks_available": NOT_TOLD,
            "prefill_latency_ms": mean_ms(_PREFILL, totals, before),
            "decode_ms_per_token": mean_ms(_DECODE, totals, before),
            "prefill_tokens_total": _computed(page),
            "prefill_seconds_total": seconds_over(page, f"{_FIRST_TOKEN}_sum"),
            "first_tokens_total": count_over(page.get(f"{_FIRST_TOKEN}_count", ()), f"{_FIRST_TOKEN}_count"),
            "prefix_queries_total": NOT_TOLD,
            "prefix_hits_total": NOT_TOLD,
            "adapter_slots_free": NOT_TOLD,
        },
        restarted=began_anew,
        started_at_s=started_at_s,
        decode_seconds_total=seconds_told((_GAP,), totals),
        gauges_every_s=_GAUGES_EVERY_S,
    )
    return reading, Look(started_at_s, remembered(counters, before), totals=totals)


def _waiting(page: Page) -> int | str:
    waiting, before_it = requests_of(page, _WAITING), requests_of(page, _API_WAITING)
    if isinstance(waiting, str) or _API_WAITING not in page:
        return waiting
    return before_it if isinstance(before_it, str) else count_of(waiting + before_it, REQUESTS_MAX, _WAITING)


def _computed(page: Page) -> int | str:
    if _HIT_RATE not in page:
        return f"{_HIT_RATE} is missing: prompts may have been in the cache"
    if any(sample.value != 0 for sample in page[_HIT_RATE]):
        return f"{_PROMPT} counts what the prefix cache had, too"
    return count_over(page.get(_PROMPT, ()), _PROMPT)


def _look(pages: Pages, before: Look | None) -> tuple[EngineReading, Look | None]:
    metrics = page_of(pages, "/metrics")
    return (unread(missing_of(pages, "/metrics")), before) if metrics is None else read(metrics, before)


ADAPTER = Adapter(_look, listed)
"""Reads LMDeploy's API server, which needs `--enable-metrics`."""
