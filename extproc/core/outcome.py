"""How a request ended: values only."""

import enum

from msgspec import Struct


class Ending(enum.Enum):
    """What an answer says of its node."""

    SERVED = "served"
    """The node answered, whatever it said below 500."""
    ERROR = "error"
    """500 or another 5xx of the node's own, or no answer in time: it may be the request's fault."""
    UNREACHABLE = "unreachable"
    """502, 503, or no answer: refused, reset."""
    UNTOLD = "untold"
    """The client left, or nothing is known: proves nothing."""


class Answered(Struct, frozen=True):
    """How a request fared, as the head of its answer or Envoy's access log tells it."""

    request_id: str
    ending: Ending
    host: str | None = None
    """Who served or was tried last, as `ip:port`; `None`: the node that was chosen."""
    model: str | None = None
    output_tokens: int | None = None
    """Of one answer on the average, by the engine's own count."""
    over: bool = True
    """False: only the head of the answer has come."""
    used_tokens: int | None = None
    """Of prompt and all answers, by the engine's own count."""
    at_s: float | None = None
    """When the node fared so, where that is told later, by the balancer's clock; `None`: now."""
