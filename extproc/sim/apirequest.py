"""Bodies of the OpenAI API as an emulated engine reads them, and its refusals, worded as vLLM 0.32 words them."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, assert_never

import msgspec

from extproc.core.request import Endpoint
from extproc.sim import pseudotokens

SEQUENCES_MAX = 128
"""Sequences of one API request: prompts × `n`."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A body that can be served."""

    endpoint: Endpoint
    prompts: tuple[bytes, ...]
    """As pseudo-tokens. Completions and embeddings may bring several."""
    sequences: int
    """Answers to each prompt."""
    output_tokens_max: int | None
    stream: bool
    usage_in_stream: bool
    base64: bool
    """Embeddings as base64 instead of numbers."""


@dataclass(frozen=True, slots=True)
class ApiFault:
    """An error answer; `kind` is the body's `type`."""

    status: int
    kind: str
    message: str
    param: str | None = None


_Limit = Annotated[int, msgspec.Meta(ge=1)] | None
_Sequences = Annotated[int, msgspec.Meta(ge=1, le=SEQUENCES_MAX)] | None
_Content = str | list[dict[str, Any]] | None
_NO_TOOLS = msgspec.Raw(b"")


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Message(msgspec.Struct):
    role: str
    content: _Content = None


class _Chat(msgspec.Struct):
    messages: list[_Message]
    model: str | None = None
    tools: msgspec.Raw = _NO_TOOLS
    n: _Sequences = None
    max_tokens: _Limit = None
    max_completion_tokens: _Limit = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class _Completion(msgspec.Struct):
    prompt: str | list[str | int | list[int]]
    model: str | None = None
    n: _Sequences = None
    max_tokens: _Limit = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class _Embedding(msgspec.Struct):
    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: str | None = None


class _InputItem(msgspec.Struct):
    role: str = ""
    content: _Content = None


class _Response(msgspec.Struct):
    input: str | list[_InputItem]
    model: str | None = None
    instructions: str | None = None
    tools: msgspec.Raw = _NO_TOOLS
    max_output_tokens: _Limit = None
    stream: bool | None = None


def parse(endpoint: Endpoint, body: bytes, model: str, context_length_tokens: int) -> ApiRequest | ApiFault:
    """Read a body for an engine that serves this one model; a body that names none means that one."""
    try:
        asked, named = _read(endpoint, body)
    except msgspec.ValidationError as error:
        where = re.search(r" - at `\$\.?(.*?)`$", str(error))
        message = f"1 validation error:\n  {error}"
        return ApiFault(400, "Bad Request", message, f"body.{where[1]}" if where and where[1] else "body")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        where = re.search(r"\(byte (\d+)\)", str(error))
        at = f"body.{where[1] if where else 0}"
        detail = {"type": "json_invalid", "loc": at, "msg": "JSON decode error", "ctx": {"error": str(error)}}
        return ApiFault(400, "Bad Request", f"1 validation error:\n  {detail}", at)
    if named is not None and named != model:
        message = f"The model `{named[:256]}` does not exist. Valid aliases: {model}."
        return ApiFault(404, "NotFoundError", message, "model")
    if not 1 <= len(asked.prompts) * asked.sequences <= SEQUENCES_MAX:
        return ApiFault(400, "BadRequestError", f"prompts × n must be between 1 and {SEQUENCES_MAX}.", "n")
    for prompt in asked.prompts:
        fault = _length_fault(asked, pseudotokens.count(prompt), context_length_tokens)
        if fault is not None:
            return fault
    return asked


