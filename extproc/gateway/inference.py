"""From a request's head and what is shown of its body to an `InferenceRequest`.

| what is shown | what is known |
|---|---|
| all of the body | what it says |
| its beginning | what stands there, as the model, limits and the first texts; of the rest the size, where announced |
| the head alone | the model, by a header that the policy names, and the size |
"""

import json
from collections.abc import Container
from typing import Final

from msgspec.structs import replace
from pydantic_core import from_json

from extproc.core.policy import RoutingPolicy
from extproc.core.request import MODEL_CHARS_MAX, Endpoint, InferenceRequest
from extproc.gateway import openai
from extproc.gateway.conversation import BodyMode, RequestHeaders
from extproc.gateway.openai import BodyFault, ParsedBody
from extproc.prompt import CountedPrompt, Prompt

PART_BYTES_MAX: Final = 256 * 1024
"""Of a part so much is read: it is built as Python's values and written anew, on the event loop, within some 10 ms."""
_NUMBERS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n")
"""Fields of which the first digits say something else."""


def of_head(endpoint: Endpoint, head: RequestHeaders, policy: RoutingPolicy) -> ParsedBody | None:
    """What is known of a request whose body is not shown; `None`: not even its model."""
    model = named_model(head, policy)
    if model is None:
        return None
    return ParsedBody(
        endpoint=endpoint,
        model=model,
        prompt=Prompt(unread_bytes=head.content_length or 0),
        output_tokens_max=0 if endpoint is Endpoint.EMBEDDING else None,
        output_field=None,
        sequences=1,
        length_binds=False,
    )


def of_body(
    endpoint: Endpoint, head: RequestHeaders, policy: RoutingPolicy, body: bytes, items_max: int, *, ended: bool
) -> ParsedBody | BodyFault | None:
    """What is known of a request once all of its body has come that will be shown: `ended`, it was said, or not.

    `None`: the body goes on, and what of it came does not tell the model.
    """
    if head.mode is BodyMode.PARTIAL and not ended and head.content_length != len(body):
        return of_part(endpoint, head, policy, body, items_max)
    return openai.parse(endpoint, body, items_max)


def of_part(
    endpoint: Endpoint, head: RequestHeaders, policy: RoutingPolicy, part: bytes, items_max: int
) -> ParsedBody | None:
    """What is known of a request whose body goes on after this; `None`: not its model, or the part cannot be read.

    Nothing is refused here: what is wrong with a body that is not known whole is the engine's to say. The field in
    which the part ends is not heard where a piece of it is no value of its own: of a prompt it is.
    """
    length = head.content_length or len(part)
    part = part[:PART_BYTES_MAX]
    if openai.items_of(part) > items_max // openai.LENIENT_COST:
        return of_head(endpoint, head, policy)
    try:
        fields = from_json(part, allow_partial="trailing-strings")
        told = from_json(part, allow_partial=True)  # without the text in which it ends
    except (ValueError, RecursionError):
        return of_head(endpoint, head, policy)
    if not isinstance(fields, dict):
        return of_head(endpoint, head, policy)
    last = next(reversed(fields), None)
    if last in _NUMBERS:
        del fields[last]
    fields["model"] = told.get("model", named_model(head, policy))
    if endpoint is Endpoint.CHAT:
        fields.setdefault("messages", [])
    written = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
    parsed = openai.parse(endpoint, written, items_max)
    if isinstance(parsed, BodyFault):
        return of_head(endpoint, head, policy)
    unread_bytes = max(0, length - len(part))
    return replace(parsed, prompt=replace(parsed.prompt, unread_bytes=unread_bytes, as_usual=False), length_binds=False)


def named_model(head: RequestHeaders, policy: RoutingPolicy) -> str | None:
    """The model that the policy's header names, if it can be one's name."""
    model = head.named.get(policy.model_header or "") or ""
    return model if 0 < len(model) <= MODEL_CHARS_MAX and model.isprintable() else None


def request_of(
    request_id: str,
    head: RequestHeaders,
    policy: RoutingPolicy,
    classes: Container[str],
    parsed: ParsedBody,
    model: str,
    counted: CountedPrompt,
    *,
    body_bytes: int,
    model_fixed: bool,
) -> InferenceRequest:
    """The request for a model, once its prompt is counted; see `InferenceRequest` for what is told.

    `classes` are the priority classes that there are: a header that names none of them is not heard.
    """
    count = counted.count
    named = head.named.get(policy.priority_header or "")
    return InferenceRequest(
        request_id=request_id,
        model=model,
        endpoint=parsed.endpoint,
        prompt=replace(count, exact=False) if count.exact and not parsed.length_binds else count,
        prompt_blocks=counted.blocks,
        token_blocks=counted.token_blocks,
        output_tokens_max=parsed.output_tokens_max,
        sequences=parsed.sequences,
        trace_id=head.trace_id,
        priority=named if named is not None and named in classes else policy.priority or "",
        tenant=head.tenant_claim or head.named.get(policy.tenant_header or "") or "",
        body_bytes=body_bytes,
        model_fixed=model_fixed,
        subset=head.subset,
    )
