"""What of a request's body has to be counted: values that the gateway reads and `tokens` counts.

Fields of a message that only templates look at stay raw JSON: whatever stands there is the engine's to judge, and most
requests are counted without them.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from extproc.core.request import TokenCount

ABSENT: Final = Raw()
"""What stands in a raw field that a body does not have."""
_UNESCAPED_BYTES_MAX: Final = 1024 * 1024
"""Longer JSON is taken as it stands, escapes and all: 1 MiB takes 3 ms."""


class Part(Struct):
    """A part of a message's content, or a prompt given as an object. What has no text is an image, audio or a file."""

    text: str | None = None
    refusal: str | None = None
    type: Raw = ABSENT
    """As `"text"`, `"image_url"`, `"input_audio"`."""
    image_url: Raw = ABSENT
    input_audio: Raw = ABSENT
    audio_url: Raw = ABSENT
    video_url: Raw = ABSENT
    file: Raw = ABSENT
    file_id: Raw = ABSENT
    file_url: Raw = ABSENT
    file_data: Raw = ABSENT

    @property
    def texts(self) -> list[str]:
        """What it says; empty for media."""
        return [text for text in (self.text, self.refusal) if text is not None]

    @property
    def media(self) -> list[Raw]:
        """The image, audio or file itself, or where it is to be had; empty for text and for unknown kinds."""
        fields = (self.image_url, self.input_audio, self.audio_url, self.video_url)
        files = (self.file, self.file_id, self.file_url, self.file_data)
        return [raw for raw in fields + files if raw is not ABSENT]


class Message(Struct):
    """A chat message, or an item of a response's input."""

    role: str | None = None
    content: str | list[str | Part] | None = None
    name: Raw = ABSENT
    tool_calls: Raw = ABSENT
    tool_call_id: Raw = ABSENT
    reasoning: Raw = ABSENT
    reasoning_content: Raw = ABSENT
    """The older name of `reasoning`."""
    arguments: Raw = ABSENT
    """A function call's, in a response's input."""
    output: Raw = ABSENT
    """A function's, likewise."""


