"""Tools and their calls as templates see them."""

import json
from typing import Any

import pytest

from extproc.tokens.chat import Habits
from extproc.tokens.pyjson import tojson
from extproc.tokens.tools import tools_of
from tests.tokens.references.chats import TOOLS, Body, call, say
from tests.tokens.seen import given, seen


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


def test_whole_calls_that_show_are_not_exact() -> None:
    showing = Habits(shows_whole_calls=True)
    assert not seen(say("assistant", "", tool_calls=[call(1, "{}")]), showing)[1]
    assert seen(say("assistant", ""), showing)[1]


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
