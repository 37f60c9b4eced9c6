"""OpenAI's API as far as routing cares: request body → what has to be counted, refusal → error body.

Only the fields below are read, and of those only what is needed: what else an engine dislikes is the engine's to say.
A field that is `null` is absent. Python's own JSON reader, which engines use, takes more than JSON: lone surrogates,
NaN, UTF-16, a byte order mark. Such a body is read by it and written anew before it counts as no JSON.
"""

import json
import re
from typing import Final, assert_never

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from extproc.core.request import MODEL_CHARS_MAX, Endpoint
from extproc.gateway.prompts import Prompts, conversation, flag, given, items_as_messages
from extproc.prompt import Chat, Message, Prompt, is_null

WHOLE_MAX: Final = 1_000_000_000
"""Token limits and sequences over this read as this: no node has such a context, and sums stay small."""
LENIENT_COST: Final = 8
"""So many times longer an item takes Python's reader, which may be needed twice."""
_INT_DIGITS_MAX: Final = 20
"""Longer integers are not read: Python takes quadratic time for them, and none that matters is long."""
SEQUENCES_MAX: Final = 128
"""More answers than this weigh as this, or one request could make a node look full; OpenAI allows no more."""


class ParsedBody(Struct, frozen=True):
    """What routing needs of a body."""

    endpoint: Endpoint
    model: str
    prompt: Prompt
    output_tokens_max: int | None
    output_field: str | None
    """The body's own name for that limit; `None`: it has none."""
    sequences: int
    """Of all prompts together: an engine runs each prompt of a batch `n` times."""
    length_binds: bool
    """False: the tokens may exceed a node's context length, as a batch of prompts or one that the engine truncates."""


class BodyFault(Struct, frozen=True):
    """Why a body cannot be routed."""

    message: str
    param: str | None
    """The field, as `messages[2].content`; `None`: the body as a whole."""


_Limit = int | float | str | None
"""Engines take 10, 10.0 and "10"."""


class _Body(Struct):
    model: str | None = None
    n: _Limit = None
    tools: Raw = Raw()
    tool_choice: Raw = Raw()
    truncate_prompt_tokens: Raw = Raw()
    """vLLM's."""
    truncation: Raw = Raw()
    """The responses API's."""
    max_tokens: _Limit = None
    add_special_tokens: Raw = Raw()
    """This and what follows are vLLM's, of chats: how the template is used."""
    add_generation_prompt: Raw = Raw()
    continue_final_message: Raw = Raw()
    documents: Raw = Raw()
    chat_template: Raw = Raw()
    chat_template_kwargs: Raw = Raw()
    reasoning_effort: Raw = Raw()


class _Chat(_Body):
    messages: list[Message] | None = None
    max_completion_tokens: _Limit = None


class _Completion(_Body):
    prompt: Prompts = None


class _Embedding(_Body):
    input: Prompts = None
    messages: list[Message] | None = None
    """vLLM embeds conversations too."""


class _Response(_Body):
    input: str | list[str | Message] | None = None
    instructions: str | None = None
    max_output_tokens: _Limit = None


_AnyBody = _Chat | _Completion | _Embedding | _Response

_DECODERS: Final[dict[Endpoint, msgspec.json.Decoder[_AnyBody]]] = {
    Endpoint.CHAT: msgspec.json.Decoder(_Chat),
    Endpoint.COMPLETION: msgspec.json.Decoder(_Completion),
    Endpoint.EMBEDDING: msgspec.json.Decoder(_Embedding),
    Endpoint.RESPONSE: msgspec.json.Decoder(_Response),
}
_ENDPOINTS: Final = {
    "chat/completions": Endpoint.CHAT,
    "completions": Endpoint.COMPLETION,
    "embeddings": Endpoint.EMBEDDING,
    "responses": Endpoint.RESPONSE,
}
PROMPT_FIELD: Final = {
    Endpoint.CHAT: "messages",
    Endpoint.COMPLETION: "prompt",
    Endpoint.EMBEDDING: "input",
    Endpoint.RESPONSE: "input",
}
"""Where each endpoint's prompt stands."""

_FREE_CHOICES: Final = (b"", b"null", b'"auto"', b'"required"')
"""Values of `tool_choice` with which all tools stand in the prompt."""

_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens", "n")
"""Of the first three, the first one given holds."""


