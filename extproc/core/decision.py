"""What the router answers: values only."""

import enum
from typing import NamedTuple

from msgspec import Struct

from extproc.core.request import CountSource, Phase

OBSERVED = "observed"
"""The arm of decisions that Envoy is not told."""


class Refusal(enum.Enum):
    """Why a request is refused. The value is the `code` of the error body."""

    OVERLOADED = "overloaded"
    NO_READY_NODE = "no_ready_node"
    MODEL_NOT_FOUND = "model_not_found"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"


class Chosen(Struct, frozen=True):
    """Envoy shall send the request to this node."""

    node_id: str
    host: str
    reason: str
    """For people, one short phrase: why this node."""
    fallback: bool = False
    """True: weighted round robin, because no fresh snapshot could be trusted, nothing was known of the request, or it
    is of the canary's control arm."""
    others: tuple[str, ...] = ()
    """Hosts that may serve it instead, best first; only where the policy's destination is a list."""


class Refused(Struct, frozen=True):
    """No node may take the request."""

    refusal: Refusal
    message: str
    """For the client: what was wanted and what is there."""
    retry_after_s: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers of the answer: how much of a quota is left."""


class Queued(Struct, frozen=True):
    """It cannot go now and may wait: `Balancer.admit` answers it, at `until_s` at the latest."""

    reason: str
    until_s: float


class Unknown(Struct, frozen=True):
    """We cannot tell: the request continues without a destination and Envoy's static cluster serves it."""

    reason: str


Outcome = Chosen | Refused | Unknown | Queued


class Candidate(NamedTuple):
    """How one node fared in a decision. (A tuple, because each decision makes several.)"""

    node_id: str
    cost: float | None = None
    """The strategy's cost, lower is better; `None`: it was not scored."""
    excluded: str | None = None
    """Why it was passed over; `None`: it was chosen, or stands behind the chosen one."""


class Decision(Struct, frozen=True):
    """One choice and what it rested on, as /decisions and access logs show it."""

    request_id: str
    trace_id: str
    at_s: float
    model: str | None
    """`None` where no body was read: the path is not an inference path."""
    prompt_tokens: int | None
    tokens_exact: bool
    tokens_source: CountSource | None
    """How they were found."""
    phase: Phase | None
    uncached_tokens: int | None
    """Prompt tokens that the chosen node has to compute; `None` where costs did not choose."""
    policy: str
    strategy: str
    outcome: Outcome
    candidates: tuple[Candidate, ...]
    """The best few, best first; a bounded number."""
    priority: str = ""
    """Its class."""
    queued_s: float = 0.0
    """How long it has waited for room."""
    arm: str = ""
    """`strategy`, or `control` for those that the policy's canary leaves to the round robin; `observed`: Envoy was told
    nothing; empty: it was not inspected."""
