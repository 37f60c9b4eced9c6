"""An engine's counters as Prometheus metrics, with the names, labels and buckets of vLLM 0.32."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from extproc.sim.counters import Counters, FinishReason, Histogram
from extproc.sim.engine import Engine

_FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")

# What vLLM exposes of its CacheConfig besides the pool's size; the values of an engine started with defaults.
_CACHE_CONFIG = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}


class EngineCollector(Collector):
    """Reads the counters at each scrape. Signals that the model does not have stay 0, as in a vLLM without them."""

    def __init__(self, engine: Engine, model: str, started_at_s: float) -> None:
        self._engine = engine
        self._model = model
        self._started_at_s = started_at_s
        """Unix time; also what stands for the start of the engine's process."""

    def collect(self) -> Iterable[Metric]:
        """Every family, in vLLM's order."""
        counters = self._engine.counters
        started = Metric(
            "process_start_time_seconds", "Start time of the process since unix epoch in seconds.", "gauge"
        )
        started.add_sample(started.name, {}, self._started_at_s)
        yield started
        for name in ("flops", "read_bytes", "write_bytes"):
            yield self._counter(f"estimated_{name}_per_gpu", "Estimated work per GPU.", 0)
        yield from self._state(counters)
        yield from self._tokens(counters)
        yield from self._histograms(counters)
        yield self._cache_config()

    def _state(self, counters: Counters) -> Iterable[Metric]:
        waiting = counters.num_requests_waiting
        yield self._gauge(
            "num_requests_running", "Number of requests in model execution batches.", counters.num_requests_running
        )
        yield self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", waiting)
        by_reason = {"capacity": waiting, "deferred": 0}
        help_text = "Number of waiting requests by reason."
        yield self._gauge("num_requests_waiting_by_reason", help_text, by_reason, label="reason")
        sleep = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        yield self._gauge("engine_sleep_state", "Engine sleep state.", sleep, label="sleep_state")
        yield self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", counters.kv_cache_usage)

    def _tokens(self, counters: Counters) -> Iterable[Metric]:
        cached = counters.prompt_tokens_cached
        queries = "Prefix cache queries, in terms of number of queried tokens."
        yield self._counter("prefix_cache_queries", queries, counters.prefix_cache_queries)
        hits = "Prefix cache hits, in terms of number of cached tokens."
        yield self._counter("prefix_cache_hits", hits, counters.prefix_cache_hits)
        for cache in ("external_prefix_cache", "mm_cache"):
            yield self._counter(f"{cache}_queries", "Cache queries.", 0)
            yield self._counter(f"{cache}_hits", "Cache hits.", 0)
        preemptions = "Cumulative number of preemption from the engine."
        yield self._counter("num_preemptions", preemptions, counters.preemptions)
        yield self._counter("prompt_tokens", "Number of prefill tokens processed.", counters.prompt_tokens)
        by_source = {
            "local_compute": counters.prompt_tokens_computed,
            "local_cache_hit": cached,
            "external_kv_transfer": 0,
        }
        yield self._counter("prompt_tokens_by_source", "Number of prompt tokens by source.", by_source, label="source")
        yield self._counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", cached)
        by_tier = {"device": counters.prefix_cache_hits, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": 0}
        tiers = "Prefix-cache hit tokens by the cache tier that supplied them. Counted at admission."
        yield self._counter("prompt_tokens_cached_by_source", tiers, by_tier, label="source")
        yield self._counter("generation_tokens", "Number of generation tokens processed.", counters.generation_tokens)
        success = dict.fromkeys(_FINISHED_REASONS, 0)
        success |= {reason.value: counters.request_success[reason] for reason in FinishReason}
        finished = "Count of successfully processed requests."
        yield self._counter("request_success", finished, success, label="finished_reason")
        rejections = {"max_num_queued_reqs": counters.admission_rejections, "max_num_queued_tokens": 0}
        rejected = "Number of admission attempts rejected by a queue limit, by reason."
        yield self._counter("admission_rejections", rejected, rejections, label="reason", per_engine=False)

    def _histograms(self, counters: Counters) -> Iterable[Metric]:
        of = "Histogram of "
        for name, help_text, histogram in (
            ("request_prompt_tokens", "Number of prefill tokens processed.", counters.request_prompt_tokens),
            ("request_generation_tokens", "Number of generation tokens processed.", counters.request_generation_tokens),
            ("iteration_tokens_total", of + "number of tokens per engine_step.", counters.iteration_tokens),
            (
                "request_max_num_generation_tokens",
                of + "maximum number of requested generation tokens.",
                counters.request_max_num_generation_tokens,
            ),
            ("request_params_n", of + "the n request parameter.", counters.request_params_n),
            ("request_params_max_tokens", of + "the max_tokens request parameter.", counters.request_params_max_tokens),
            ("time_to_first_token_seconds", of + "time to first token in seconds.", counters.time_to_first_token),
            ("inter_token_latency_seconds", of + "inter-token latency in seconds.", counters.inter_token_latency),
            (
                "request_time_per_output_token_seconds",
                of + "time_per_output_token_seconds per request.",
                counters.request_time_per_output_token,
            ),
            ("e2e_request_latency_seconds", of + "e2e request latency in seconds.", counters.e2e_request_latency),
            ("request_queue_time_seconds", of + "time spent in WAITING phase.", counters.request_queue_time),
            ("request_inference_time_seconds", of + "time spent in RUNNING phase.", counters.request_inference_time),
            ("request_prefill_time_seconds", of + "time spent in PREFILL phase.", counters.request_prefill_time),
            ("request_decode_time_seconds", of + "time spent in DECODE phase.", counters.request_decode_time),
            (
                "request_num_preemptions",
                of + "the number of times a request was preempted.",
                counters.request_num_preemptions,
            ),
            (
                "request_prefill_kv_computed_tokens",
                of + "new KV tokens computed during prefill (excluding cached tokens).",
                counters.request_prefill_kv_computed_tokens,
            ),
        ):
            yield self._histogram(name, help_text, histogram)

    def _cache_config(self) -> Metric:
        settings = self._engine.settings
        tokens = settings.kv_blocks * settings.block_size_tokens
        labels = _CACHE_CONFIG | {
            "engine": "0",
            "block_size": str(settings.block_size_tokens),
            "effective_attention_block_size": str(settings.block_size_tokens),
            "num_gpu_blocks": str(settings.kv_blocks),
            "kv_cache_size_tokens": str(tokens),
            "kv_cache_max_concurrency": str(tokens / settings.context_length_tokens),
        }
        metric = Metric("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", "gauge")
        metric.add_sample(metric.name, labels, 1)
        return metric

    def _labels(self, per_engine: bool = True) -> dict[str, str]:
        return {"engine": "0", "model_name": self._model} if per_engine else {"model_name": self._model}

    def _gauge(self, name: str, help_text: str, values: float | Mapping[str, float], label: str = "") -> Metric:
        metric = Metric(f"vllm:{name}", help_text, "gauge")
        for labels, value in _series(self._labels(), values, label):
            metric.add_sample(metric.name, labels, value)
        return metric

    def _counter(
        self,
        name: str,
        help_text: str,
        values: float | Mapping[str, float],
        label: str = "",
        per_engine: bool = True,
    ) -> Metric:
        metric = Metric(f"vllm:{name}", help_text, "counter")
        for labels, value in _series(self._labels(per_engine), values, label):
            metric.add_sample(f"{metric.name}_total", labels, value)
            metric.add_sample(f"{metric.name}_created", labels, self._started_at_s)
        return metric

    def _histogram(self, name: str, help_text: str, histogram: Histogram) -> Metric:
        metric = Metric(f"vllm:{name}", help_text, "histogram")
        labels = self._labels()
        count = 0
        for bound, observed in zip((*histogram.bounds, float("inf")), histogram.in_bucket, strict=True):
            count += observed
            metric.add_sample(
                f"{metric.name}_bucket", labels | {"le": str(bound) if bound < float("inf") else "+Inf"}, count
            )
        metric.add_sample(f"{metric.name}_count", labels, count)
        metric.add_sample(f"{metric.name}_sum", labels, histogram.sum)
        metric.add_sample(f"{metric.name}_created", labels, self._started_at_s)
        return metric


def _series(
    labels: dict[str, str], values: float | Mapping[str, float], label: str
) -> Iterable[tuple[dict[str, str], float]]:
    if isinstance(values, Mapping):
        for of, value in values.items():
            yield labels | {label: of}, value
    else:
        yield labels, values
