"""A chat as templates are given it: its own fields, and what is refused."""

import json

import pytest
from msgspec import Raw

from extproc.prompt import Chat, Message
from extproc.tokens.chat import template_input
from tests.tokens.references.asked import chat_of
from tests.tokens.references.chats import TOOLS, Body, call, say
from tests.tokens.seen import TEXT, given, part


def test_a_chat_is_messages_and_nothing_else_unless_it_says_so() -> None:
    assert given(say("system", "S"), say("user", "U")).variables == {
        "messages": [say("system", "S"), say("user", "U")],
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
    }
    assert given(add_generation_prompt=False).variables["add_generation_prompt"] is False


def test_documents_of_texts_are_exact() -> None:
    found = given(documents=[{"title": "a", "text": "b"}])
    assert (found.variables["documents"], found.exact) == ([{"title": "a", "text": "b"}], True)
    assert not given(documents=[{"title": 7}]).exact
    assert not given(documents=["a"]).exact


def test_arguments_for_the_template_are_variables() -> None:
    found = given(chat_template_kwargs={"enable_thinking": False, "bos_token": "x"})
    assert found.exact
    assert found.variables["enable_thinking"] is False
    assert found.variables["bos_token"] == "x"
    assert given(chat_template_kwargs={}).exact


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        ("x", True),
        (True, True),
        (7, True),
        (None, False),
        ([1], False),
        ({"a": 1}, False),
        (1.0, False),
        (2**63, False),
    ],
)
def test_arguments_that_templates_may_write_in_two_ways_are_not_exact(value: object, exact: bool) -> None:
    assert given(chat_template_kwargs={"enable_thinking": False, "other": value}).exact is exact


OURS = "messages tools documents add_generation_prompt continue_final_message strftime_now raise_exception"
TRANSFORMERS = (
    "conversation chat_template tokenize sanitize_control_tokens padding truncation max_length return_tensors "
    "return_dict return_assistant_tokens_mask tokenizer_kwargs"
)


@pytest.mark.parametrize("name", [*OURS.split(), *TRANSFORMERS.split()])
def test_arguments_for_the_template_cannot_set_what_is_ours(name: str) -> None:
    found = given(chat_template_kwargs={name: ["hostile"], "other": 1})
    assert not found.exact
    assert found.variables == given().variables | {"other": 1}


def test_an_assistants_message_at_the_end_is_only_exact_where_it_is_continued() -> None:
    chat = say("user", "a"), say("assistant", "b")
    assert not given(*chat).exact
    assert given(*chat, continue_final_message=True).exact


def test_a_chat_that_is_not_as_usual_is_not_exact() -> None:
    assert not template_input(Chat((Message("user", "a"),), as_usual=False), TEXT).exact


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"messages": []}, "no messages"),
        ({"messages": [{"content": "a"}]}, "a message without a role"),
        ({"tools": {}}, "tools: not a list"),
        ({"tools": "a"}, "tools: not a list"),
        ({"tools": [1]}, "tools: not functions"),
        ({"tools": [{"type": "function"}]}, "tools: not functions"),
        ({"documents": {"a": 1}}, "documents: not a list"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs: not an object"),
        ({"messages": [say("assistant", "", tool_calls={"a": 1})]}, "tool_calls: not a list"),
        ({"messages": [say("assistant", "", tool_calls=[1])]}, "tool_calls: not calls of functions"),
        ({"messages": [say("assistant", "", tool_calls=[{"function": 1}])]}, "tool_calls: not calls of functions"),
    ],
)
def test_what_no_engine_takes_is_refused(body: Body, expected: str) -> None:
    messages = body.get("messages", [say("user", "a")])
    with pytest.raises(ValueError, match="^" + expected + "$"):
        template_input(chat_of({"messages": messages} | body), TEXT)


@pytest.mark.parametrize("raw", [b"[", b'["\\ud800"]', b"[NaN]", b'["\xff"]', b"[" + b"9" * 5000 + b"]"])
def test_json_that_engines_cannot_make_a_prompt_of_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        template_input(Chat((Message("user", "a"),), documents=Raw(raw)), TEXT)


def test_absent_and_null_fields_are_the_same() -> None:
    message = Message("assistant", "a", tool_calls=Raw(b"null"), reasoning=Raw(b""), name=Raw())
    chat = Chat((message, Message("user", "b")), tools=Raw(), documents=Raw(b"null"), template_kwargs=Raw(b"null"))
    assert template_input(chat, TEXT) == given(say("assistant", "a"), say("user", "b"))


@pytest.mark.parametrize("text", ["a" * 9, "é" * 9, "漢" * 9, "🏳" * 9])
def test_text_is_not_thought_shorter_than_it_is(text: str) -> None:
    for content in (text, [part(text)]):
        assert given(say("user", content)).text_bytes >= len(text.encode())
    asked = say("assistant", "", tool_calls=[call(1, json.dumps({"a": text}, ensure_ascii=False))], reasoning=text)
    assert given(asked, say("user", ""), tools=TOOLS).text_bytes > 2 * len(text.encode()) + 600
