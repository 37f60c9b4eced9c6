"""vLLM's pages: text in, reading out. The label `engine` has one series per data-parallel engine.

What stands in no gauge is a difference between two looks, so a look hands a `Look` on to the next one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from extproc.agent.engines import vllmtotals
from extproc.agent.engines.adapter import Adapter, Pages, missing_of, page_of
from extproc.agent.engines.decodes import Drift, count_decodes
from extproc.agent.engines.exposition import Page, samples_of, sums_by
from extproc.agent.engines.lora import LORA, slots_free_of
from extproc.agent.engines.models import entries_of, served_all
from extproc.agent.engines.reading import (
    EngineReading,
    Total,
    count_of,
    reading_from,
    unread,
)
from extproc.core.snapshot import KV_BLOCK_SIZE_TOKENS_MAX, KV_BLOCKS_MAX, REQUESTS_MAX, ServedModel

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
_STEPS = ("vllm:iteration_tokens_total_count", "vllm:generation_tokens_total", vllmtotals.PROMPT)
_COUNTERS = (_FINISHED, *_STEPS, *(f"{name}_count" for name in (*_PREFILL, *_DECODE)), *vllmtotals.COUNTERS)

_WANTED = frozenset(
    {_RUNNING, _WAITING, *_KV_USAGE, _CACHE, _SLEEP, _STARTED, LORA, *_COUNTERS}
    | {f"{name}_sum" for name in (*_PREFILL, *_DECODE)}
    | vllmtotals.WANTED
)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look hands on to the next; the values are only compared."""

    started_at_s: float | None = None
    counters: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Each engine's, by metric and engine."""
    drifts: Mapping[str, Drift] = field(default_factory=dict)
    """By engine."""
    totals: Mapping[str, Total] = field(default_factory=dict)
    marks: tuple[float | None, ...] = ()
    prefill_tokens: int | None = None


def models_of(models: str) -> tuple[ServedModel, ...] | str:
    """The models of a /v1/models answer, or what is wrong with it."""
    entries = entries_of(models)
    if isinstance(entries, str):
        return entries
    lengths = {entry.id: entry.max_model_len for entry in entries}
    # vLLM gives an adapter's entry its base model as parent, and no length.
    pairs = [(one.id, lengths.get(one.base) if one.max_model_len is None else one.max_model_len) for one in entries]
    return served_all(pairs)


def read(metrics: str, before: Look | None) -> tuple[EngineReading, Look]:
    """One look at /metrics. Raises for no input."""
    page = samples_of(metrics, _WANTED)
    started_at_s = _sum(page, _STARTED)
    totals = {name: total for name in (*_PREFILL, *_DECODE) if (total := _total(page, name)) is not None}
    counters = {(name, engine): sum_ for name in _COUNTERS for engine, sum_ in sums_by(page, name, "engine").items()}
    restarted = before is not None and _restarted(started_at_s, counters, before)
    if restarted:
        before = None

    running = count_of(_sum(page, _RUNNING), REQUESTS_MAX, _RUNNING)
    waiting = count_of(_sum(page, _WAITING), REQUESTS_MAX, _WAITING)
    decodes, drifts = _decodes(page, before)
    pending = _pending(decodes, running, waiting)
    usage, blocks_total, block_size = _kv_cache(page)
    available: int | str
    if isinstance(usage, str):
        available = usage
    else:
        available = blocks_total if isinstance(blocks_total, str) else round((1 - usage) * blocks_total)

    prefilled_before = None if before is None else before.prefill_tokens
    prefilled = vllmtotals.prefill_tokens_of(page, prefilled_before)

    # Of all engines together: where one is in a long step and the others went on, keeping the time back would count
    # twice what they were sent since, to miss nothing of what that one was.
    marks = tuple(_sum(page, name) for name in (*_STEPS, _RUNNING, _WAITING, _FIRST_TOKENS, _FINISHED, *_KV_USAGE))
    has_work = (isinstance(running, int) and running > 0) or (isinstance(waiting, int) and waiting > 0)
    counts_steps = any(mark is not None for mark in marks[: len(_STEPS)])
    frozen = before is not None and has_work and counts_steps and marks == before.marks

    reading = reading_from(
        {
            "requests_running": running,
            "requests_waiting": waiting,
            "active_decodes": decodes,
            "pending_prefills": pending,
            "kv_usage": usage,
            "kv_blocks_total": blocks_total,
            "kv_block_size_tokens": block_size,
            "kv_blocks_available": available,
            "prefill_latency_ms": _mean_ms(_PREFILL, totals, before),
            "decode_ms_per_token": _mean_ms(_DECODE, totals, before),
            "prefill_tokens_total": prefilled,
            **vllmtotals.totals_of(page),
            "adapter_slots_free": slots_free_of(page),
        },
        asleep=any(
            sample.labels.get("sleep_state") == "awake" and sample.value == 0 for sample in page.get(_SLEEP, ())
        ),
        restarted=restarted,
        frozen=frozen,
        started_at_s=started_at_s,
    )
    known = prefilled if isinstance(prefilled, int) else prefilled_before
    return reading, Look(started_at_s, counters, drifts, totals, marks, known)


