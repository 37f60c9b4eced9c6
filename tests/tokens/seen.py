"""What a template is given of a chat, in a word."""

from typing import Any

from extproc.tokens.chat import Habits, TemplateInput, template_input
from tests.tokens.references.asked import chat_of
from tests.tokens.references.chats import Body, say

TEXT = Habits()
PARTS = Habits(goes_through_parts=True)


def given(*messages: Body, habits: Habits = TEXT, **body: Any) -> TemplateInput:
    return template_input(chat_of({"messages": messages or [say("user", "a")]} | body), habits)


def seen(message: Body, habits: Habits = TEXT) -> tuple[dict[str, Any], bool]:
    """A message as a template sees it, and whether that is exact; before the user's, since the last is special."""
    found = given(message, say("user", "a"), habits=habits)
    return found.messages[0], found.exact


def part(text: str, kind: str = "text") -> Body:
    return {"type": kind, "text": text}
