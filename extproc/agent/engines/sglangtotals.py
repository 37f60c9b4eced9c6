"""What SGLang counts from its start on: the prompts that it computed, their waits, and its prefix cache.

Its scheduler counts tokens as each prefill begins. Before it did, there were those of requests that are over, which is
late by their answers; those found in the cache have a series only from the first on, so until then nothing is told.

Its front counts the time to the first token, which for an answer that is not streamed is that to its fiftieth token or
its end. Versions that tell these apart have a stopwatch of the prefills besides, which with the time in the queue gives
the wait of every request. Versions that do not are believed.
"""

from extproc.agent.engines.exposition import Page, Sample
from extproc.agent.engines.pagevalues import Look, count_over, mean_ms, samples_where, seconds_over, total_where
from extproc.agent.engines.reading import Total, count_of, seconds_of
from extproc.core.snapshot import COUNTER_MAX

_BY_MODE = "sglang:realtime_tokens_total"
_LOOKED_UP = "sglang:prefill_effective_tokens_total"
_PROMPT = "sglang:prompt_tokens_total"
_CACHED = "sglang:cached_tokens_total"
_FIRST_TOKEN = "sglang:time_to_first_token_seconds"  # noqa: S105 - a metric
_STAGE = "sglang:per_stage_req_latency_seconds"
_QUEUED_S = "sglang:queue_time_seconds_sum"
_COMPUTED = {"mode": "prefill_compute"}
_FOUND = {"mode": "prefill_cache"}
_PREFILL = {"stage": "prefill_forward"}
_STREAMED = "is_streaming"

COUNTERS = (
    _BY_MODE,
    _LOOKED_UP,
    _PROMPT,
    _CACHED,
    f"{_FIRST_TOKEN}_count",
    f"{_STAGE}_count",
    "sglang:num_requests_total",
)
"""Those that never fall while the engine lives."""
WANTED = frozenset({*COUNTERS, f"{_FIRST_TOKEN}_sum", f"{_STAGE}_sum", _QUEUED_S})


def totals_of(page: Page) -> dict[str, float | int | str]:
    """Of all ranks, by the reading's names; a text is why one is absent."""
    queries, hits = _prefix_cache(page)
    if isinstance(queries, int) and isinstance(hits, int) and hits > queries:
        queries = hits = "more tokens were found in the prefix cache than looked up"
    seconds, firsts = _first_tokens(page)
    return {
        "prefill_tokens_total": _computed(page),
        "prefill_seconds_total": seconds,
        "first_tokens_total": firsts,
        "prefix_queries_total": queries,
        "prefix_hits_total": hits,
    }


def prefill_latency_of(page: Page, before: Look | None) -> tuple[float | str, dict[str, Total]]:
    """The mean of the last interval in ms, and what is to be compared with the next time."""
    totals = {}
    for name, labels in ((_STAGE, _PREFILL), (_FIRST_TOKEN, {_STREAMED: "true"} if _tells_streamed(page) else {})):
        if (total := total_where(page, name, labels)) is not None:
            totals[name] = total
    return mean_ms((_STAGE if _STAGE in totals else _FIRST_TOKEN,), totals, before), totals


def _computed(page: Page) -> int | str:
    if _BY_MODE in page:
        return count_over(samples_where(page, _BY_MODE, _COMPUTED), _BY_MODE)
    prompts, cached = (count_over(page.get(name, ()), name) for name in (_PROMPT, _CACHED))
    if isinstance(prompts, str) or isinstance(cached, str):
        return prompts if isinstance(prompts, str) else str(cached)
    return prompts - cached if cached <= prompts else f"{_CACHED} is over {_PROMPT}"


def _prefix_cache(page: Page) -> tuple[int | str, int | str]:
    """Tokens looked up, and tokens found."""
    if _LOOKED_UP in page:
        found = [one for one in page[_LOOKED_UP] if one.labels.get("mode", "").endswith("_hit")]
        return count_over(page[_LOOKED_UP], _LOOKED_UP), count_over(found, _LOOKED_UP)
    if _BY_MODE in page:
        # A mode has a series from its first token on.
        computed, found = (samples_where(page, _BY_MODE, mode) for mode in (_COMPUTED, _FOUND))
        return count_over([*computed, *found], _BY_MODE), count_over(found or [Sample({}, 0.0)], _BY_MODE)
    return count_over(page.get(_PROMPT, ()), _PROMPT), count_over(page.get(_CACHED, ()), _CACHED)


def _tells_streamed(page: Page) -> bool:
    return any(_STREAMED in sample.labels for sample in page.get(f"{_FIRST_TOKEN}_count", ()))


def _first_tokens(page: Page) -> tuple[float | str, int | str]:
    """The seconds from arrival to first token, and of how many requests."""
    if not _tells_streamed(page):
        counted = count_over(page.get(f"{_FIRST_TOKEN}_count", ()), f"{_FIRST_TOKEN}_count")
        return seconds_over(page, f"{_FIRST_TOKEN}_sum"), counted
    prefills = total_where(page, _STAGE, _PREFILL)
    if prefills is not None and _QUEUED_S in page:
        queued_s, prefill_s = seconds_over(page, _QUEUED_S), seconds_of(prefills.seconds, _STAGE)
        seconds: float | str
        if isinstance(queued_s, str) or isinstance(prefill_s, str):
            seconds = queued_s if isinstance(queued_s, str) else str(prefill_s)
        else:
            seconds = seconds_of(queued_s + prefill_s, _STAGE)
        return seconds, count_of(prefills.count, COUNTER_MAX, f"{_STAGE}_count")
    late = f"{_FIRST_TOKEN} has requests that were not streamed"
    if any(one.labels.get(_STREAMED) != "true" and one.value for one in page[f"{_FIRST_TOKEN}_count"]):
        return late, late
    return seconds_over(page, f"{_FIRST_TOKEN}_sum"), count_over(page[f"{_FIRST_TOKEN}_count"], f"{_FIRST_TOKEN}_count")