def _by_engine(page: Page, name: str) -> dict[str, float]:
    """Sums per data-parallel engine; versions without the label have one engine."""
    return sums_by(page, name, "engine")


def _sum(page: Page, name: str) -> float | None:
    samples = page.get(name)
    return sum(sample.value for sample in samples) if samples else None


def _total(page: Page, name: str) -> Total | None:
    seconds, count = _sum(page, f"{name}_sum"), _sum(page, f"{name}_count")
    return None if seconds is None or count is None else Total(seconds, count)


def _restarted(started_at_s: float | None, counters: Mapping[tuple[str, str], float], before: Look) -> bool:
    if None not in (started_at_s, before.started_at_s) and started_at_s != before.started_at_s:
        return True
    return any(counters.get(counter, math.inf) < known for counter, known in before.counters.items())


def _mean_ms(names: Sequence[str], totals: Mapping[str, Total], before: Look | None) -> float | str:
    for name in names:
        if name in totals:
            return totals[name].mean_ms_since(None if before is None else before.totals.get(name), name)
    return f"{names[0]} is missing"


def _decodes(page: Page, before: Look | None) -> tuple[int | str, dict[str, Drift]]:
    """Active decodes of all engines; if one engine's cannot be told, neither can the sum."""
    running, waiting = _by_engine(page, _RUNNING), _by_engine(page, _WAITING)
    first_tokens, finished = _by_engine(page, _FIRST_TOKENS), _by_engine(page, _FINISHED)
    counters = {engine: (first_tokens.get(engine), finished.get(engine)) for engine in running}
    known = {} if before is None else before.drifts
    after: dict[str, Drift] = {}
    decodes, reason = 0, None if running else f"{_RUNNING} is missing"
    for engine, (first, done) in counters.items():
        batch = count_of(running[engine], REQUESTS_MAX, _RUNNING)
        queue = count_of(waiting.get(engine), REQUESTS_MAX, _WAITING)
        if first is None or done is None or not math.isfinite(first - done):
            reason = f"{_FIRST_TOKENS} or {_FINISHED} is missing or no number"
        elif isinstance(batch, str) or isinstance(queue, str):
            reason = batch if isinstance(batch, str) else str(queue)
        else:
            drift = known.get(engine, Drift())
            count, after[engine] = count_decodes(drift, first_tokens=first, finished=done, running=batch, waiting=queue)
            if count is None:
                reason = f"{_FIRST_TOKENS} and {_FINISHED} drift apart too fast"
            else:
                decodes += count
    return decodes if reason is None else reason, after


def _pending(decodes: int | str, running: int | str, waiting: int | str) -> int | str:
    for value in (running, waiting, decodes):
        if isinstance(value, str):
            return value
    assert isinstance(decodes, int)
    assert isinstance(running, int)
    assert isinstance(waiting, int)
    return running + waiting - decodes


def _kv_cache(page: Page) -> tuple[float | str, int | str, int | str]:
    """Usage weighed by the engines' blocks, blocks of all engines, tokens per block."""
    blocks: dict[str, int] = {}
    sizes: set[int] = set()
    for sample in page.get(_CACHE, ()):
        engine_blocks, size = (_label_count(sample.labels.get(key)) for key in ("num_gpu_blocks", "block_size"))
        if engine_blocks is not None and engine_blocks <= KV_BLOCKS_MAX:
            engine = sample.labels.get("engine", "")
            blocks[engine] = blocks.get(engine, 0) + engine_blocks
        if size is not None and size <= KV_BLOCK_SIZE_TOKENS_MAX:
            sizes.add(size)
    usages: dict[str, float] = {}
    for name in _KV_USAGE:
        usages = usages or _by_engine(page, name)
    usage: float | str
    if not usages:
        usage = f"{_KV_USAGE[0]} is missing"
    elif not all(0 <= share <= 1 for share in usages.values()):
        usage = f"{_KV_USAGE[0]} is not in 0..1"
    elif usages.keys() == blocks.keys():
        usage = sum(share * blocks[engine] for engine, share in usages.items()) / sum(blocks.values())
    else:
        usage = sum(usages.values()) / len(usages)
    told = blocks and (not usages or usages.keys() == blocks.keys())
    total = sum(blocks.values())
    blocks_total = total if told and total <= KV_BLOCKS_MAX else f"{_CACHE} has no num_gpu_blocks for every engine"
    block_size = sizes.pop() if len(sizes) == 1 else f"{_CACHE} has no block_size, or several"
    return usage, blocks_total, block_size


def _label_count(label: str | None) -> int | None:
    """A positive whole number out of a label; vLLM writes `None` for what it does not know."""
    return int(label) if label and label.isascii() and label.isdigit() and len(label) <= 18 and int(label) > 0 else None


def _look(pages: Pages, before: Look | None) -> tuple[EngineReading, Look | None]:
    metrics = page_of(pages, "/metrics")
    return (unread(missing_of(pages, "/metrics")), before) if metrics is None else read(metrics, before)


def _listed(pages: Pages) -> tuple[ServedModel, ...] | str:
    models = page_of(pages, "/v1/models")
    return missing_of(pages, "/v1/models") if models is None else models_of(models)


ADAPTER = Adapter(_look, _listed)
"""Reads vLLM."""
