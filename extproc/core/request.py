"""What the router knows of a request: values only."""

import enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

MODEL_CHARS_MAX: Final = 256
"""A model's name is no longer: clients', agents' and tokenizer patterns' alike. Decisions and access logs repeat it."""

SUBSET_HOSTS_MAX: Final = 1024
"""Hosts that a request may be confined to."""
HOST_CHARS_MAX: Final = 64
"""An IPv6 address with brackets and port has 47."""

PROMPT_BLOCK_BYTES: Final = 256
"""About 64 tokens of text, and 64 token ids exactly: how finely the beginnings of prompts are told apart."""


PROMPT_BLOCK_TOKENS: Final = PROMPT_BLOCK_BYTES // 4
"""What a block is taken to have where its prompt is not at hand."""

NOWHERE: Final[tuple[str, ...]] = ()
"""The subset that has no host."""


class Endpoint(enum.Enum):
    """The inference API that a request uses."""

    CHAT = "chat.completions"
    COMPLETION = "completions"
    EMBEDDING = "embeddings"
    RESPONSE = "responses"


class Phase(enum.Enum):
    """Which part of the work dominates."""

    PREFILL_HEAVY = "prefill-heavy"
    DECODE = "decode"


class CountSource(enum.Enum):
    """How a prompt's tokens were found."""

    COUNTED = "counted"
    """By the tokenizer now, half of them at least; or given as token ids."""
    CACHED = "cached"
    """By the tokenizer, most of them for earlier requests."""
    ESTIMATED = "estimated"
    """From the size of the text."""


class TokenCount(Struct, frozen=True):
    """A prompt's tokens."""

    tokens: int
    exact: bool
    """Whether the engine counts the same: an inexact count never makes a request too long for a node."""
    source: CountSource = CountSource.COUNTED


class InferenceRequest(Struct, frozen=True):
    """One request, as far as routing cares."""

    request_id: str
    """Ours, unique in this process: what a client sends as an id may repeat."""
    model: str
    endpoint: Endpoint
    prompt: TokenCount
    output_tokens_max: int | None = None
    """What the client allows; `None`: it does not say."""
    prompt_blocks: tuple[int, ...] = ()
    """Hash chain over the prompt's blocks of `PROMPT_BLOCK_BYTES`: the n-th number stands for all of the prompt up to
    the end of its n-th block, and for the model. Equal numbers, equal beginnings. Empty for a batch of prompts."""
    sequences: int = 1
    """Answers to be made: prompts × `n`, a bounded number."""
    trace_id: str = ""
    """The `x-request-id` that Envoy set or passed on, cut to 128 characters; only to be shown."""
    priority: str = ""
    """Its class; empty or unknown: the default one."""
    tenant: str = ""
    """Among whom what waits is shared fairly, and whose quotas hold; empty: nobody was named."""
    body_bytes: int = 0
    model_fixed: bool = False
    """No other model may have it, because its body cannot be written anew."""
    subset: tuple[str, ...] | None = None
    """Hosts that it may go to, `ip:port`, or `ip` for all ports; sorted, each once, a bounded number. `None`: any."""
    token_blocks: tuple[int, ...] = ()
    """The same as `prompt_blocks` by exact tokens, as nodes tell them of their caches: one number for each 16 of them
    from the beginning on, see `extproc.kvchain`. Empty where the tokens are not known."""

    def for_model(self, model: str) -> "InferenceRequest":
        """The same request for another model, whose tokenizer did not count it.

        Its blocks are those of the same prompts that were sent to that model in this way before.
        """
        seed = xxh3_64_intdigest(model.encode())
        blocks = tuple(xxh3_64_intdigest(block.to_bytes(8, "little"), seed) for block in self.prompt_blocks)
        prompt = replace(self.prompt, exact=False)
        return replace(self, model=model, prompt=prompt, prompt_blocks=blocks, token_blocks=())

    def cached_tokens(self, blocks: int) -> int:
        """Prompt tokens in its first so many blocks, which are at most all that it has.

        The blocks are of bytes, so this takes tokens to be spread evenly over them and half a block to be left behind
        the last; a block of text has no more tokens than half its bytes, however long the prompt goes on behind.
        """
        return int(blocks * self.tokens_per_block)

    @property
    def tokens_per_block(self) -> float:
        """Of `prompt_blocks`, as `cached_tokens` takes them to be spread."""
        return min(self.prompt.tokens / (len(self.prompt_blocks) + 0.5), PROMPT_BLOCK_BYTES / 2)

    def uncached_tokens(self, cached_tokens: int, cache_trust: float) -> int:
        """Prompt tokens that a node has to compute, at least 1, if it has this share of those expected in its cache."""
        return max(1, self.prompt.tokens - int(cached_tokens * cache_trust))
