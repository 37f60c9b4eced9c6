"""An engine that nobody knows, by a mapping from fields of a report to its metrics: text in, reading out.

It began anew where the process start that most of Prometheus' clients tell has changed, or where a metric fell that a
counter is made of: a difference of two counters may fall without that, and is held at what it was. Whether a page that
stands still is of a long step cannot be told, since the mapping does not say what moves.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from extproc.agent.engines.adapter import Adapter, Pages, missing_of, page_of
from extproc.agent.engines.exposition import Page, samples_of
from extproc.agent.engines.expressions import Expression, Folded, metrics_of, terms_of, value_of
from extproc.agent.engines.models import listed
from extproc.agent.engines.pagevalues import Look, available_of, pending_of, restarted
from extproc.agent.engines.reading import (
    MEASURED,
    NOT_MAPPED,
    EngineReading,
    Total,
    count_of,
    reading_from,
    seconds_of,
    unread,
)
from extproc.agent.genericsettings import GenericConfig
from extproc.core.snapshot import (
    ADAPTERS_MAX,
    COUNTER_MAX,
    KV_BLOCK_SIZE_TOKENS_MAX,
    KV_BLOCKS_MAX,
    REQUESTS_MAX,
)

WHOLE_WITHIN = 1e-6
"""A number so near a whole one, as a share of it, is that one: arithmetic rounds. Others are not rounded but absent."""

_STARTED = "process_start_time_seconds"
_WHOLE = {
    "requests_running": REQUESTS_MAX,
    "requests_waiting": REQUESTS_MAX,
    "active_decodes": REQUESTS_MAX,
    "pending_prefills": REQUESTS_MAX,
    "kv_blocks_total": KV_BLOCKS_MAX,
    "kv_blocks_available": KV_BLOCKS_MAX,
    "kv_block_size_tokens": KV_BLOCK_SIZE_TOKENS_MAX,
    "prefill_tokens_total": COUNTER_MAX,
    "first_tokens_total": COUNTER_MAX,
    "prefix_queries_total": COUNTER_MAX,
    "prefix_hits_total": COUNTER_MAX,
    "adapter_slots_free": ADAPTERS_MAX,
}
_NEVER_0 = ("kv_blocks_total", "kv_block_size_tokens")
_COUNTERS = (
    "prefill_tokens_total",
    "prefill_seconds_total",
    "first_tokens_total",
    "prefix_queries_total",
    "prefix_hits_total",
)
_PARTS = (("kv_blocks_available", "kv_blocks_total"), ("prefix_hits_total", "prefix_queries_total"))

Told = dict[str, float | int | str]
"""By field; a text is why it is absent."""


@dataclass(frozen=True, slots=True)
class GenericLook:
    """What one look hands on to the next."""

    look: Look
    highest: Mapping[str, float]
    """Of each total of the report."""


def adapter_of(config: GenericConfig) -> Adapter:
    """Reads the engine that the mapping is of."""
    read = reader_of(config)

    def look(pages: Pages, before: GenericLook | None) -> tuple[EngineReading, GenericLook | None]:
        metrics = page_of(pages, "/metrics")
        return (unread(missing_of(pages, "/metrics")), before) if metrics is None else read(metrics, before)

    return Adapter(look, listed)


def reader_of(config: GenericConfig) -> Callable[[str, GenericLook | None], tuple[EngineReading, GenericLook]]:
    """Makes one look at the engine's metrics out of their text and the look before. It raises for no input."""
    fields, means = config.expressions, config.means
    counters = [fields[name] for name in _COUNTERS if name in fields]
    counters += [expression for mean in means.values() for expression in (mean.seconds, mean.count)]
    terms = {term for expression in counters for term in terms_of(expression) if isinstance(term, Folded)}
    wanted = frozenset({_STARTED}).union(*map(metrics_of, (*fields.values(), *counters)))

    def read(metrics: str, before: GenericLook | None) -> tuple[EngineReading, GenericLook]:
        page = samples_of(metrics, wanted)
        started = page.get(_STARTED, ())
        started_at_s = started[0].value if len(started) == 1 else None
        counted = {(str(term), ""): value for term in terms if not isinstance(value := value_of(term, page), str)}
        began_anew = restarted(started_at_s, counted, None if before is None else before.look)
        if before is None or began_anew:
            before = GenericLook(Look(), {})

        told: Told = dict.fromkeys(MEASURED, NOT_MAPPED)
        told |= {name: _checked(name, expression, page) for name, expression in fields.items()}
        highest = dict(before.highest)
        for name in _COUNTERS:
            value = told[name]
            if not isinstance(value, str):
                told[name] = highest[name] = max(value, highest.get(name, value))
        totals = dict(before.look.totals)
        for name, mean in means.items():
            spent, times = value_of(mean.seconds, page), value_of(mean.count, page)
            if isinstance(spent, str) or isinstance(times, str):
                told[name] = spent if isinstance(spent, str) else times
                continue
            totals[name] = Total(spent, times)
            told[name] = totals[name].mean_ms_since(before.look.totals.get(name), str(mean.seconds))
        _derive(told, fields.keys())
        reading = reading_from(told, restarted=began_anew, started_at_s=started_at_s)
        return reading, GenericLook(Look(started_at_s, counted, totals=totals), highest)

    return read


def _derive(told: Told, fields: Set[str]) -> None:
    """Puts in what follows from others, and takes out parts that are more than the whole."""
    if "pending_prefills" not in fields and "active_decodes" in fields:
        told["pending_prefills"] = pending_of(*_whole(told, "active_decodes", "requests_running", "requests_waiting"))
    if "kv_blocks_available" not in fields and {"kv_usage", "kv_blocks_total"} <= fields:
        (total,) = _whole(told, "kv_blocks_total")
        told["kv_blocks_available"] = available_of(told["kv_usage"], total)
    for part, whole in _PARTS:
        if part in fields and whole in fields:
            some, all_ = told[part], told[whole]
            if not isinstance(some, str) and not isinstance(all_, str) and some > all_:
                told[part] = told[whole] = f"{part} is over {whole}"


def _whole(told: Mapping[str, float | int | str], *names: str) -> list[int | str]:
    values = [told[name] for name in names]
    return [value if isinstance(value, str) else int(value) for value in values]


def _checked(name: str, expression: Expression, page: Page) -> float | int | str:
    """The expression's value if it is one that the field may have, or why not."""
    value = value_of(expression, page)
    if isinstance(value, str):
        return value
    if name == "kv_usage":
        return value if 0 <= value <= 1 else f"{expression} is not in 0..1"
    if name not in _WHOLE:
        return seconds_of(value, str(expression))
    nearest = round(value)
    if abs(value - nearest) <= WHOLE_WITHIN * max(1, abs(nearest)):
        value = nearest
    if name in _NEVER_0 and value == 0:
        return f"{expression} is 0"
    return count_of(value, _WHOLE[name], str(expression))
