"""What is counted of the counting of tokens: how, how fast, how well, and by what."""

import enum
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from extproc.core.request import CountSource

_TOKEN_BUCKETS_S = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
_ERROR_BUCKETS_RATIO = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
# Whole numbers: what is within "0" and not within "-1" is no difference at all.
_DIFFERENCE_BUCKETS_TOKENS = (-10_000, -1000, -100, -10, -1, 0, 1, 10, 100, 1000, 10_000)
_TOKENIZER_LABELS = ("tokenizer", "engine", "reason", "renderer", "models")
_LABEL_CHARS_MAX = 200


class Estimated(enum.Enum):
    """Why a prompt's text was not counted by a tokenizer."""

    NO_TOKENIZER = "no_tokenizer"
    BUSY = "busy"
    FAILED = "failed"
    TEMPLATE = "template"
    LATE = "late"
    TOO_LONG = "too_long"
    UNREAD = "unread"


class TokenMetrics:
    """Prompts as they are counted, and how engines counted them. May be told from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counts = Counter(
            "extproc_token_counts_total",
            "Prompts by how their tokens were found. source: counted (by the tokenizer, or given as token ids), "
            "cached (most of them for earlier requests) or estimated. A late one is estimated first, then counted.",
            ["source"],
            registry=registry,
        )
        self._counts = {source: counts.labels(source.value) for source in CountSource}
        count_s = Histogram(
            "extproc_token_count_seconds",
            "Time to count a prompt, with rendering its chat and waiting for a thread. source: counted or cached.",
            ["source"],
            buckets=_TOKEN_BUCKETS_S,
            registry=registry,
        )
        self._count_s: dict[CountSource, Histogram] = {
            source: count_s.labels(source.value) for source in CountSource if source is not CountSource.ESTIMATED
        }
        estimates = Counter(
            "extproc_token_estimates_total",
            "Prompts whose text was estimated by its size. reason: no_tokenizer (none is configured for the model), "
            "busy (too much text was waiting), template (it failed, or ran over its fuel), too_long (to be rendered or "
            "encoded at all), late (not counted within token_budget_ms) or failed (the text cannot be encoded).",
            ["reason"],
            registry=registry,
        )
        self._estimates = {reason: estimates.labels(reason.value) for reason in Estimated}
        self._estimate_error = Histogram(
            "extproc_token_estimate_error_ratio",
            "How wrong the estimate of a counted prompt would have been, by the count; for some of the counts.",
            buckets=_ERROR_BUCKETS_RATIO,
            registry=registry,
        )
        differences = Histogram(
            "extproc_token_usage_difference_tokens",
            "usage.prompt_tokens of an engine's answer less our count. The engine counted the same where it is within "
            'le="0" and not within le="-1". exact: whether our count was meant to be the engine\'s.',
            ["exact"],
            buckets=_DIFFERENCE_BUCKETS_TOKENS,
            registry=registry,
        )
        self._differences = {exact: differences.labels(str(exact).lower()) for exact in (True, False)}
        self._tokenizers = Gauge(
            "extproc_tokenizer_info",
            "1 for each tokenizer: the library that counts (engine) and why that one, how its models' chats are "
            "rendered, and the models that it is configured for.",
            _TOKENIZER_LABELS,
            registry=registry,
        )
        self._waiting_bytes = Gauge(
            "extproc_token_waiting_bytes",
            "Text being encoded in threads or waiting for one, as it weighs in waiting_bytes_max.",
            registry=registry,
        )
        self._cache_bytes = Gauge(
            "extproc_token_cache_bytes", "Memory held by counts of chats' earlier messages.", registry=registry
        )

    def watch(self, waiting_bytes: Callable[[], int], cache_bytes: Callable[[], int]) -> None:
        """Where to look, for each page, how much text waits to be encoded and how much memory known counts take."""
        self._waiting_bytes.set_function(waiting_bytes)
        self._cache_bytes.set_function(cache_bytes)

    def tokenizer_loaded(self, tokenizer: str, engine: str, reason: str, renderer: str, models: Iterable[str]) -> None:
        """A tokenizer is ready. Names are cut to 200 characters, and those of all models to as many together."""
        values = (tokenizer, engine, reason, renderer, ", ".join(models))
        self._tokenizers.labels(*(value[:_LABEL_CHARS_MAX] for value in values)).set(1)

    def counted(self, source: CountSource, seconds: float) -> None:
        """A prompt was counted, in this time: `source` is not `ESTIMATED`."""
        self._counts[source].inc()
        self._count_s[source].observe(seconds)

    def estimated(self, reason: Estimated) -> None:
        """A prompt's text was estimated by its size."""
        self._counts[CountSource.ESTIMATED].inc()
        self._estimates[reason].inc()

    def estimate_error(self, ratio: float) -> None:
        """A prompt was counted whose estimate would have been wrong by this share of the count."""
        self._estimate_error.observe(ratio)

    def usage_difference(self, tokens: int, exact: bool) -> None:
        """An engine counted so many prompt tokens more than we did; `exact`: our count was to be the engine's."""
        self._differences[exact].observe(tokens)
