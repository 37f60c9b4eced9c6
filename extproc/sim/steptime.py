"""What one step of an engine costs."""

from dataclasses import dataclass


@dataclass(slots=True)
class StepWork:
    """What an engine computes in one step."""

    prefill_tokens: int = 0
    """Prompt tokens computed, and tokens computed again after a preemption."""
    decoding_sequences: int = 0
    kv_tokens_read: int = 0
    """Σ context length of the decoding sequences."""
    attention_pairs: float = 0.0
    """Σ chunk × (tokens before it + chunk/2) over the prefill chunks: what grows quadratically."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Step time = c0 + c1·prefill tokens + c2·decoding sequences + c3·KV tokens read + c4·attention pairs, in seconds.

    The defaults stand for Llama-3.3-70B-Instruct in FP8 on two H100 80 GB with tensor parallelism. c3 and c4 come from
    the hardware (160 KiB of FP8 KV cache per token at 5.4 TB/s; 4 × 80 layers × 8192 FLOP per pair at 0.87 PFLOP/s),
    the others are fitted by hand to NVIDIA's tables for NIM 1.5 and 1.8 (docs.nvidia.com/nim/benchmarking/llm); with
    25,000 KV blocks the model then gives:

    | tokens in / out, requests at once | published TTFT, gap between tokens | this model |
    |---|---|---|
    | 5,000 / 500, 1 | 0.37–0.41 s, 18.6–19.9 ms | 0.39 s, 19.0 ms |
    | 5,000 / 500, 25 | 0.69–0.75 s, 39–42 ms | 0.76 s, 43 ms |
    | 5,000 / 500, 50 | 0.83–1.08 s, 60–64 ms | 1.07 s, 68 ms |
    | 5,000 / 500, 100 | 8.0–17.8 s, 88–93 ms | 14.8 s, 97 ms |
    | 500 / 2,000, 1 | 0.05–0.07 s, 18.9–19.3 ms | 0.05 s, 18.9 ms |
    | 500 / 2,000, 50 | 0.23 s, 25.6 ms | 0.08 s, 25.8 ms |
    | 500 / 2,000, 100 | 0.29 s, 32.8 ms | 0.09 s, 32.5 ms |
    """

    step_s: float = 0.0188
    """c0: weights are read, kernels launched."""
    prefill_token_s: float = 6.6e-5
    decoding_sequence_s: float = 8e-5
    kv_token_s: float = 3e-8
    attention_pair_s: float = 3e-9

    def seconds(self, work: StepWork) -> float:
        """How long a step with this work lasts on an engine of speed 1."""
        return (
            self.step_s
            + self.prefill_token_s * work.prefill_tokens
            + self.decoding_sequence_s * work.decoding_sequences
            + self.kv_token_s * work.kv_tokens_read
            + self.attention_pair_s * work.attention_pairs
        )

    def growth_seconds(self, decoding_sequences: int) -> float:
        """How much longer than one step the next is when all that changed is that these have one more token each."""
        return self.kv_token_s * decoding_sequences
