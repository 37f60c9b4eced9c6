"""The shapes in which bodies of OpenAI's API carry prompts, and what has to be counted of them."""

import re
from collections.abc import Iterable
from contextlib import suppress

import msgspec
from msgspec import Raw, Struct

_ABSENT = Raw()


class Part(Struct):
    """A part of a message's content, or a prompt given as an object. What has no text is an image, audio or a file."""

    text: str | None = None
    refusal: str | None = None


class Message(Struct):
    """A chat message, or an item of a response's input."""

    content: str | list[str | Part] | None = None
    tool_calls: Raw = _ABSENT
    arguments: Raw = _ABSENT
    """A function call's, in a response's input."""
    output: Raw = _ABSENT
    """A function's, likewise."""


Prompts = str | list[str | int | list[str | int] | Part] | None
"""One prompt or several, as text or token ids. llama.cpp mixes them, and takes objects too."""


# A run of them at once, since a pair of surrogates is one character.
_ESCAPES = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")


def _unescaped(run: re.Match[str]) -> str:
    units = bytes.fromhex(run[0].replace("\\u", ""))
    return units.decode("utf-16-be", "replace")


class Gathered:
    """What has to be counted, as it is found."""

    __slots__ = ("media_parts", "messages", "texts", "token_ids")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids = 0
        self.messages = 0
        self.media_parts = 0

    def text(self, text: str | None) -> None:
        """A text, if there is one."""
        if text:
            self.texts.append(text)

    def json(self, raw: Raw) -> None:
        """Definitions and calls of tools: engines put their JSON into the prompt, with characters, not escapes."""
        if is_null(raw):
            return
        text = bytes(raw).decode("utf-8", "replace")
        if text[0] == '"':
            with suppress(ValueError):  # lone surrogates, which JSON allows and msgspec does not: as it stands
                text = msgspec.json.decode(text, type=str)
        elif "\\u" in text:
            text = _ESCAPES.sub(_unescaped, text)
        self.text(text)

    def part(self, part: Part) -> None:
        """A part, as text or as media."""
        if part.text is None and part.refusal is None:
            self.media_parts += 1
        self.text(part.text)
        self.text(part.refusal)

    def messages_of(self, messages: Iterable[str | Message]) -> None:
        """Messages with all that stands in them."""
        for message in messages:
            self.messages += 1
            if isinstance(message, str):
                self.text(message)
                continue
            content = message.content
            if isinstance(content, str):
                self.text(content)
            elif content is not None:
                for part in content:
                    if isinstance(part, str):
                        self.text(part)
                    else:
                        self.part(part)
            for raw in (message.tool_calls, message.arguments, message.output):
                if raw is not _ABSENT:
                    self.json(raw)

    def prompts_of(self, prompts: Prompts) -> int:
        """Prompts, and returns how many there are; a list of token ids is one prompt."""
        if prompts is None:
            return 1
        if isinstance(prompts, str):
            self.text(prompts)
            return 1
        if set(map(type, prompts)) == {int}:
            self.token_ids += len(prompts)
            return 1
        for item in prompts:
            if isinstance(item, str):
                self.text(item)
            elif isinstance(item, list):
                texts = [one for one in item if isinstance(one, str)]
                self.texts += texts
                self.token_ids += len(item) - len(texts)
            elif isinstance(item, Part):
                self.part(item)
            else:
                self.token_ids += 1
        return len(prompts) or 1


def is_null(raw: Raw) -> bool:
    """Whether a field is `null` or absent."""
    return bytes(raw) in (b"", b"null")
