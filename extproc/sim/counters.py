"""What an engine counts about itself, with vLLM 0.32's meanings.

Checked against counters captured from a real vLLM 0.32: prompt tokens are counted once, whole, at a request's first
token (cache hits included, recomputation after a preemption not); a step that gives no request a token is no iteration;
an iteration's tokens are the *computed* prompt tokens plus the generated ones, so Σ iteration = local_compute +
generation; an aborted request stays in whatever it reached and never gets to `request_success`.
"""

import enum
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field


class FinishReason(enum.Enum):
    """Why an answer ended; the value is vLLM's label and the API's `finish_reason`."""

    STOP = "stop"
    LENGTH = "length"


class Histogram:
    """Observations in buckets, as Prometheus means them: a bucket's upper bound belongs to it."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.in_bucket = [0] * (len(bounds) + 1)
        """Not cumulative; the last is +Inf."""
        self.sum = 0.0

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.in_bucket)

    def bucket_of(self, value: float) -> int:
        """The index in `in_bucket` that a value belongs to."""
        return bisect_left(self.bounds, value)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value so many times."""
        self.in_bucket[bisect_left(self.bounds, value)] += times
        self.sum += value * times


def _histogram(*bounds: float) -> Callable[[], Histogram]:
    return lambda: Histogram(bounds)


_first_token_s = _histogram(
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_token_s = _histogram(
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
)
_request_s = _histogram(
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
_tokens = _histogram(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
_step_tokens = _histogram(*(1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0))
_preemptions = _histogram(1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
_sequences = _histogram(1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(slots=True)
class Counters:
    """Everything an engine exposes; names without `vllm:`. Seconds and tokens."""

    num_requests_running: int = 0
    """This and the next two describe the last finished step, not the moment of the scrape."""
    num_requests_waiting: int = 0
    kv_cache_usage: float = 0.0
    """Share 0..1."""

    prefix_cache_queries: int = 0
    """Tokens looked up, at a request's first admission; what comes back from a preemption is not counted again."""
    prefix_cache_hits: int = 0
    preemptions: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    request_success: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))
    admission_rejections: int = 0

    iteration_tokens: Histogram = field(default_factory=_step_tokens)
    time_to_first_token: Histogram = field(default_factory=_first_token_s)
    inter_token_latency: Histogram = field(default_factory=_token_s)

    request_prompt_tokens: Histogram = field(default_factory=_tokens)
    """This and all below: at a request's successful end."""
    request_generation_tokens: Histogram = field(default_factory=_tokens)
    request_max_num_generation_tokens: Histogram = field(default_factory=_tokens)
    request_params_n: Histogram = field(default_factory=_sequences)
    request_params_max_tokens: Histogram = field(default_factory=_tokens)
    request_time_per_output_token: Histogram = field(default_factory=_token_s)
    e2e_request_latency: Histogram = field(default_factory=_request_s)
    request_queue_time: Histogram = field(default_factory=_request_s)
    request_inference_time: Histogram = field(default_factory=_request_s)
    request_prefill_time: Histogram = field(default_factory=_request_s)
    request_decode_time: Histogram = field(default_factory=_request_s)
    request_num_preemptions: Histogram = field(default_factory=_preemptions)
    request_prefill_kv_computed_tokens: Histogram = field(default_factory=_tokens)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of requests past their prefill, cache hits included."""
        return self.prompt_tokens_computed + self.prompt_tokens_cached

    def finished(
        self,
        reason: FinishReason,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        preemptions: int,
        queue_s: float,
        prefill_s: float,
        decode_s: float,
    ) -> None:
        """A sequence ended well. Queue, prefill (to the first token) and decode follow each other without a gap."""
        self.request_success[reason] += 1
        self.request_prompt_tokens.observe(prompt_tokens)
        self.request_generation_tokens.observe(output_tokens)
        self.request_prefill_kv_computed_tokens.observe(prompt_tokens - cached_tokens)
        self.request_num_preemptions.observe(preemptions)
        # An answer of one token has no gap: vLLM observes 0.
        self.request_time_per_output_token.observe(decode_s / (output_tokens - 1) if output_tokens > 1 else 0.0)
        self.request_queue_time.observe(queue_s)
        self.request_prefill_time.observe(prefill_s)
        self.request_decode_time.observe(decode_s)
        self.request_inference_time.observe(prefill_s + decode_s)
        self.e2e_request_latency.observe(queue_s + prefill_s + decode_s)
