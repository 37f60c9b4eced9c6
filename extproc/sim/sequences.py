"""From an API request to the sequences an engine computes: how long each answer is and what it says."""

from dataclasses import dataclass

from extproc.core.request import Endpoint
from extproc.sim import pseudotokens
from extproc.sim.apianswer import Choice
from extproc.sim.apirequest import ApiRequest
from extproc.sim.counters import FinishReason
from extproc.sim.events import Request

_UNASKED_OUTPUT_TOKENS = range(32, 512)
"""Lengths of answers to requests that set no limit."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """One answer to come: what the engine computes, what the client reads."""

    request: Request
    choice: Choice


def sequences_of(
    asked: ApiRequest, request_id: str, context_length_tokens: int, output_tokens_max: int
) -> list[Sequence]:
    """One for each answer to each prompt, ids derived from the request's.

    A request's own limit is its answer's length, as if the end of text were ignored; without one the prompt decides.
    """
    sequences: list[Sequence] = []
    for prompt in asked.prompts:
        prompt_tokens = pseudotokens.count(prompt)
        prompt_keys = pseudotokens.block_keys(prompt)
        longest = min(output_tokens_max, context_length_tokens - prompt_tokens)
        for index in range(asked.sequences):
            seed = pseudotokens.seed(prompt, index)
            length, finish = _length(asked, longest, seed)
            pieces = pseudotokens.answer(seed, length)
            # The next turn of a conversation shares the answer too; of several answers none is the next turn.
            keys = prompt_keys if asked.sequences > 1 else pseudotokens.block_keys(prompt + b"".join(pieces))
            request = Request(f"{request_id}-{len(sequences)}", prompt_tokens, length, finish, keys)
            sequences.append(Sequence(request, Choice(seed, pieces, finish)))
    return sequences


def _length(asked: ApiRequest, longest: int, seed: int) -> tuple[int, FinishReason]:
    if asked.endpoint is Endpoint.EMBEDDING:
        return 0, FinishReason.STOP
    wanted = asked.output_tokens_max
    if wanted is not None:
        return (wanted, FinishReason.LENGTH) if wanted <= longest else (longest, FinishReason.STOP)
    own = _UNASKED_OUTPUT_TOKENS[seed % len(_UNASKED_OUTPUT_TOKENS)]
    return (own, FinishReason.STOP) if own <= longest else (longest, FinishReason.LENGTH)
