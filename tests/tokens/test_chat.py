import json
from typing import Any

import pytest
from msgspec import Raw

from extproc.prompt import Chat, Message
from extproc.tokens.chat import RESERVED, Habits, TemplateInput, template_input
from extproc.tokens.parts import goes_through_parts
from extproc.tokens.pyjson import tojson
from extproc.tokens.tools import tools_of
from tests.tokens.references.asked import chat_of
from tests.tokens.references.chats import TOOLS, Body, call, say

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


def test_a_chat_is_messages_and_nothing_else_unless_it_says_so() -> None:
    assert given(say("system", "S"), say("user", "U")).variables == {
        "messages": [say("system", "S"), say("user", "U")],
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
    }
    assert given(add_generation_prompt=False).variables["add_generation_prompt"] is False


@pytest.mark.parametrize(
    ("content", "text", "parts", "exact"),
    [
        ("a", "a", [part("a")], (True, True)),
        ("", "", [part("")], (True, True)),
        (None, "", [], (True, True)),
        ([], "", [], (True, True)),
        ([part("a")], "a", [part("a")], (True, True)),
        ([part("a", "input_text")], "a", [part("a")], (True, True)),
        ([part("a"), part("b")], "a\nb", [part("a"), part("b")], (False, True)),
        ([part("a", "output_text")], "a", [part("a")], (False, False)),
        ([{"text": "a"}], "a", [part("a")], (False, False)),
        (["a"], "a", [part("a")], (False, False)),
        ([{"type": "refusal", "refusal": "no"}], "no", [part("no")], (False, False)),
        ([{"type": "text", "text": "a", "refusal": "no"}], "a\nno", [part("a"), part("no")], (False, False)),
        ([{"type": "text"}], "", [], (False, False)),
        ([{"type": "image_url"}, part("a")], "a", [{"type": "image"}, part("a")], (False, False)),
        ([{"type": "input_image"}], "", [{"type": "image"}], (False, False)),
        ([{"type": "input_audio"}], "", [{"type": "audio"}], (False, False)),
        ([{"type": "video_url"}], "", [{"type": "video"}], (False, False)),
        ([{"type": "file"}], "", [], (False, False)),
        ([{"type": 7}], "", [], (False, False)),
    ],
)
def test_content_is_text_or_parts_as_the_template_wants_it(
    content: object, text: str, parts: list[Body], exact: tuple[bool, bool]
) -> None:
    assert seen(say("user", content)) == (say("user", text), exact[0])
    assert seen(say("user", content), PARTS) == (say("user", parts), exact[1])


def test_what_a_tool_gave_is_text_to_every_template_unless_it_is_more() -> None:
    assert seen(say("tool", "a"), PARTS) == (say("tool", "a"), True)
    assert seen(say("tool", [part("a")]), PARTS) == (say("tool", "a"), True)
    assert seen(say("tool", [part("a"), part("b")]), PARTS) == (say("tool", "a\nb"), False)
    assert seen(say("tool", [{"type": "image_url"}]), PARTS) == (say("tool", [{"type": "image"}]), False)
    assert seen(say("tool", "a", tool_call_id="x", name="f")) == (say("tool", "a", tool_call_id="x", name="f"), True)
    assert seen(say("tool", "a", tool_call_id=None, name=None)) == (say("tool", "a"), True)
    assert seen(say("user", "a", tool_call_id="x")) == (say("user", "a"), True)
    assert seen(say("tool", "a", tool_call_id=7)) == (say("tool", "a"), False)


