"""What we answer clients ourselves, and what access logs are told of a request."""

from extproc.core.decision import Chosen, Decision, Refusal
from extproc.core.request import TokenCount
from extproc.gateway import openai
from extproc.gateway.conversation import Metadata, Respond

INVALID = "invalid_request"
TOO_LARGE = "request_too_large"
POLICY_FAULT = "policy_error"
POLICY_FAULT_KEY = "x-extproc-policy-error"
"""Of the dynamic metadata: what was wrong with the policy that was asked for."""
OVERLOADED = Refusal.OVERLOADED.value
RATE_LIMITED = Refusal.RATE_LIMIT_EXCEEDED.value

_ERRORS = {
    OVERLOADED: (429, "rate_limit_error"),
    RATE_LIMITED: (429, "rate_limit_error"),
    Refusal.NO_READY_NODE.value: (503, "server_error"),
    Refusal.MODEL_NOT_FOUND.value: (404, "invalid_request_error"),
    Refusal.CONTEXT_LENGTH_EXCEEDED.value: (400, "invalid_request_error"),
    INVALID: (400, "invalid_request_error"),
    TOO_LARGE: (413, "invalid_request_error"),
    POLICY_FAULT: (500, "server_error"),
}
"""Status and type of each code that an error body can carry."""


def error(
    code: str,
    message: str,
    param: str | None,
    retry_after_s: int | None,
    metadata: Metadata,
    headers: tuple[tuple[str, str], ...] = (),
) -> Respond:
    """An answer in the shape that OpenAI's clients know; `headers` are further ones, as `x-ratelimit-*`."""
    status, kind = _ERRORS[code]
    own = [("content-type", "application/json")]
    if retry_after_s is not None:
        own.append(("retry-after", str(retry_after_s)))
    return Respond(
        status=status,
        code=code,
        body=openai.error_body(message, kind, code, param),
        headers=(*own, *headers),
        metadata=metadata,
    )


def longest_field(body: openai.ParsedBody, prompt: TokenCount) -> str:
    """The field that takes most of the context: the prompt, or the limit of the answer where that is more.

    Of the prompt counts what is surely there, as where the context is found too short for both.
    """
    prompt_tokens = prompt.tokens if prompt.exact else 0
    if body.output_field is not None and (body.output_tokens_max or 0) > prompt_tokens:
        return body.output_field
    return openai.PROMPT_FIELD[body.endpoint]


def field_of(refusal: Refusal, longest: str | None) -> str | None:
    """The field of the body that a refusal is about; `longest` is the one of `longest_field`."""
    match refusal:
        case Refusal.MODEL_NOT_FOUND:
            return "model"
        case Refusal.CONTEXT_LENGTH_EXCEEDED:
            return longest
        case _:
            return None


def metadata_of(
    request_id: str,
    outcome: str,
    reason: str,
    policy: str,
    policy_fault: str | None,
    decision: Decision | None,
    sequences: int | None,
    priority: str | None = None,
    queued_ms: int | None = None,
    model_asked: str | None = None,
    shown: str | None = None,
    arm: str | None = None,
) -> dict[str, str | int | bool]:
    """What access logs shall show, and what `accesslog` knows the request by; what is not known is absent.

    `priority` is the class's name, `queued_ms` how long the request waited for room, `model_asked` what the client
    asked for where it got another, `shown` what was read of a request that was not shown whole, `arm` the one of the
    canary where there is one. No tenant: who asks is personal, and Envoy has the header or the claim.
    """
    metadata: dict[str, str | int | bool] = {
        "request_id": request_id,
        "outcome": outcome,
        "reason": reason,
        "policy": policy,
    }
    if policy_fault is not None:
        metadata[POLICY_FAULT_KEY] = policy_fault
    if priority is not None:
        metadata["priority"] = priority
    if queued_ms is not None:
        metadata["queued_ms"] = queued_ms
    if model_asked is not None:
        metadata["model_asked"] = model_asked
    if shown is not None:
        metadata["shown"] = shown
    if decision is None:
        return metadata
    if arm:
        metadata["arm"] = arm
    metadata["strategy"] = decision.strategy
    if decision.model is not None:
        metadata["model"] = decision.model
    if decision.phase is not None:
        metadata["phase"] = decision.phase.value
    if decision.prompt_tokens is not None:
        metadata["tokens"] = decision.prompt_tokens
        metadata["tokens_exact"] = decision.tokens_exact
    if sequences is not None:
        metadata["sequences"] = sequences
    if decision.tokens_source is not None:
        metadata["tokens_source"] = decision.tokens_source.value
    if isinstance(decision.outcome, Chosen):
        metadata["node"] = decision.outcome.node_id
        metadata["host"] = decision.outcome.host
    return metadata