_EXPECTED = re.compile(r"(?P<wanted>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)


def endpoint_of(method: str, path: str) -> Endpoint | None:
    """The inference API that a request uses, whatever stands before `/v1/`; `None`: another path, or no POST."""
    if method != "POST":
        return None
    _, v1, rest = path.partition("?")[0].rpartition("/v1/")
    return _ENDPOINTS.get(rest) if v1 else None


def parse(endpoint: Endpoint, body: bytes, items_max: int) -> ParsedBody | BodyFault:
    """What routing needs of a body, or why it cannot be had. Raises for no input.

    `items_max` bounds the body's items (see `items_of`): so many values may have to be built on the event loop, which
    waits for up to 0.8 µs for each.
    """
    if len(body) > items_max and items_of(body) > items_max:
        return _too_many(items_max)
    try:
        fields = _decode(endpoint, body, items_max // LENIENT_COST)
    except msgspec.ValidationError as error:
        return _fault_of(error)
    except (ValueError, RecursionError):
        return BodyFault("The request body is not valid JSON, or is nested too deeply.", None)
    if fields is None:
        return _too_many(items_max // LENIENT_COST)
    if not fields.model:
        return BodyFault("model: wanted the name of a model, got nothing", "model")
    if len(fields.model) > MODEL_CHARS_MAX:
        return BodyFault(f"model: wanted at most {MODEL_CHARS_MAX} characters, got {len(fields.model)}", "model")
    if not fields.model.isprintable():
        # It stands in reasons, and Envoy may copy those into headers: a line break there would split the response.
        return BodyFault(f"model: wanted printable characters, got {fields.model!r:.80}", "model")
    if isinstance(fields, _Chat) and fields.messages is None:
        return BodyFault("messages: wanted an array, got nothing", "messages")
    limits: dict[str, int] = {}
    for name in _LIMITS:
        value: _Limit = getattr(fields, name, None)
        if value is not None:
            whole = _whole(value)
            if whole is None:
                return BodyFault(f"{name}: wanted a whole number, got {value!r:.40}", name)
            limits[name] = whole
    return _parsed(endpoint, fields, limits)


def items_of(body: bytes) -> int:
    """About how many values a body has that cost something: its opening brackets, braces and a quarter of its commas.

    Those in texts count too. Commas weigh less, for numbers are cheap: a batch of embeddings has a million of them.
    """
    return body.count(b"[") + body.count(b"{") + body.count(b",") // 4


def error_body(message: str, kind: str, code: str, param: str | None = None) -> bytes:
    """An error as OpenAI's clients expect it."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def _parsed(endpoint: Endpoint, fields: _AnyBody, limits: dict[str, int]) -> ParsedBody:
    prompt, embeds = _prompt(fields), endpoint is Endpoint.EMBEDDING
    # llama.cpp: -1 is no limit
    allowed = None if embeds else next((name for name in _LIMITS[:3] if limits.get(name, -1) >= 0), None)
    truncates = not (is_null(fields.truncate_prompt_tokens) and is_null(fields.truncation))
    return ParsedBody(
        endpoint=endpoint,
        model=fields.model or "",
        prompt=prompt,
        output_tokens_max=0 if embeds else None if allowed is None else limits[allowed],
        output_field=allowed,
        sequences=min(prompt.prompts * max(1, limits.get("n", 1)), SEQUENCES_MAX),
        length_binds=prompt.prompts == 1 and not truncates,
    )


def _prompt(fields: _AnyBody) -> Prompt:
    match fields:
        case _Chat():
            return conversation(_chat(fields, tuple(fields.messages or ()), generates=True))
        case _Completion():
            return _given(fields, fields.prompt)
        case _Embedding() if fields.messages is None:
            return _given(fields, fields.input)
        case _Embedding():
            return conversation(_chat(fields, tuple(fields.messages or ()), generates=False))
        case _Response():
            items = items_as_messages(fields.instructions, fields.input)
            return conversation(_chat(fields, items, generates=True, as_usual=False))
        case _:
            assert_never(fields)


def _given(fields: _AnyBody, prompts: Prompts) -> Prompt:
    prompt = given(prompts, add_special_tokens=flag(fields.add_special_tokens, True))
    return prompt if _are_flags(fields.add_special_tokens) else replace(prompt, as_usual=False)


def _are_flags(*raws: Raw) -> bool:
    """Whether each is true, false or absent; engines make something of 0 and "off" too."""
    return all(bytes(raw) in (b"", b"null", b"true", b"false") for raw in raws)


def _chat(fields: _AnyBody, messages: tuple[Message, ...], *, generates: bool, as_usual: bool = True) -> Chat:
    # Engines differ in which tools stand in the prompt where the choice is not free, in what effort means to it, and in
    # whether they have documents.
    unusual = (
        not is_null(fields.chat_template)
        or not is_null(fields.reasoning_effort)
        or not is_null(fields.documents)
        or not _are_flags(fields.add_generation_prompt, fields.continue_final_message, fields.add_special_tokens)
        or not (is_null(fields.tools) or bytes(fields.tool_choice) in _FREE_CHOICES)
    )
    return Chat(
        messages,
        tools=fields.tools,
        documents=fields.documents,
        template_kwargs=fields.chat_template_kwargs,
        add_generation_prompt=flag(fields.add_generation_prompt, generates),
        continue_final_message=flag(fields.continue_final_message, False),
        add_special_tokens=flag(fields.add_special_tokens, False),
        as_usual=as_usual and not unusual,
    )


def _too_many(items_max: int) -> BodyFault:
    what = "brackets, braces, a quarter of commas"
    return BodyFault(f"The request body has more than {items_max} items: {what}.", None)


def _decode(endpoint: Endpoint, body: bytes, lenient_items_max: int) -> _AnyBody | None:
    """`None`: it would have to be read by Python's reader, and has too many items for that."""
    decoder = _DECODERS[endpoint]
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if items_of(body) > lenient_items_max:
            return None
        lenient = json.loads(body, parse_constant=lambda _: None, parse_int=_bounded_int)
        return decoder.decode(json.dumps(lenient, ensure_ascii=False).encode("utf-8", "replace"))


def _bounded_int(digits: str) -> int:
    return int(digits) if len(digits) <= _INT_DIGITS_MAX else WHOLE_MAX


def _fault_of(error: msgspec.ValidationError) -> BodyFault:
    """`Expected `str | null`, got `int` - at `$.model`` → model: wanted str or null, got int."""
    found = _EXPECTED.fullmatch(str(error))
    assert found is not None, "the pattern's every part may be empty"
    path = found["path"] or None
    wanted = found["wanted"].replace("Expected ", "wanted ").replace("`", "").replace(" | ", " or ")
    return BodyFault(f"{path or 'body'}: {wanted}", path)


def _whole(value: int | float | str) -> int | None:
    """A number within ±`WHOLE_MAX`; `None` for a fraction or another string."""
    try:
        whole = int(value)
    except ValueError:
        return None
    if isinstance(value, float) and whole != value:
        return None
    return max(-WHOLE_MAX, min(whole, WHOLE_MAX))