def _length_fault(asked: ApiRequest, prompt_tokens: int, context_length_tokens: int) -> ApiFault | None:
    output_tokens_min = 0 if asked.endpoint is Endpoint.EMBEDDING else 1
    if prompt_tokens + output_tokens_min > context_length_tokens:
        # vLLM stops counting there.
        at_least = context_length_tokens + 1
        return ApiFault(
            400,
            "BadRequestError",
            f"This model's maximum context length is {context_length_tokens} tokens. However, your prompt contains at "
            f"least {at_least} input tokens, which exceeds this limit even without any output tokens. Please reduce "
            f"the length of the input prompt. (parameter=input_tokens, value={at_least})",
            "input_tokens",
        )
    wanted = asked.output_tokens_max
    if wanted is not None and prompt_tokens + wanted > context_length_tokens:
        return ApiFault(
            400,
            "BadRequestError",
            f"This model's maximum context length is {context_length_tokens} tokens. However, you requested {wanted} "
            f"output tokens and your prompt contains {prompt_tokens} input tokens. Please reduce the length of the "
            f"input prompt or the number of requested output tokens. (parameter=max_tokens, value={wanted})",
            "max_tokens",
        )
    return None


def _read(endpoint: Endpoint, body: bytes) -> tuple[ApiRequest, str | None]:
    match endpoint:
        case Endpoint.CHAT:
            chat = msgspec.json.decode(body, type=_Chat)
            prompt = pseudotokens.piece(bytes(chat.tools).decode()) + _rendered(chat.messages)
            output_tokens_max = chat.max_completion_tokens or chat.max_tokens
            usage = chat.stream_options is not None and bool(chat.stream_options.include_usage)
            asked = ApiRequest(endpoint, (prompt,), chat.n or 1, output_tokens_max, bool(chat.stream), usage, False)
            return asked, chat.model
        case Endpoint.COMPLETION:
            plain = msgspec.json.decode(body, type=_Completion)
            usage = plain.stream_options is not None and bool(plain.stream_options.include_usage)
            prompts = _prompts(plain.prompt)
            # The API's own default; unlike chat, which may use all the context.
            output_tokens_max = plain.max_tokens or 16
            asked = ApiRequest(endpoint, prompts, plain.n or 1, output_tokens_max, bool(plain.stream), usage, False)
            return asked, plain.model
        case Endpoint.EMBEDDING:
            embedding = msgspec.json.decode(body, type=_Embedding)
            base64 = embedding.encoding_format == "base64"
            return ApiRequest(endpoint, _prompts(embedding.input), 1, None, False, False, base64), embedding.model
        case Endpoint.RESPONSE:
            response = msgspec.json.decode(body, type=_Response)
            items = [_InputItem("user", response.input)] if isinstance(response.input, str) else response.input
            before = bytes(response.tools).decode() + (response.instructions or "")
            prompt = pseudotokens.piece(before) + _rendered(items)
            asked = ApiRequest(endpoint, (prompt,), 1, response.max_output_tokens, bool(response.stream), True, False)
            return asked, response.model
        case _:
            assert_never(endpoint)


def _rendered(messages: list[_Message] | list[_InputItem]) -> bytes:
    """A conversation as one prompt that ends where the answer begins."""
    pieces = []
    for message in messages:
        pieces.append(pseudotokens.piece(f"<{message.role}>"))
        if isinstance(message.content, str):
            pieces.append(pseudotokens.piece(message.content))
        for part in message.content if isinstance(message.content, list) else ():
            text = part.get("text")
            encoded = (
                pseudotokens.piece(text) if isinstance(text, str) else pseudotokens.media(msgspec.json.encode(part))
            )
            pieces.append(encoded)
    pieces.append(pseudotokens.piece("<assistant>"))
    return b"".join(pieces)


def _prompts(given: str | list[str | int | list[int]]) -> tuple[bytes, ...]:
    if isinstance(given, str):
        return (pseudotokens.piece(given),)
    ids = [one for one in given if isinstance(one, int)]
    if ids and len(ids) == len(given):
        return (pseudotokens.token_ids(ids),)
    prompts = []
    for one in given:
        if isinstance(one, str):
            prompts.append(pseudotokens.piece(one))
        else:
            prompts.append(pseudotokens.token_ids([one] if isinstance(one, int) else one))
    return tuple(prompts)
