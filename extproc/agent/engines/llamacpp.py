"""llama.cpp's pages: text in, reading out. `/metrics` needs `--metrics`, `/slots` is on unless switched off.

A slot serves one request at a time and has `n_ctx` tokens of KV cache. A slot's cache is counted in tokens, so here a
KV block is one token. With `--kv-unified` the slots share one cache of `n_ctx` tokens, which no page tells:
then the total is too big by the number of slots.

A prompt enters the prompt's counters at its first token, so they are of requests past it. The time is that in a slot,
without the wait for one. How many requests these are is in no counter. Numbers come with six digits: from a million on
they are rounded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from extproc.agent.engines.adapter import Adapter, Pages, missing_of, page_of
from extproc.agent.engines.exposition import samples_of
from extproc.agent.engines.models import entries_of, served_all
from extproc.agent.engines.pagevalues import fell_together
from extproc.agent.engines.reading import (
    NOT_TOLD,
    EngineReading,
    Total,
    count_of,
    reading_from,
    seconds_of,
)
from extproc.core.snapshot import COUNTER_MAX, KV_BLOCKS_MAX, REQUESTS_MAX, ServedModel

_RUNNING = "llamacpp:requests_processing"
_WAITING = "llamacpp:requests_deferred"
_DECODED = "llamacpp:tokens_predicted_total"
_DECODED_S = "llamacpp:tokens_predicted_seconds_total"
_COMPUTED = "llamacpp:prompt_tokens_total"  # without what came from the cache
_CACHED = "llamacpp:prompt_tokens_cached_total"
_PREFILL_S = "llamacpp:prompt_seconds_total"
_STEPS = "llamacpp:n_decode_total"
_COUNTERS = (_DECODED, _COMPUTED, _CACHED, _STEPS)
_EXACT_MAX = 1_000_000
"""From here on numbers are rounded: one that moves may look as if it stood still."""
_WANTED = frozenset({_RUNNING, _WAITING, _DECODED_S, _PREFILL_S, *_COUNTERS})


class _NextToken(msgspec.Struct, frozen=True):
    n_decoded: int = 0


class _Slot(msgspec.Struct, frozen=True):
    n_ctx: int
    is_processing: bool
    id_task: int = -1
    n_prompt_tokens: int = 0
    """The prompt's and the answer's tokens in the slot; absent before its first request."""
    n_prompt_tokens_processed: int = 0
    next_token: list[_NextToken] | _NextToken = msgspec.field(default_factory=list)
    """One entry, which older versions write without the list."""

    @property
    def decoded(self) -> int:
        ahead = self.next_token if isinstance(self.next_token, list) else [self.next_token]
        return sum(token.n_decoded for token in ahead)

    @property
    def decodes(self) -> bool:
        return self.is_processing and self.decoded > 0

    @property
    def mark(self) -> tuple[int, ...]:
        return self.id_task, self.n_prompt_tokens, self.n_prompt_tokens_processed, self.decoded


class _GenerationSettings(msgspec.Struct, frozen=True):
    n_ctx: int | None = None


class _Props(msgspec.Struct, frozen=True):
    default_generation_settings: _GenerationSettings = _GenerationSettings()


_SLOTS = msgspec.json.Decoder(list[_Slot])
_PROPS = msgspec.json.Decoder(_Props)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look hands on to the next; the values are only compared."""

    counters: Mapping[str, float]
    decoding: Total | None
    marks: tuple[object, ...] = ()
    """All that moves with a step."""


def models_of(models: str, props: str | None) -> tuple[ServedModel, ...] | str:
    """The models of a /v1/models answer, or what is wrong with it.

    The context length is what one slot holds: /props knows it, newer model lists too; the length of the training
    is only the last resort, since the server may have been given less.
    """
    entries = entries_of(models)
    if isinstance(entries, str):
        return entries
    settings = _props_of(props)
    slot_tokens = None if settings is None else settings.default_generation_settings.n_ctx
    pairs = []
    for entry in entries:
        told = () if entry.meta is None else (entry.meta.n_ctx, entry.meta.n_ctx_train)
        pairs.append((entry.id, next((tokens for tokens in (slot_tokens, *told) if tokens), None)))
    return served_all(pairs)


