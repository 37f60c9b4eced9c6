"""Chats as text, by the template of their model, as the engines make it."""

import enum
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from extproc.prompt import Chat, is_null
from extproc.tokens.chat import Habits, TemplateInput, template_input
from extproc.tokens.encoders import is_failure
from extproc.tokens.jinja import Jinja, told
from extproc.tokens.parts import goes_through_parts

_MESSAGE_FUEL: Final = 100
"""For each message. Templates take 30 to 80 for one, and those that search all messages for each run out of it."""
_FUEL_BYTES: Final = 8
"""Bytes of text for one more fuel. Templates put a text together up to twice, and one fuel pays for 16 bytes."""
_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "
"""What transformers puts behind the message to be continued, and looks for in the text."""
_SYSTEM: Final = "Be brief."
_ANY_DAY: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - a clock on the wall


class Rendered(Struct, frozen=True):
    """A chat as text."""

    text: str
    exact: bool
    """False: engines differ in it, or do it in a way that we do not know."""


class TemplateFault(Struct, frozen=True):
    """Why a chat has no text. Most often engines refuse it too."""

    message: str


class Renderer(enum.Enum):
    """What engines render a family's chats with. Only by a template it can be told exactly what they make of one."""

    TEMPLATE = "template"
    HARMONY = "harmony"
    MISTRAL = "mistral"


class ChatTemplate:
    """A model's template, compiled. Any thread may render it. Raises `ValueError` where it does not compile.

    `tokens` are the special tokens by their names in templates, as `bos_token`. `tool_use` is the template of that name
    for chats with tools, where a model has several. `fuel` bounds the steps of a chat without any text.
    """

    def __init__(
        self, source: str, tokens: Mapping[str, str], renderer: Renderer, fuel: int, tool_use: str | None = None
    ) -> None:
        self.renderer = renderer
        self._chats = _Template(source, tokens, fuel)
        self._chats_with_tools = self._chats if tool_use is None else _Template(tool_use, tokens, fuel)

    def render(self, chat: Chat, now: datetime) -> Rendered | TemplateFault:
        """The text of a chat; `now` is the time of the clock on the wall, which some templates tell. Never raises."""
        template = self._chats if is_null(chat.tools) else self._chats_with_tools
        try:
            rendered = template.render(chat, now)
        except BaseException as error:
            if is_failure(error):
                return TemplateFault(told(error))
            raise
        # Python's `strip` and `split` take these for blanks, minijinja's do not.
        odd = any(separator in rendered.text for separator in "\x1c\x1d\x1e\x1f")
        return Rendered(rendered.text, rendered.exact and self.renderer is Renderer.TEMPLATE and not odd)


class _Template:
    def __init__(self, source: str, tokens: Mapping[str, str], fuel: int) -> None:
        self._jinja = Jinja(source)
        self._tokens = dict(tokens)
        self._fuel = fuel
        self._shows_content = "content" in source
        self._habits = self._seen(goes_through_parts(source))

    def render(self, chat: Chat, now: datetime) -> Rendered:
        given = template_input(chat, self._habits)
        variables = self._tokens | given.variables
        variables["strftime_now"] = now.strftime
        fuel = self._fuel + _MESSAGE_FUEL * len(given.messages) + given.text_bytes // _FUEL_BYTES
        if chat.continue_final_message:
            return self._continued(chat, given, variables, fuel)
        return Rendered(self._jinja.render(variables, fuel), given.exact)

    def _continued(self, chat: Chat, given: TemplateInput, variables: dict[str, Any], fuel: int) -> Rendered:
        """The text up to the end of the last message.

        vLLM leaves it to transformers, which cuts; SGLang lets the template begin an answer and puts the text behind.
        """
        *earlier, last = given.messages
        content = chat.messages[-1].content
        begun = None
        if earlier and isinstance(content, str) and last["role"] == "assistant":
            begun = self._jinja.render(variables | {"messages": earlier, "add_generation_prompt": True}, fuel) + content
        if chat.add_generation_prompt:
            if begun is None:
                msg = "no text of the assistant's to continue"
                raise ValueError(msg)
            return Rendered(begun, exact=False)  # vLLM refuses both at once
        text, marked = _marked(last["content"])
        shown = self._jinja.render(variables | {"messages": [*earlier, last | {"content": marked}]}, fuel)
        tag = shown.rfind(_TAG.strip())
        if tag < 0 or text.strip() not in shown or not self._shows_content:
            msg = "the template does not show the message to be continued"
            raise ValueError(msg)
        cut = shown[:tag] if shown.startswith(_TAG, tag) else shown[:tag].rstrip()
        return Rendered(cut, given.exact and cut == begun)

    def _seen(self, goes_through_parts: bool) -> Habits:
        """What becomes of differences between engines, by trying."""
        text = [{"type": "text", "text": "a"}] if goes_through_parts else "a"
        user = {"role": "user", "content": text}
        system = {"role": "system", "content": [{"type": "text", "text": _SYSTEM}] if goes_through_parts else _SYSTEM}
        assistant = {"role": "assistant", "content": text}
        vllm = {"id": "123456789", "function": {"arguments": {"a": "b"}, "name": "f"}, "type": "function"}
        sglang = {"id": "123456789", "index": 0, "type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
        return Habits(
            goes_through_parts,
            shows_whole_calls=not self._same(
                [user, assistant | {"tool_calls": [vllm]}], [user, assistant | {"tool_calls": [sglang]}]
            ),
            drops_system=_SYSTEM not in (self._tried([system, user]) or _SYSTEM),
            names_users=not self._same([user], [user | {"name": "b"}]),
        )

    def _same(self, one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
        """Whether these messages give the same text."""
        text = self._tried(one)
        return text is not None and text == self._tried(other)

    def _tried(self, messages: list[dict[str, Any]]) -> str | None:
        """What it makes of these messages; `None` where it fails."""
        variables: dict[str, Any] = self._tokens | {"messages": messages, "tools": None, "documents": None}
        variables |= {"add_generation_prompt": True, "strftime_now": _ANY_DAY.strftime}
        with suppress(Exception):
            return self._jinja.render(variables, self._fuel)
        return None


def _marked(content: str | list[dict[str, str]]) -> tuple[str, str | list[dict[str, str]]]:
    """A content's last text, and the content with a tag behind it."""
    if isinstance(content, str):
        return content, content + _TAG
    for index in range(len(content) - 1, -1, -1):
        text = content[index].get("text")
        if text is not None:
            return text, [*content[:index], content[index] | {"text": text + _TAG}, *content[index + 1 :]]
    msg = "no text to continue"
    raise ValueError(msg)
