"""Triton's metrics with the TensorRT-LLM backend: text in, reading out.

They have a port of their own, 8002, or stand beside Triton's OpenAI frontend. Several models on one Triton are summed,
each with a KV cache of its own, which weighs by its blocks.

`active` is what a model holds, `scheduled` what its last step computed; `waiting` is their difference, which the
engine works out without caring which of them fell first: it can be under 0. So it is worked out here. What waits
beyond `max` active requests stands in no metric, nor do first tokens, so there are no totals.
"""

from collections.abc import Mapping, Sequence

from extproc.agent.engines.adapter import Adapter, Pages, missing_of, page_of
from extproc.agent.engines.blocks import block_size_of, kv_cache_of
from extproc.agent.engines.exposition import Page, Sample, samples_of
from extproc.agent.engines.models import listed
from extproc.agent.engines.pagevalues import (
    Look,
    count_over,
    pending_of,
    restarted,
    share_over,
    stands_still,
    sum_of,
)
from extproc.agent.engines.reading import MEASURED, NOT_TOLD, EngineReading, reading_from, unread
from extproc.core.snapshot import KV_BLOCKS_MAX, REQUESTS_MAX, ServedModel

_REQUESTS = "nv_trt_llm_request_metrics"
_BATCH = "nv_trt_llm_inflight_batcher_metrics"
_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_GENERAL = "nv_trt_llm_general_metrics"
_TYPES = {
    _REQUESTS: "request_type",
    _BATCH: "inflight_batcher_specific_metric",
    _BLOCKS: "kv_cache_block_type",
    _GENERAL: "general_type",
}
"""Each metric's label that says what is counted."""
_COUNTERS = (
    "nv_inference_request_success",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_llm_input_token_len_count",
)
_WANTED = frozenset({*_TYPES, *_COUNTERS})


def read(metrics: str, before: Look | None) -> tuple[EngineReading, Look]:
    """One look at Triton's metrics. Raises for no input."""
    page = samples_of(metrics, _WANTED)
    counters: dict[tuple[str, str], float] = {}
    for name in _COUNTERS:
        for sample in page.get(name, ()):
            key = name, _model(sample)
            counters[key] = counters.get(key, 0.0) + sample.value
    began_anew = restarted(None, counters, before)
    if began_anew:
        before = None

    running, waiting = _requests(page)
    generation, name = _typed(page, _BATCH, "generation_requests")
    decodes = count_over(generation, name, REQUESTS_MAX)
    if isinstance(decodes, int) and isinstance(running, int):
        decodes = min(decodes, running)  # a batch that has ended is shown on
    steps, _ = _typed(page, _GENERAL, "iteration_counter")
    marks = (
        sum(sample.value for sample in steps) if steps else None,
        *(sum_of(page, name) for name in (_REQUESTS, _BATCH, *_COUNTERS)),
    )

    reading = reading_from(
        {
            **dict.fromkeys(MEASURED, NOT_TOLD),
            "requests_running": running,
            "requests_waiting": waiting,
            "active_decodes": decodes,
            "pending_prefills": pending_of(decodes, running, waiting),
            **_kv_cache(page),
        },
        restarted=began_anew,
        # An engine without work may show its last batch on, but then nothing waits there.
        frozen=stands_still(marks, 1, 0, waiting, before),
    )
    return reading, Look(counters=counters, marks=marks)


def _requests(page: Page) -> tuple[int | str, int | str]:
    """Those in the batch, and the others that the models hold."""
    actives, active_name = _typed(page, _REQUESTS, "active")
    batches, batch_name = _typed(page, _REQUESTS, "scheduled")
    active, scheduled = _by_model(actives), _by_model(batches)
    for samples, name in ((actives, active_name), (batches, batch_name)):
        if isinstance(fault := count_over(samples, name, REQUESTS_MAX), str):
            return fault, fault
    if active.keys() != scheduled.keys():
        fault = f"{batch_name} is missing for a model"
        return fault, fault
    running = sum(min(count, scheduled[model]) for model, count in active.items())
    return int(running), int(sum(active.values()) - running)


def _kv_cache(page: Page) -> dict[str, float | int | str]:
    used, total = (
        count_over(samples, name, KV_BLOCKS_MAX)
        for samples, name in (_typed(page, _BLOCKS, "used"), _typed(page, _BLOCKS, "max"))
    )
    shares, share_name = _typed(page, _BLOCKS, "fraction")
    sizes, total_name = _typed(page, _BLOCKS, "max")
    cache = kv_cache_of(used, total, share_over(_by_model(shares), _by_model(sizes), share_name), total_name)
    return {
        "kv_usage": cache.usage,
        "kv_blocks_total": cache.total,
        "kv_blocks_available": cache.available,
        "kv_block_size_tokens": block_size_of(*_typed(page, _BLOCKS, "tokens_per")),
    }


def _typed(page: Page, name: str, kind: str) -> tuple[Sequence[Sample], str]:
    """A metric's samples of one type, and what to call them."""
    label = _TYPES[name]
    return [sample for sample in page.get(name, ()) if sample.labels.get(label) == kind], f"{name}{{{label}={kind}}}"


def _model(sample: Sample) -> str:
    return f"{sample.labels.get('model')}/{sample.labels.get('version')}"


def _by_model(samples: Sequence[Sample]) -> Mapping[str, float]:
    values: dict[str, float] = {}
    for sample in samples:
        values[_model(sample)] = values.get(_model(sample), 0.0) + sample.value
    return values


def _look(pages: Pages, before: Look | None) -> tuple[EngineReading, Look | None]:
    metrics = page_of(pages, "/metrics")
    if metrics is None:
        reason = (
            f"{missing_of(pages, '/metrics')}; Triton's metrics have a port of their own, which `metrics` must name"
        )
        return unread(reason), before
    return read(metrics, before)


def _listed(pages: Pages) -> tuple[ServedModel, ...] | str:
    models = listed(pages)
    if isinstance(models, str):
        return f"{models}: only Triton's OpenAI frontend lists models, without it `models` must name them"
    return models


ADAPTER = Adapter(_look, _listed, health="/v2/health/ready")
"""Reads Triton with the TensorRT-LLM backend."""