def test_a_call_stands_as_vllm_reads_it_its_arguments_as_what_they_say() -> None:
    message = say("assistant", None, tool_calls=[call(1, '{"b": 1, "a": [2.5]}') | {"index": 0}])
    found, exact = seen(message)
    assert exact
    assert json.dumps(found) == json.dumps({
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_0001", "function": {"arguments": {"b": 1, "a": [2.5]}, "name": "forecast"}, "type": "function"}
        ],
    })  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [("{", {}), ("", {}), ("[1]", [1]), ("7", 7), ({"a": 1}, {"a": 1}), ([1], [1]), (None, {}), (7, {}), ("NaN", {})],
)
def test_arguments_that_are_no_json_object_are_not_exact(arguments: Any, expected: object) -> None:
    found, exact = seen(say("assistant", "", tool_calls=[call(1, arguments)]))
    assert (found["tool_calls"][0]["function"]["arguments"], exact) == (expected, False)


@pytest.mark.parametrize("lost", ["id", "type"])
def test_a_call_without_what_it_should_have_is_not_exact(lost: str) -> None:
    whole = call(1, "{}")
    less = {key: value for key, value in whole.items() if key != lost}
    found, exact = seen(say("assistant", "", tool_calls=[less]))
    assert not exact
    assert found["tool_calls"][0]["type"] == "function"
    unnamed = whole | {"function": {"arguments": "{}"}}
    assert not seen(say("assistant", "", tool_calls=[unnamed]))[1]


def test_only_the_assistant_calls_and_no_calls_are_none() -> None:
    assert seen(say("user", "a", tool_calls=[call(1, "{}")], reasoning="b")) == (say("user", "a"), True)
    assert seen(say("assistant", "a", tool_calls=None)) == (say("assistant", "a"), True)
    assert seen(say("assistant", "a", tool_calls=[])) == (say("assistant", "a"), False)


@pytest.mark.parametrize(
    ("fields", "expected", "exact"),
    [
        ({"reasoning": "a"}, "a", False),
        ({"reasoning_content": "a"}, "a", True),
        ({"reasoning": "a", "reasoning_content": "a"}, "a", True),
        ({"reasoning": "a", "reasoning_content": "b"}, "a", False),
        ({"reasoning": None, "reasoning_content": "b"}, "b", True),
        ({"reasoning": None}, None, True),
        ({"reasoning": {"a": 1}}, None, False),
        ({"reasoning": ""}, "", False),
    ],
)
def test_reasoning_has_both_its_names(fields: Body, expected: str | None, exact: bool) -> None:
    wanted = {} if expected is None else {"reasoning": expected, "reasoning_content": expected}
    assert seen(say("assistant", "c", **fields)) == (say("assistant", "c", **wanted), exact)


def test_engines_differ_in_developers() -> None:
    assert seen(say("developer", "a")) == (say("developer", "a"), False)


@pytest.mark.parametrize(
    ("number", "exact"),
    [
        ("1", True),
        ("12345678901", True),
        ("0.5", True),
        ("-0.25", True),
        ('"1.0e5"', True),
        ("1.0", False),
        ("0.0", False),
        ("1e5", False),
        ("1E-7", True),
        ("1234567.5", False),
        ("123456789012345678", True),
        ("1234567890123456789", False),
        ("-9223372036854775809", False),
        ('{"a": [2, {"b": 3.0}]}', False),
    ],
)
def test_fractions_that_llamacpp_writes_in_another_way_are_not_exact(number: str, exact: bool) -> None:
    parameters = {"minimum": json.loads(number)}
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}
    raw = json.dumps([tool]).replace(json.dumps(json.loads(number)), number)
    for _ in range(2):
        assert tools_of(raw.encode()).exact is exact
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": f'{{"x": {number}}}'}}]
    assert seen(say("assistant", "", tool_calls=calls))[1] is exact


def test_names_are_text() -> None:
    assert seen(say("user", "a", name="Ann")) == (say("user", "a", name="Ann"), True)
    assert seen(say("user", "a", name="Ann"), Habits(names_users=True))[1] is False
    assert seen(say("system", "a", name="Ann"), Habits(names_users=True))[1] is True
    assert seen(say("user", "a", name={"a": 1})) == (say("user", "a"), False)


