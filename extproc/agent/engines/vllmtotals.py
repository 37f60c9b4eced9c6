"""What vLLM counts from its start on: first tokens, the prompts behind them, and its prefix cache.

Routers use differences of these, and a restart is told apart by the boot, so they are passed on as they stand.
A prompt enters `prompt_tokens_total` whole at its first token, cache hits included; so what was computed is told apart
by its source, and before vLLM did that, by the hits of the prefix cache. Those are counted earlier, when a request
is admitted: then the difference runs behind by the hits of the requests in prefill, and it would fall whenever one is
admitted. It is held at what it was instead.
"""

from extproc.agent.engines.exposition import Page, sums_by
from extproc.agent.engines.pagevalues import count_over, seconds_over, spelled

FIRST_TOKENS = "vllm:time_to_first_token_seconds_count"
PROMPT = "vllm:prompt_tokens_total"

_FIRST_TOKENS_S = "vllm:time_to_first_token_seconds_sum"
_BY_SOURCE = "vllm:prompt_tokens_by_source_total"
_COMPUTED = "local_compute"
_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")  # the second is older
_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")

COUNTERS = (FIRST_TOKENS, PROMPT, *_QUERIES, *_HITS)
"""Those that never fall while the engine lives."""
WANTED = frozenset({*COUNTERS, _FIRST_TOKENS_S, _BY_SOURCE})


def totals_of(page: Page) -> dict[str, float | int | str]:
    """What stands on the page as it is, of all engines, by the reading's names; a text is why one is absent."""
    queries_name, hits_name = spelled(page, _QUERIES), spelled(page, _HITS)
    queries, hits = count_over(page.get(queries_name, ()), queries_name), count_over(page.get(hits_name, ()), hits_name)
    if isinstance(queries, int) and isinstance(hits, int) and hits > queries:
        queries = hits = f"{hits_name} is over {queries_name}"
    return {
        "prefill_seconds_total": seconds_over(page, _FIRST_TOKENS_S),
        "first_tokens_total": count_over(page.get(FIRST_TOKENS, ()), FIRST_TOKENS),
        "prefix_queries_total": queries,
        "prefix_hits_total": hits,
    }


def prefill_tokens_of(page: Page, before: int | None) -> int | str:
    """Prompt tokens computed by all engines, or why it is not known; `before` is what the look before gave."""
    computed = [sample for sample in page.get(_BY_SOURCE, ()) if sample.labels.get("source") == _COMPUTED]
    if computed:
        return count_over(computed, _BY_SOURCE)
    hits_name = spelled(page, _HITS)
    for name in (PROMPT, hits_name):
        if isinstance(fault := count_over(page.get(name, ()), name), str):
            return fault
    prompts, hits = sums_by(page, PROMPT, "engine"), sums_by(page, hits_name, "engine")
    if prompts.keys() != hits.keys():
        return f"{hits_name} is missing for an engine"
    tokens = sum(max(0, int(prompts[engine] - hits[engine])) for engine in prompts)
    return max(tokens, before or 0)
