"""What engines give a chat template: messages, tools and the rest as vLLM makes them of a request.

| of a request | in the template | engines differ, so never exact |
|---|---|---|
| `content` of text | text; a list of one part for templates that go through parts | |
| text parts | joined by line breaks; as they are for templates that go through parts | several, where joined |
| other parts | `{"type": "image"}`, or nothing | always |
| `tool_calls` | `arguments` as what their JSON says | arguments that are no JSON object |
| `reasoning`, `reasoning_content` | both names | without the older name, or both and not the same |
| `tools` | name, description, parameters, in this order, then the rest | other order, more or fewer keys |
| numbers in tools and calls | as Python writes them | fractions that C's `%g` writes in another way |
| `role` | as it is | developer |
| `chat_template_kwargs` | as variables | those that are vLLM's own parameters |
| an assistant's message at the end | as any other | unless it is to be continued |
"""

from typing import Any, Final

from msgspec import Raw, Struct

from extproc.prompt import ABSENT, Chat, Message, Part, is_null
from extproc.tokens.pyjson import Kept, decode, numbers_differ
from extproc.tokens.tools import tools_of

_TEXT_TYPES: Final = (b'"text"', b'"input_text"')
_CALL_KEYS: Final = {"id", "type", "function"}

RESERVED: Final = frozenset({
    # What we say ourselves,
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "strftime_now",
    "raise_exception",
    # and what transformers would not hand on to the template but do something with.
    "conversation", "chat_template", "tokenize", "sanitize_control_tokens", "padding", "truncation", "max_length",
    "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
})  # fmt: skip
"""Names that `chat_template_kwargs` cannot set."""


class Habits(Struct, frozen=True):
    """What a template does with messages, where engines give it different ones."""

    goes_through_parts: bool = False
    """It wants content as a list of parts: vLLM's format "openai", else "string"."""
    shows_whole_calls: bool = False
    """It writes calls of tools with all their keys, in the order in which they stand."""
    drops_system: bool = False
    """It leaves out what the system says; llama.cpp then puts it into the user's message."""
    names_users: bool = False
    """It writes names of users, which SGLang does not hand on."""


class TemplateInput(Struct, frozen=True):
    """A template's variables."""

    variables: dict[str, Any]
    messages: list[dict[str, Any]]
    """Those of the variables."""
    exact: bool
    """Whether all engines give the same."""
    text_bytes: int
    """At least as many as all text has in UTF-8."""


def template_input(chat: Chat, habits: Habits) -> TemplateInput:
    """A chat as a template sees it. Raises `ValueError` for what no engine takes, `RecursionError` for the too deep."""
    if not chat.messages:
        msg = "no messages"
        raise ValueError(msg)
    reader = _Reader(habits)
    messages = [reader.message(message) for message in chat.messages]
    variables = reader.template_kwargs(chat.template_kwargs) if chat.template_kwargs is not ABSENT else {}
    variables["messages"] = messages
    variables["tools"] = reader.tools(chat.tools) if chat.tools is not ABSENT else None
    variables["documents"] = reader.documents(chat.documents) if chat.documents is not ABSENT else None
    variables["add_generation_prompt"] = chat.add_generation_prompt
    if messages[-1]["role"] == "assistant" and not chat.continue_final_message:
        reader.exact = False  # SGLang makes it the user's
    return TemplateInput(variables, messages, reader.exact and chat.as_usual, reader.text_bytes)


