"""Loading entries of `tokens.models` in a word."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from extproc.core.settings import Fault
from extproc.prompt import Chat, Message
from extproc.tokens.loading import CountedModel, Tokenizers, load
from extproc.tokens.template import Rendered
from extproc.tokensettings import TokenSettings

TEMPLATE: Final = "{% for m in messages %}<|u|>{{ m.content }}{% endfor %}"
CHAT: Final = Chat((Message(role="user", content="a"), Message(role="assistant", content="b")))


def outcome(**entries: Any) -> Tokenizers | list[Fault]:
    models = {name: {"tokenizer": str(one)} if isinstance(one, Path) else one for name, one in entries.items()}
    return load(TokenSettings.model_validate({"models": models}))


def loaded(**entries: Any) -> Tokenizers:
    tokenizers = outcome(**entries)
    assert isinstance(tokenizers, Tokenizers), tokenizers
    return tokenizers


def model(**entry: Any) -> CountedModel:
    found = loaded(m=entry).of("m")
    assert found is not None
    return found


def faults(**entries: Any) -> list[str]:
    told = outcome(**entries)
    assert isinstance(told, list)
    return [str(fault) for fault in told]


def text_of(counted: CountedModel, chat: Chat = CHAT) -> str:
    assert counted.template is not None
    rendered = counted.template.render(chat, datetime(2026, 1, 1, tzinfo=UTC))
    assert isinstance(rendered, Rendered), rendered
    return rendered.text
