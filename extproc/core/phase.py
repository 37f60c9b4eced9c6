"""Prefill-heavy or decode: which part of a request's work dominates."""

from extproc.core.request import Endpoint, InferenceRequest, Phase


def classify(
    uncached_tokens: float, output_tokens: float, prefill_tokens_per_s: float, decode_s_per_token: float
) -> Phase:
    """Compare the expected time of both parts; the longer one names the phase, a tie is decode.

    prefill time = uncached prompt tokens / prefill rate
    decode time  = expected output tokens × seconds per token

    The sequences of one request (`n`) decode side by side, so they do not lengthen it.
    """
    prefill_s = uncached_tokens / prefill_tokens_per_s
    return Phase.PREFILL_HEAVY if prefill_s > output_tokens * decode_s_per_token else Phase.DECODE


def expected_output_tokens(request: InferenceRequest, mean_tokens: float) -> int:
    """Length of one answer as far as it can be told beforehand: the model's mean, capped by what the request allows.

    Embeddings have none.
    """
    if request.endpoint is Endpoint.EMBEDDING:
        return 0
    expected = round(mean_tokens)
    return expected if request.output_tokens_max is None else min(expected, request.output_tokens_max)
