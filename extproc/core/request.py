"""What the router knows of a request: values only."""

import enum
from typing import Final

from msgspec import Struct

MODEL_CHARS_MAX: Final = 256
"""A model's name is no longer: clients', agents' and tokenizer patterns' alike. Decisions and access logs repeat it."""


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


class Prompt(Struct, frozen=True):
    """What has to be counted of a body. Texts are counted one by one and summed."""

    texts: tuple[str, ...] = ()
    token_ids: int = 0
    """Prompts given as token ids count as they are."""
    messages: int = 0
    """Chat messages: each costs a few control tokens that stand in no text."""
    media_parts: int = 0
    """Image, audio and file parts: their tokens cannot be counted from the body."""


class TokenCount(Struct, frozen=True):
    """A prompt's tokens."""

    tokens: int
    exact: bool
    """False for estimates: an estimate never makes a request too long for a node."""


class InferenceRequest(Struct, frozen=True):
    """One request, as far as routing cares."""

    request_id: str
    """Ours, unique in this process: what a client sends as an id may repeat."""
    model: str
    endpoint: Endpoint
    prompt: TokenCount
    output_tokens_max: int | None = None
    """What the client allows; `None`: it does not say."""
    sequences: int = 1
    """Answers to be made: prompts × `n`, a bounded number."""
    trace_id: str = ""
    """The `x-request-id` that Envoy set or passed on, cut to 128 characters; only to be shown."""

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that the node has to compute. None is known to be cached without a prefix index."""
        return self.prompt.tokens
