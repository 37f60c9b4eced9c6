"""vLLM's pages: text in, reading out. The label `engine` has one series per data-parallel engine.

What stands in no gauge is a difference between two looks, so a look hands a `Look` on to the next one.
"""

from extproc.agent.engines import vllmtotals
from extproc.agent.engines.adapter import Adapter, Pages, missing_of, page_of
from extproc.agent.engines.decodes import Drift, RequestCounts, decodes_over
from extproc.agent.engines.exposition import Page, samples_of, sums_by
from extproc.agent.engines.lora import LORA, slots_free_of
from extproc.agent.engines.models import listed
from extproc.agent.engines.pagevalues import (
    Look,
    available_of,
    label_count,
    mean_ms,
    pending_of,
    requests_of,
    restarted,
    seconds_told,
    share_over,
    spelled,
    stands_still,
    sum_of,
    totals_in,
)
from extproc.agent.engines.reading import EngineReading, reading_from, unread
from extproc.core.snapshot import KV_BLOCK_SIZE_TOKENS_MAX, KV_BLOCKS_MAX

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second is the name before 0.9
_CACHE = "vllm:cache_config_info"
_SLEEP = "vllm:engine_sleep_state"
_FIRST_TOKENS = vllmtotals.FIRST_TOKENS
_FINISHED = "vllm:request_success_total"
_PREFILL = ("vllm:request_prefill_time_seconds", "vllm:time_to_first_token_seconds")
_DECODE = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")  # before 0.11
_STARTED = "process_start_time_seconds"
_GENERATED = "vllm:generation_tokens_total"
_STEPS = ("vllm:iteration_tokens_total_count", _GENERATED, vllmtotals.PROMPT)
_COUNTERS = (_FINISHED, *_STEPS, *(f"{name}_count" for name in (*_PREFILL, *_DECODE)), *vllmtotals.COUNTERS)

_WANTED = frozenset(
    {_RUNNING, _WAITING, *_KV_USAGE, _CACHE, _SLEEP, _STARTED, LORA, *_COUNTERS}
    | {f"{name}_sum" for name in (*_PREFILL, *_DECODE)}
    | vllmtotals.WANTED
)


def read(metrics: str, before: Look | None) -> tuple[EngineReading, Look]:
    """One look at /metrics. Raises for no input."""
    page = samples_of(metrics, _WANTED)
    started_at_s = sum_of(page, _STARTED)
    counters = {(name, engine): sum_ for name in _COUNTERS for engine, sum_ in sums_by(page, name, "engine").items()}
    began_anew = restarted(started_at_s, counters, before)
    if began_anew:
        before = None

    running, waiting = requests_of(page, _RUNNING), requests_of(page, _WAITING)
    decodes, drifts = _decodes(page, before)
    usage, blocks_total, block_size = _kv_cache(page)
    totals = totals_in(page, (*_PREFILL, *_DECODE))

    prefilled_before = None if before is None else before.prefill_tokens
    prefilled = vllmtotals.prefill_tokens_of(page, prefilled_before)

    # Of all engines together: where one is in a long step and the others went on, keeping the time back would count
    # twice what they were sent since, to miss nothing of what that one was.
    marks = tuple(sum_of(page, name) for name in (*_STEPS, _RUNNING, _WAITING, _FIRST_TOKENS, _FINISHED, *_KV_USAGE))

    reading = reading_from(
        {
            "requests_running": running,
            "requests_waiting": waiting,
            "active_decodes": decodes,
            "pending_prefills": pending_of(decodes, running, waiting),
            "kv_usage": usage,
            "kv_blocks_total": blocks_total,
            "kv_block_size_tokens": block_size,
            "kv_blocks_available": available_of(usage, blocks_total),
            "prefill_latency_ms": mean_ms(_PREFILL, totals, before),
            "decode_ms_per_token": mean_ms(_DECODE, totals, before),
            "prefill_tokens_total": prefilled,
            **vllmtotals.totals_of(page),
            "adapter_slots_free": slots_free_of(page),
        },
        asleep=any(
            sample.labels.get("sleep_state") == "awake" and sample.value == 0 for sample in page.get(_SLEEP, ())
        ),
        restarted=began_anew,
        frozen=stands_still(marks, len(_STEPS), running, waiting, before),
        started_at_s=started_at_s,
        decode_seconds_total=seconds_told(_DECODE, totals),
    )
    known = prefilled if isinstance(prefilled, int) else prefilled_before
    return reading, Look(started_at_s, counters, drifts, totals, marks, known)


def _by_engine(page: Page, name: str) -> dict[str, float]:
    """Sums per data-parallel engine; versions without the label have one engine."""
    return sums_by(page, name, "engine")


def _decodes(page: Page, before: Look | None) -> tuple[int | str, dict[str, Drift]]:
    waiting, first_tokens, finished = (_by_engine(page, name) for name in (_WAITING, _FIRST_TOKENS, _FINISHED))
    engines = {
        engine: RequestCounts(running, waiting.get(engine), first_tokens.get(engine), finished.get(engine))
        for engine, running in _by_engine(page, _RUNNING).items()
    }
    names = RequestCounts(_RUNNING, _WAITING, _FIRST_TOKENS, _FINISHED)
    if before is None:
        return decodes_over(engines, names, {})
    made = _by_engine(page, _GENERATED)
    at_work = {engine for engine in made if made[engine] != before.counters.get((_GENERATED, engine), made[engine])}
    return decodes_over(engines, names, before.drifts, at_work)


def _kv_cache(page: Page) -> tuple[float | str, int | str, int | str]:
    """Usage weighed by the engines' blocks, blocks of all engines, tokens per block."""
    blocks: dict[str, int] = {}
    sizes: set[int] = set()
    for sample in page.get(_CACHE, ()):
        engine_blocks, size = (label_count(sample.labels.get(key)) for key in ("num_gpu_blocks", "block_size"))
        if engine_blocks is not None and engine_blocks <= KV_BLOCKS_MAX:
            engine = sample.labels.get("engine", "")
            blocks[engine] = blocks.get(engine, 0) + engine_blocks
        if size is not None and size <= KV_BLOCK_SIZE_TOKENS_MAX:
            sizes.add(size)
    usage_name = spelled(page, _KV_USAGE)
    usages = _by_engine(page, usage_name)
    usage = share_over(usages, blocks, usage_name)
    told = blocks and (not usages or usages.keys() == blocks.keys())
    total = sum(blocks.values())
    blocks_total = total if told and total <= KV_BLOCKS_MAX else f"{_CACHE} has no num_gpu_blocks for every engine"
    block_size = sizes.pop() if len(sizes) == 1 else f"{_CACHE} has no block_size, or several"
    return usage, blocks_total, block_size


def _look(pages: Pages, before: Look | None) -> tuple[EngineReading, Look | None]:
    metrics = page_of(pages, "/metrics")
    return (unread(missing_of(pages, "/metrics")), before) if metrics is None else read(metrics, before)


ADAPTER = Adapter(_look, listed)
"""Reads vLLM."""