class _Reader:
    def __init__(self, habits: Habits) -> None:
        self.exact = True
        self.text_bytes = 0
        self._habits = habits

    def message(self, message: Message) -> dict[str, Any]:
        role = message.role
        if role is None:
            msg = "a message without a role"
            raise ValueError(msg)
        content = message.content
        made: dict[str, Any] = {"role": role}
        if role == "developer":
            self.exact = False  # llama.cpp makes it the system's
        elif role == "system" and self._habits.drops_system:
            self.exact = False
        if isinstance(content, str):
            self.text_bytes += len(content) if content.isascii() else 4 * len(content)
            parts = self._habits.goes_through_parts and role != "tool"
            made["content"] = [{"type": "text", "text": content}] if parts else content
        else:
            made["content"] = self._content(content or [], role)
        if role == "assistant":
            self._assistant(message, made)
        elif message.tool_call_id is not ABSENT and role == "tool":
            self._put(made, "tool_call_id", message.tool_call_id)
        if message.name is not ABSENT:
            self._put(made, "name", message.name)
            self.exact = self.exact and not (role == "user" and self._habits.names_users)
        return made

    def template_kwargs(self, raw: Raw) -> dict[str, Any]:
        kwargs = self._json(raw)
        if kwargs is None:
            return {}
        if not isinstance(kwargs, dict):
            msg = "chat_template_kwargs: not an object"
            raise ValueError(msg)
        if not all(isinstance(value, str | bool) or type(value) is int for value in kwargs.values()):
            self.exact = False  # written by some engines as Python does it, by others as JSON
        if numbers_differ(bytes(raw)):
            self.exact = False
        if not RESERVED.isdisjoint(kwargs):
            self.exact = False
            return {name: value for name, value in kwargs.items() if name not in RESERVED}
        return kwargs

    def tools(self, raw: Raw) -> list[Kept] | None:
        if is_null(raw):
            return None
        text = bytes(raw)
        tools = tools_of(text)
        self.text_bytes += len(text)
        self.exact = self.exact and tools.exact
        return list(tools.definitions)

    def documents(self, raw: Raw) -> list[Any] | None:
        documents = self._json(raw)
        if documents is None:
            return None
        documents = _list(documents, "documents")
        for document in documents:
            texts = document.values() if isinstance(document, dict) else [None]
            self.exact = self.exact and all(isinstance(text, str) for text in texts)
        return documents

    def _content(self, parts: list[str | Part], role: str) -> str | list[dict[str, str]]:
        made: list[dict[str, str]] = []
        for part in parts:
            texts = [part] if isinstance(part, str) else part.texts
            self.text_bytes += sum(4 * len(text) for text in texts)
            made += [{"type": "text", "text": text} for text in texts]
            if isinstance(part, str) or bytes(part.type) not in _TEXT_TYPES or part.text is None or len(texts) > 1:
                self.exact = False
            if not texts and not isinstance(part, str) and (medium := _medium(part.type)) is not None:
                made.append({"type": medium})
        all_text = all(part["type"] == "text" for part in made)
        if self._habits.goes_through_parts and (role != "tool" or not all_text):
            return made
        joined = [part["text"] for part in made if part["type"] == "text"]
        if len(joined) > 1:
            self.exact = False  # SGLang joins by spaces
        return "\n".join(joined)

    def _assistant(self, message: Message, made: dict[str, Any]) -> None:
        if message.tool_calls is not ABSENT and (calls := self._json(message.tool_calls)) is not None:
            if calls:
                made["tool_calls"] = [self._call(call) for call in _list(calls, "tool_calls")]
            if not calls or self._habits.shows_whole_calls:
                self.exact = False
        if message.reasoning is not ABSENT or message.reasoning_content is not ABSENT:
            reasoning, older = self._text(message.reasoning), self._text(message.reasoning_content)
            if reasoning is not None and reasoning != older:
                self.exact = False  # llama.cpp looks at the older name only
            told = older if reasoning is None else reasoning
            if told is not None:
                made["reasoning"] = made["reasoning_content"] = told

    def _call(self, call: object) -> dict[str, Any]:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            msg = "tool_calls: not calls of functions"
            raise ValueError(msg)
        arguments = self._arguments(function.get("arguments"))
        if not isinstance(arguments, dict) or not call.keys() >= _CALL_KEYS or "name" not in function:
            self.exact = False
        # In the order of the types that vLLM reads them by.
        return {
            "id": call.get("id"),
            "function": {"arguments": arguments, "name": function.get("name")},
            "type": call.get("type", "function"),
        }

    def _arguments(self, arguments: object) -> object:
        if isinstance(arguments, str):
            try:
                decoded = decode(arguments)
                self.exact = self.exact and not numbers_differ(arguments)
                return decoded
            except ValueError:
                arguments = None
        self.exact = False
        return arguments if isinstance(arguments, dict | list) else {}

    def _put(self, made: dict[str, Any], name: str, raw: Raw) -> None:
        text = self._text(raw)
        if text is not None:
            made[name] = text

    def _text(self, raw: Raw) -> str | None:
        text = self._json(raw)
        if text is None or isinstance(text, str):
            return text
        self.exact = False
        return None

    def _json(self, raw: Raw) -> Any:
        if is_null(raw):
            return None
        text = bytes(raw)
        self.text_bytes += len(text)
        return decode(text)


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        msg = f"{name}: not a list"
        raise ValueError(msg)
    return value


def _medium(kind: Raw) -> str | None:
    name = bytes(kind)
    return next((medium for medium in ("image", "audio", "video") if medium.encode() in name), None)
