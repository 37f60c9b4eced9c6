"""Bodies that are wrong, odd or hostile."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.request import MODEL_CHARS_MAX, Endpoint
from extproc.gateway.openai import (
    LENIENT_COST,
    WHOLE_MAX,
    BodyFault,
    ParsedBody,
    error_body,
    items_of,
    parse,
)
from extproc.prompt import texts_of
from tests.gateway.bodies import CHAT, COMPLETION, EMBEDDING, ITEMS_MAX, RESPONSE, fault, parsed


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (CHAT, {"messages": []}, "model"),
        (CHAT, {"model": None, "messages": []}, "model"),
        (CHAT, {"model": "", "messages": []}, "model"),
        (CHAT, {"model": 5, "messages": []}, "model"),
        (CHAT, {"model": "m"}, "messages"),
        (CHAT, {"model": "m", "messages": None}, "messages"),
        (CHAT, {"model": "m", "messages": "hi"}, "messages"),
        (CHAT, {"model": "m", "messages": [{}, {}, {"content": 5}]}, "messages[2].content"),
        (CHAT, {"model": "m", "messages": [{"content": {"a": 1}}]}, "messages[0].content"),
        (CHAT, {"model": "m", "messages": [{"content": [{"text": 5}]}]}, "messages[0].content[0].text"),
        (CHAT, {"model": "m", "messages": [None]}, "messages[0]"),
        (CHAT, {"model": "m", "messages": [], "max_tokens": "many"}, "max_tokens"),
        (CHAT, {"model": "m", "messages": [], "max_tokens": 1.5}, "max_tokens"),
        (CHAT, {"model": "m", "messages": [], "max_tokens": True}, "max_tokens"),
        (CHAT, {"model": "m", "messages": [], "max_tokens": {}}, "max_tokens"),
        (CHAT, {"model": "m", "messages": [], "n": []}, "n"),
        (CHAT, b'{"model": "m", "messages": [], "n": 1e999}', "n"),
        (CHAT, b'{"model": "m", "messages": [], "n": 1' + b"0" * 5000 + b"}", "n"),
        (COMPLETION, {"model": "m", "prompt": 5}, "prompt"),
        (COMPLETION, {"model": "m", "prompt": ["a", None]}, "prompt[1]"),
        (COMPLETION, {"model": "m", "prompt": [[1, 1.5]]}, "prompt[0][1]"),
        (EMBEDDING, {"model": "m", "input": {}}, "input"),
        (RESPONSE, {"model": "m", "input": 1}, "input"),
        (RESPONSE, {"model": "m", "instructions": 1}, "instructions"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(endpoint: Endpoint, body: bytes | dict[str, Any], param: str) -> None:
    found = fault(endpoint, body)
    assert found.param == param
    assert found.message.startswith(f"{param}: ")


def test_a_fault_says_what_was_wanted_and_what_came() -> None:
    found = fault(CHAT, {"model": "m", "messages": [{"content": 5}]})
    assert found.message == "messages[0].content: wanted str or array or null, got int"
    found = fault(CHAT, {"model": "m", "messages": [], "n": "x" * 100})
    assert found.message == "n: wanted a whole number, got '" + "x" * 39


def test_a_model_name_as_long_as_allowed_is_taken_and_a_longer_one_is_a_fault() -> None:
    assert parsed(COMPLETION, model="m" * MODEL_CHARS_MAX).model == "m" * MODEL_CHARS_MAX
    found = fault(COMPLETION, {"model": "m" * (MODEL_CHARS_MAX + 1)})
    assert found == BodyFault("model: wanted at most 256 characters, got 257", "model")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"hello",
        b'{"model": "m", "messages": []} {}',
        b'{"model": "\xff"}',
        b"\x00" * 64,
        b'{"model": "m", "x": ' + b"[" * 100_000,
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model": "m", "messages": [], "tools": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_no_json_is_said_to_be_none(body: bytes) -> None:
    found = fault(CHAT, body)
    assert found.param is None
    assert "not valid JSON" in found.message


def test_a_body_that_is_no_object_is_a_fault() -> None:
    assert fault(CHAT, b"[]") == BodyFault("body: wanted object, got array", None)


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        (b'{"model": "m", "prompt": "a\\ud800b"}', ("a?b",)),
        (b'{"model": "m", "prompt": "hi", "user": "\\udfff"}', ("hi",)),
        (b'{"model": "m", "prompt": "hi", "temperature": NaN, "top_p": -Infinity}', ("hi",)),
        (b'\xef\xbb\xbf{"model": "m", "prompt": "hi"}', ("hi",)),
        ('{"model": "m", "prompt": "hé"}'.encode("utf-16"), ("hé",)),
        (b'{"model": "m", "prompt": "\\ud83d\\ude00"}', ("\N{GRINNING FACE}",)),
    ],
)
def test_what_python_reads_as_json_is_taken_as_engines_take_it(body: bytes, texts: tuple[str, ...]) -> None:
    found = parse(COMPLETION, body, ITEMS_MAX)
    assert isinstance(found, ParsedBody), found
    assert found.prompt.texts == texts


@pytest.mark.parametrize(
    "item",
    [b",[]", b",{}", b",1", b',","', b',"["', b',"{"', b',"\\ud800"', ",{}".encode("utf-16-le")],
)
def test_a_body_of_as_many_items_as_allowed_is_read_and_one_of_more_is_not(item: bytes) -> None:
    wide = b"\0" in item
    start, end = '{"model": "m", "prompt": "", "x": [0', "]}"
    body = start.encode("utf-16" if wide else "ascii") + item * 100 + end.encode("utf-16-le" if wide else "ascii")
    items = items_of(body)
    assert items == body.count(b"[") + body.count(b"{") + body.count(b",") // 4
    cost = LENIENT_COST if wide or b"\\u" in item else 1  # what only Python's reader takes costs more
    assert isinstance(parse(COMPLETION, body, items * cost), ParsedBody)
    assert parse(COMPLETION, body, items * cost - 1) == BodyFault(
        f"The request body has more than {items - 1} items: brackets, braces, a quarter of commas.", None
    )


def test_long_integers_are_not_read_digit_by_digit() -> None:
    """Python takes quadratic time for them, and refuses them beyond 4300 digits."""
    body = b'{"model": "m", "prompt": "a", "x": [NaN, ' + b"9" * 5000 + b'], "max_tokens": ' + b"9" * 21 + b"}"
    found = parse(COMPLETION, body, ITEMS_MAX)
    assert isinstance(found, ParsedBody)
    assert found.output_tokens_max == WHOLE_MAX


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        (b'[{"d": "\\u00e9"}]', '[{"d":"é"}]'),
        (b'[{"d": "\\ud83d\\ude00!"}]', '[{"d":"\U0001f600!"}]'),
        (b'[{"d": "\\ud83d"}]', '[{"d": "?"}]'),
        # What msgspec does not write is taken as it stands.
        (b'[{"d": "\\u00e9"}, ' + b"9" * 5000 + b"]", '[{"d": "\\u00e9"}, ' + "9" * 5000 + "]"),
    ],
)
def test_escapes_in_tools_are_counted_as_the_characters_they_stand_for(tools: bytes, text: str) -> None:
    found = parse(CHAT, b'{"model": "m", "messages": [], "tools": ' + tools + b"}", ITEMS_MAX)
    assert isinstance(found, ParsedBody)
    assert list(texts_of(found.prompt)) == [text]


def test_bytes_that_are_no_text_do_not_keep_tools_from_being_counted() -> None:
    body = b'{"model": "m", "messages": [], "tools": ["\\u00e9\xff", 1' + b"0" * 5000 + b"]}"
    found = parse(CHAT, body, ITEMS_MAX)
    assert isinstance(found, ParsedBody), found
    assert "\N{REPLACEMENT CHARACTER}" in next(texts_of(found.prompt))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
FIELDS = [
    "model",
    "messages",
    "prompt",
    "input",
    "instructions",
    "tools",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "truncation",
    "truncate_prompt_tokens",
]
MESSAGES = st.lists(
    st.dictionaries(st.sampled_from(["content", "tool_calls", "arguments", "output"]), JSON, max_size=3)
)
BODIES = st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON) | {"messages": MESSAGES | JSON})


@given(endpoint=st.sampled_from(Endpoint), body=BODIES | JSON, ascii_only=st.booleans())
def test_no_json_makes_it_raise(endpoint: Endpoint, body: object, ascii_only: bool) -> None:
    check(endpoint, json.dumps(body, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))


@given(endpoint=st.sampled_from(Endpoint), body=st.binary(max_size=200))
def test_no_bytes_make_it_raise(endpoint: Endpoint, body: bytes) -> None:
    check(endpoint, body)


def check(endpoint: Endpoint, body: bytes) -> None:
    found = parse(endpoint, body, ITEMS_MAX)
    if isinstance(found, BodyFault):
        json.loads(error_body(found.message, "invalid_request_error", "invalid_request", found.param))
    else:
        assert found.model
        assert found.sequences >= 1
        for text in (found.model, *found.prompt.texts):
            text.encode()


def test_an_error_body_has_the_shape_that_clients_read() -> None:
    assert json.loads(error_body("no", "invalid_request_error", "model_not_found", "model")) == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
    }
    assert json.loads(error_body("no", "server_error", "x"))["error"]["param"] is None


@pytest.mark.parametrize("model", ["a\r\nx-injected: 1\r\n\r\nboo", "a\0", "a\x1b[2J", "a\u2028b"])
def test_a_model_that_cannot_be_printed_is_a_fault_that_can(model: str) -> None:
    fault = parse(CHAT, json.dumps({"model": model, "messages": []}).encode(), 1000)
    assert isinstance(fault, BodyFault)
    assert fault.param == "model"
    assert fault.message.isprintable()