def read(metrics: str | None, slots: str | None, before: Look | None) -> tuple[EngineReading, Look]:
    """One look at /metrics and /slots, each `None` where the server does not give it. Raises for no input."""
    page = samples_of(metrics or "", _WANTED)
    values = {name: samples[-1].value for name, samples in page.items()}
    counters = {name: values[name] for name in _COUNTERS if name in values}
    restarted = before is not None and fell_together(counters, before.counters)
    if restarted:
        before = None
    decoding = Total(values[_DECODED_S], values[_DECODED]) if _DECODED in values and _DECODED_S in values else None

    waiting = count_of(values.get(_WAITING), REQUESTS_MAX, _WAITING)
    running: int | str
    decodes: int | str
    pending: int | str
    usage: float | str
    blocks_total: int | str
    available: int | str
    computed = count_of(values.get(_COMPUTED), COUNTER_MAX, _COMPUTED)
    cached = count_of(values.get(_CACHED), COUNTER_MAX, _CACHED)
    parsed = _slots_of(slots)
    if isinstance(parsed, str):
        running = count_of(values.get(_RUNNING), REQUESTS_MAX, _RUNNING)
        decodes = pending = usage = blocks_total = available = parsed
    else:
        # Taken from the slots too, so that all of these are of one moment.
        running = sum(slot.is_processing for slot in parsed)
        decodes = sum(slot.decodes for slot in parsed)
        pending = waiting if isinstance(waiting, str) else running + waiting - decodes
        blocks_total = sum(slot.n_ctx for slot in parsed)
        used = sum(min(slot.n_prompt_tokens, slot.n_ctx) for slot in parsed if slot.is_processing)
        usage, available = used / blocks_total, blocks_total - used

    slots_marks = None if isinstance(parsed, str) else tuple(slot.mark for slot in parsed)
    marks = (counters, running, waiting, slots_marks)
    has_work = (isinstance(running, int) and running > 0) or (isinstance(waiting, int) and waiting > 0)
    counts_steps = slots_marks is not None or 0 <= counters.get(_STEPS, _EXACT_MAX) < _EXACT_MAX
    frozen = before is not None and has_work and counts_steps and marks == before.marks

    reading = reading_from(
        {
            "requests_running": running,
            "requests_waiting": waiting,
            "active_decodes": decodes,
            "pending_prefills": pending,
            "kv_usage": usage,
            "kv_blocks_total": blocks_total,
            "kv_block_size_tokens": 1,
            "kv_blocks_available": available,
            "prefill_latency_ms": NOT_TOLD,
            "decode_ms_per_token": f"{_DECODED_S} is missing"
            if decoding is None
            else decoding.mean_ms_since(None if before is None else before.decoding, _DECODED_S),
            "prefill_tokens_total": computed,
            "prefill_seconds_total": seconds_of(values.get(_PREFILL_S), _PREFILL_S),
            "first_tokens_total": NOT_TOLD,
            "prefix_queries_total": _looked_up(computed, cached),
            "prefix_hits_total": cached,
            "adapter_slots_free": NOT_TOLD,
        },
        restarted=restarted,
        frozen=frozen,
    )
    return reading, Look(counters, decoding, marks)


def _looked_up(computed: int | str, cached: int | str) -> int | str:
    if isinstance(computed, str) or isinstance(cached, str):
        return computed if isinstance(computed, str) else str(cached)
    return count_of(computed + cached, COUNTER_MAX, f"{_COMPUTED} and {_CACHED}")


def _slots_of(slots: str | None) -> Sequence[_Slot] | str:
    """The slots, with sizes that can be reckoned with, or what is wrong."""
    if slots is None:
        return "/slots is missing"
    try:
        parsed = _SLOTS.decode(slots)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return "/slots is no list of slots"
    sound = all(slot.n_ctx > 0 and slot.n_prompt_tokens >= 0 for slot in parsed)
    if not parsed or not sound or len(parsed) > REQUESTS_MAX or sum(slot.n_ctx for slot in parsed) > KV_BLOCKS_MAX:
        return "/slots has slots of no size"
    return parsed


def _props_of(props: str | None) -> _Props | None:
    try:
        return None if props is None else _PROPS.decode(props)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def _look(pages: Pages, before: Look | None) -> tuple[EngineReading, Look]:
    return read(page_of(pages, "/metrics"), page_of(pages, "/slots"), before)


def _listed(pages: Pages) -> tuple[ServedModel, ...] | str:
    models = page_of(pages, "/v1/models")
    return missing_of(pages, "/v1/models") if models is None else models_of(models, page_of(pages, "/props"))


ADAPTER = Adapter(_look, _listed, others=("/slots",), lists=("/v1/models", "/props"))
"""Reads llama.cpp's server."""
