"""Rendering a chat in a word, for tests of templates."""

from typing import Any

from extproc.tokens.template import ChatTemplate, Rendered, Renderer, TemplateFault
from tests.tokens.references.asked import chat_of
from tests.tokens.references.chats import NOW, Body, say

FUEL = 100_000


CHATML = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def compiled(source: str, fuel: int = FUEL, renderer: Renderer = Renderer.TEMPLATE, **tokens: str) -> ChatTemplate:
    return ChatTemplate(source, tokens, renderer, fuel)


def rendered(source: str, *messages: Body, **body: Any) -> Rendered:
    outcome = compiled(source).render(chat_of({"messages": messages or [say("user", "a")]} | body), NOW)
    assert isinstance(outcome, Rendered), outcome
    return outcome


def text(source: str, *messages: Body, **body: Any) -> str:
    return rendered(source, *messages, **body).text


def fault(source: str, *messages: Body, **body: Any) -> str:
    outcome = compiled(source).render(chat_of({"messages": messages or [say("user", "a")]} | body), NOW)
    assert isinstance(outcome, TemplateFault), outcome
    return outcome.message
