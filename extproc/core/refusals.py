"""Why a request is refused, in words for its client."""

from collections.abc import Sequence
from math import ceil

from extproc.core.decision import Refusal, Refused
from extproc.core.filters import context_length_tokens, tokens_at_least
from extproc.core.quotas import Exceeded
from extproc.core.request import InferenceRequest
from extproc.core.settings import BalancerSettings
from extproc.core.snapshot import NodeView


def model_not_found(model: str) -> Refused:
    """No node lists it, and all lists are known."""
    return Refused(Refusal.MODEL_NOT_FOUND, f"The model `{model}` does not exist: no node serves it.")


def model_left(model: str, settings: BalancerSettings) -> Refused:
    """Its last node has left a while ago at most."""
    message = f"Every node that served the model `{model}` has left. Retry later."
    return Refused(Refusal.NO_READY_NODE, message, settings.retry_after_s)


def not_in_subset(settings: BalancerSettings) -> Refused:
    """None of the hosts that it may go to is a member that serves the model."""
    message = "None of the nodes that this request may go to is there. Retry later."
    return Refused(Refusal.NO_READY_NODE, message, settings.retry_after_s)


def no_ready_node(known: int, settings: BalancerSettings) -> Refused:
    """So many nodes would serve it, and none does now."""
    message = f"No node is ready: {known} known, all loading or draining. Retry later."
    return Refused(Refusal.NO_READY_NODE, message, settings.retry_after_s)


def context_length_exceeded(request: InferenceRequest, able: Sequence[NodeView]) -> Refused:
    """All nodes that serve the model tell its context length, and it is too short."""
    lengths = [context_length_tokens(node, request.model) for node in able]
    longest = max(length for length in lengths if length is not None)
    return Refused(
        Refusal.CONTEXT_LENGTH_EXCEEDED,
        f"The model `{request.model}` takes at most {longest} tokens, prompt and output together; "
        f"this request wants {tokens_at_least(request)}.",
    )


def overloaded(request: InferenceRequest, why: str, room_in_s: float, settings: BalancerSettings) -> Refused:
    """It cannot go now; by what is known there is room in so many seconds."""
    retry_after_s = min(max(ceil(room_in_s), settings.retry_after_s), settings.retry_after_max_s)
    message = f"The model `{request.model}` is overloaded: {why}. Retry in {retry_after_s} s."
    return Refused(Refusal.OVERLOADED, message, retry_after_s)


def rate_limited(exceeded: Exceeded) -> Refused:
    """Its tenant has used what it may."""
    return Refused(Refusal.RATE_LIMIT_EXCEEDED, exceeded.message, exceeded.retry_after_s, exceeded.headers)


def turned_away(request: InferenceRequest, why: str, now: Refused | None, settings: BalancerSettings) -> Refused:
    """It waited in vain. `now` is the refusal of one like it that would come now, if it were refused at all."""
    if now is not None and now.refusal is Refusal.NO_READY_NODE:
        return now
    return overloaded(request, why, 0.0 if now is None else now.retry_after_s or 0.0, settings)