def test_whole_calls_that_show_are_not_exact() -> None:
    showing = Habits(shows_whole_calls=True)
    assert not seen(say("assistant", "", tool_calls=[call(1, "{}")]), showing)[1]
    assert seen(say("assistant", ""), showing)[1]


def test_tools_in_their_usual_order_stand_as_they_are() -> None:
    found = given(tools=TOOLS)
    assert found.variables["tools"][1] == TOOLS[1]
    assert str(found.variables["tools"]) == str(TOOLS), "numbers and order as Python has them"


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (
            {"function": {"parameters": {}, "name": "f", "description": "d"}, "type": "function"},
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}},
        ),
        (
            {"type": "function", "function": {"name": "f"}},
            {"type": "function", "function": {"name": "f", "description": None, "parameters": None}},
        ),
        (
            {"function": {"strict": True, "name": "f", "description": "d", "parameters": {}}, "more": 1},
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}, "strict": True}},
        ),
    ],
)
def test_other_tools_are_put_in_order_and_are_not_exact(tool: Body, expected: Body) -> None:
    found = given(tools=[TOOLS[0], tool])
    assert not found.exact
    assert json.dumps(found.variables["tools"][1]) == json.dumps(expected)


@pytest.mark.parametrize("size", [10, 70_000])
def test_chats_with_the_same_tools_have_them_each_in_a_list_of_its_own(size: int) -> None:
    tools = [TOOLS[0] | {"function": {"name": "f", "description": "d" * size, "parameters": {"a": 1.0}}}]
    first, second = given(tools=tools).variables["tools"], given(tools=tools).variables["tools"]
    assert str(first) == str(second)
    assert (first[0] is second[0]) == (size == 10), "long ones are not kept"
    first.clear()
    assert str(given(tools=tools).variables["tools"]) == str(second)
    for _ in range(2):
        assert tojson(second[0]) == json.dumps(tools[0])
        assert tojson(second[0]["function"]) == json.dumps(tools[0]["function"])
        assert tojson(second[0], indent=1) == json.dumps(tools[0], indent=1)
        assert tojson(second) == json.dumps(tools)


def test_no_tools_at_all_are_not_the_same_to_engines() -> None:
    assert (given(tools=[]).variables["tools"], given(tools=[]).exact) == ([], False)


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


@pytest.mark.parametrize("name", sorted(RESERVED))
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


LOOP = "{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        (LOOP, True),
        (LOOP.replace("m.content", "m['content']"), True),
        (LOOP.replace("m.content", 'm[ "content" ] | selectattr("type", "equalto", "text") | list'), True),
        (LOOP.replace("in m.content", "in m.content[1:] if p.type == 'text'"), True),
        (LOOP.replace("{% for p in m.content %}", "{%- for p in (m.content) -%}"), True),
        (LOOP.replace("in messages", "in messages[1:] recursive"), True),
        ("{% set rest = messages[1:] %}{% set rest = rest %}" + LOOP.replace("messages", "rest | list"), True),
        ("{% set a = b %}{% set b = messages %}" + LOOP.replace("messages", "a"), True),
        ("{% set rest = messages if a else b %}" + LOOP.replace("messages", "rest"), False),
        (LOOP.replace("m.content", "m.content[0]"), False),
        (LOOP.replace("m.content", "m.content.parts"), False),
        (LOOP.replace("m.content", "m.contents"), False),
        (LOOP.replace("m.content", "other.content"), False),
        (LOOP.replace("messages", "messages + more"), False),
        ("{#" + LOOP + "#}", False),
        ("{% set ns.rest = messages %}" + LOOP, False),
        (LOOP + "{% for a, b in messages | items %}{% endfor %}", False),
        ("{% set content = messages[0].content %}{% for p in content %}{% endfor %}", False),
    ],
)
def test_a_template_that_goes_through_parts_is_known_by_its_loops(source: str, expected: bool) -> None:
    assert goes_through_parts(source) is expected


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
