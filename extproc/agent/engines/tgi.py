"""Text Generation Inference's pages: text in, reading out.

A request is in its queue, then in a prefill where no gauge counts it, then in the current batch: what is in the batch
is past its first token, and the queue is what waits for one. Each step is one of the whole batch, so the time of one is
the time of a token. It tells nothing of its KV cache: `tgi_batch_current_max_tokens` is what the batch may grow to,
with nothing to compare it with. Prompts are counted as they arrive, with what the cache has; first tokens are not.
"""

import msgspec

from extproc.agent.engines.adapter import Adapter, Pages, missing_of, page_of
from extproc.agent.engines.exposition import samples_of
from extproc.agent.engines.models import entries_of, served_all
from extproc.agent.engines.pagevalues import (
    Look,
    counters_in,
    mean_ms,
    remembered,
    requests_of,
    restarted,
    stands_still,
    sum_of,
    total_where,
)
from extproc.agent.engines.reading import NOT_TOLD, EngineReading, reading_from, unread
from extproc.core.snapshot import ServedModel

_RUNNING = "tgi_batch_current_size"
_WAITING = "tgi_queue_size"
_STEP = "tgi_batch_inference_duration"
_TOKEN = "tgi_request_mean_time_per_token_duration"  # noqa: S105 - a metric; with the prefill's share
_STEPS = ("tgi_batch_inference_count", "tgi_batch_inference_success")
_COUNTERS = (*_STEPS, f"{_STEP}_count", f"{_TOKEN}_count", "tgi_request_count", "tgi_request_success")
_WANTED = frozenset({_RUNNING, _WAITING, f"{_STEP}_sum", f"{_TOKEN}_sum", *_COUNTERS})
_PREFILL = "prefill"
_DECODE = "decode"


class _Info(msgspec.Struct, frozen=True):
    model_id: str
    max_total_tokens: int | None = None
    """Prompt and answer together."""


_INFO = msgspec.json.Decoder(_Info)


def models_of(info: str | None, models: str | None) -> tuple[ServedModel, ...] | str:
    """The models out of /info and /v1/models, or what is wrong with them. Older versions have the first only, and only
    that knows the context length; it serves one model."""
    told = _info_of(info)
    if models is None:
        return told if isinstance(told, str) else served_all([(told.model_id, told.max_total_tokens)])
    entries = entries_of(models)
    if isinstance(entries, str):
        return entries
    length = None if isinstance(told, str) else told.max_total_tokens
    return served_all([(entry.id, length) for entry in entries])


def read(metrics: str, before: Look | None) -> tuple[EngineReading, Look]:
    """One look at /metrics. Raises for no input."""
    page = samples_of(metrics, _WANTED)
    counters = counters_in(page, _COUNTERS, "method")
    began_anew = restarted(None, counters, before)
    if began_anew:
        before = None
    running, waiting = requests_of(page, _RUNNING), requests_of(page, _WAITING)
    steps = {method: total_where(page, _STEP, {"method": method}) for method in (_PREFILL, _DECODE)}
    totals = {name: total for name, total in {**steps, _TOKEN: total_where(page, _TOKEN, {})}.items() if total}
    marks = tuple(sum_of(page, name) for name in (*_STEPS, _RUNNING, _WAITING))
    reading = reading_from(
        {
            "requests_running": running,
            "requests_waiting": waiting,
            "active_decodes": running,
            "pending_prefills": waiting,
            "kv_usage": NOT_TOLD,
            "kv_blocks_total": NOT_TOLD,
            "kv_block_size_tokens": NOT_TOLD,
            "kv_blocks_available": NOT_TOLD,
            "prefill_latency_ms": mean_ms((_PREFILL,), totals, before)
            if _PREFILL in totals
            else f'{_STEP}{{method="{_PREFILL}"}} is missing',
            "decode_ms_per_token": mean_ms((_DECODE, _TOKEN), totals, before)
            if totals.keys() & {_DECODE, _TOKEN}
            else f'{_STEP}{{method="{_DECODE}"}} is missing',
            "prefill_tokens_total": NOT_TOLD,
            "prefill_seconds_total": NOT_TOLD,
            "first_tokens_total": NOT_TOLD,
            "prefix_queries_total": NOT_TOLD,
            "prefix_hits_total": NOT_TOLD,
            "adapter_slots_free": NOT_TOLD,
        },
        restarted=began_anew,
        frozen=stands_still(marks, len(_STEPS), running, waiting, before),
    )
    return reading, Look(counters=remembered(counters, before), totals=totals, marks=marks)


def _info_of(info: str | None) -> _Info | str:
    if info is None:
        return "/info is missing"
    try:
        return _INFO.decode(info)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return "/info tells no model"


def _look(pages: Pages, before: Look | None) -> tuple[EngineReading, Look | None]:
    metrics = page_of(pages, "/metrics")
    return (unread(missing_of(pages, "/metrics")), before) if metrics is None else read(metrics, before)


def _listed(pages: Pages) -> tuple[ServedModel, ...] | str:
    info, models = page_of(pages, "/info"), page_of(pages, "/v1/models")
    return missing_of(pages, "/info") if info is None and models is None else models_of(info, models)


ADAPTER = Adapter(_look, _listed, lists=("/info", "/v1/models"))
"""Reads Hugging Face's Text Generation Inference."""