_RAW_FIELDS: Final = ("name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "arguments", "output")


class Chat(Struct, frozen=True):
    """A conversation that the engine turns into one text by the model's template."""

    messages: tuple[Message, ...]
    tools: Raw = ABSENT
    documents: Raw = ABSENT
    template_kwargs: Raw = ABSENT
    """The request's `chat_template_kwargs`."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    """Whether the tokenizer adds its own beside the template's."""
    as_usual: bool = True
    """False: the engine renders it in a way that we can only guess, as by a template in the request itself."""


class Media(Struct, frozen=True):
    """Parts whose tokens cannot be counted from the body, by kind."""

    images: int = 0
    audios: int = 0
    files: int = 0
    """Videos too, and whatever is not known."""

    def __bool__(self) -> bool:
        return bool(self.images or self.audios or self.files)


NO_MEDIA: Final = Media()


class Prompt(Struct, frozen=True):
    """What has to be counted of a body: prompts as text, prompts as token ids, a chat, or several of these."""

    texts: tuple[str, ...] = ()
    """Prompts as text, each one counted with the special tokens that the tokenizer adds."""
    add_special_tokens: bool = True
    """False: the request wants none added to its texts."""
    token_ids: int = 0
    """Prompts given as token ids count as they are."""
    ids: tuple[int, ...] = ()
    """The ids themselves, where they are the only prompt."""
    chat: Chat | None = None
    media: Media = NO_MEDIA
    """Parts of all prompts and messages."""
    prompts: int = 1
    """How many prompts there are; a chat is one."""
    as_usual: bool = True
    """False: text and ids in one list, or objects, which engines take in ways of their own."""
    unread_bytes: int | None = None
    """How much of the body nobody shows us, 0 where that is not known either; `None`: this is all of it."""


class CountedPrompt(Struct, frozen=True):
    """What counting found."""

    count: TokenCount
    blocks: tuple[int, ...] = ()
    """See `InferenceRequest.prompt_blocks`."""
    token_blocks: tuple[int, ...] = ()
    """See `InferenceRequest.token_blocks`."""


def texts_of(prompt: Prompt) -> Iterator[str]:
    """All text of a prompt, in the order in which engines read it: of a chat its tools, then its messages."""
    yield from prompt.texts
    if prompt.chat is not None:
        yield from json_text(prompt.chat.tools)
        yield from json_text(prompt.chat.documents)
        for message in prompt.chat.messages:
            yield from message_texts(message)


def message_texts(message: Message) -> Iterator[str]:
    """All text of a message: its content, its reasoning and its tool calls as JSON."""
    content = message.content
    if isinstance(content, str):
        yield content
    elif content is not None:
        for part in content:
            if isinstance(part, str):
                yield part
            else:
                yield from part.texts
    for raw in (message.reasoning, message.reasoning_content, message.tool_calls):
        if raw is not ABSENT:
            yield from json_text(raw)


def text_size(prompt: Prompt) -> int:
    """About the bytes of all its text: characters, and JSON as it stands. Cheap, and no more than the body has."""
    size = sum(map(len, prompt.texts))
    if (chat := prompt.chat) is not None:
        size += len(chat.tools) + len(chat.documents) + len(chat.template_kwargs)
        for message in chat.messages:
            content = message.content
            if isinstance(content, str):
                size += len(content)
            elif content is not None:
                for part in content:
                    size += len(part) if isinstance(part, str) else sum(map(len, part.texts))
            if message.tool_calls is not ABSENT:
                size += len(message.tool_calls)
            if message.tool_call_id is not ABSENT:
                size += len(message.tool_call_id)
            if message.name is not ABSENT:
                size += len(message.name)
            if message.reasoning is not ABSENT:
                size += len(message.reasoning)
            if message.reasoning_content is not ABSENT:
                size += len(message.reasoning_content)
    return size


def items_of(prompt: Prompt) -> int:
    """Texts, messages and parts of messages: each costs something, however short."""
    items = len(prompt.texts)
    if prompt.chat is not None:
        items += len(prompt.chat.messages)
        items += sum(len(one.content) for one in prompt.chat.messages if isinstance(one.content, list))
    return items


def json_items_of(chat: Chat) -> int:
    """About the values in the JSON that a template is given: they are built before it runs, where no fuel counts."""
    raws = [chat.tools, chat.documents, chat.template_kwargs]
    raws += [message.tool_calls for message in chat.messages if message.tool_calls is not ABSENT]
    return sum(bytes(raw).count(b",") + bytes(raw).count(b"{") + bytes(raw).count(b"[") for raw in raws)


def let_go(prompt: Prompt) -> Prompt:
    """The same text without media, holding nothing of the body in which raw fields stand. Changes the messages."""
    if (chat := prompt.chat) is None:
        return prompt
    for message in chat.messages:
        for name in _RAW_FIELDS:
            if (raw := getattr(message, name)) is not ABSENT:
                setattr(message, name, raw.copy())
        if isinstance(message.content, list):
            message.content = [
                one if isinstance(one, str) else Part(one.text, one.refusal, one.type.copy()) for one in message.content
            ]
    tools, documents, template_kwargs = chat.tools.copy(), chat.documents.copy(), chat.template_kwargs.copy()
    return replace(prompt, chat=replace(chat, tools=tools, documents=documents, template_kwargs=template_kwargs))


def json_text(raw: Raw) -> Iterator[str]:
    """Definitions and calls of tools: engines put their JSON into the prompt, with characters, not escapes."""
    if is_null(raw):
        return
    encoded = bytes(raw)
    if encoded[:1] == b'"':
        # Lone surrogates, which JSON allows and msgspec does not, are taken as they stand.
        with suppress(ValueError):
            yield msgspec.json.decode(encoded, type=str)
            return
    elif b"\\u" in encoded and len(encoded) <= _UNESCAPED_BYTES_MAX:
        with suppress(ValueError, OverflowError, RecursionError):
            encoded = msgspec.json.encode(msgspec.json.decode(encoded))
    yield encoded.decode("utf-8", "replace")


def is_null(raw: Raw) -> bool:
    """Whether a field is `null` or absent."""
    return bytes(raw) in (b"", b"null")
