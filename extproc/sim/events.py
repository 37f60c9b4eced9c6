"""What goes into an engine and what comes out of it: values only."""

from collections.abc import Sequence
from dataclasses import dataclass

from extproc.sim.counters import FinishReason


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to compute. An API request with `n` answers is `n` of these."""

    request_id: str
    prompt_tokens: int
    """At least 1."""
    output_tokens: int
    """How long the answer will be; 0 for pooling (embeddings), which ends with its prefill."""
    finish: FinishReason = FinishReason.LENGTH
    """Why it will end."""
    block_keys: Sequence[int] = ()
    """One key for each full block of prompt and then output, as far as they may be shared; see `KvPool`.

    For blocks of the engine's `block_size_tokens`. Only sliced, iterated and measured: a `range` costs nothing.
    """


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token of an answer."""

    request_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Token:
    """A further token."""

    request_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete; follows its last token's event."""

    request_id: str
    at_s: float
    reason: FinishReason
    cached_tokens: int
    """Prompt tokens found in the prefix cache at its first admission."""


@dataclass(frozen=True, slots=True)
class Preempted:
    """The sequence lost its blocks and waits again; its tokens so far stay valid."""

    request_id: str
    at_s: float


Event = FirstToken | Token | Finished | Preempted
