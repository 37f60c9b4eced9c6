"""Prefill-heavy or decode: which part of a request's work dominates."""

from extproc.core.request import Endpoint, InferenceRequest, Phase
from extproc.core.settings import ExpectedRates


def classify(request: InferenceRequest, rates: ExpectedRates) -> Phase:
    """Compare the expected time of both parts; the longer one names the phase, a tie is decode.

    prefill time = uncached prompt tokens / prefill rate
    decode time  = expected output tokens × seconds per token

    The expected output is the configured mean, capped by what the request allows; embeddings have none.
    The sequences of one request (`n`) decode side by side, so they do not lengthen it.
    """
    prefill_s = request.uncached_tokens / rates.prefill_tokens_per_s
    decode_s = expected_output_tokens(request, rates) * rates.decode_s_per_token
    return Phase.PREFILL_HEAVY if prefill_s > decode_s else Phase.DECODE


def expected_output_tokens(request: InferenceRequest, rates: ExpectedRates) -> int:
    """Length of one answer as far as it can be told beforehand."""
    if request.endpoint is Endpoint.EMBEDDING:
        return 0
    if request.output_tokens_max is None:
        return rates.output_tokens
    return min(rates.output_tokens, request.output_tokens_max)
