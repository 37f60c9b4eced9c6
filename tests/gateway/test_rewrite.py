import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.core.request import Endpoint
from extproc.gateway import openai
from extproc.gateway.rewrite import MEMBERS_MAX, with_model

CHAT = b'{"model": "fast", "messages": [{"role": "user", "content": "hi"}]}'
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
HALVES = st.text("\ud800aé", max_size=8)
"""With halves of surrogate pairs, which never meet their others: together, they are read as one character."""
VALUES = st.recursive(
    SCALARS | HALVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["model", "messages", "n", "Model", "é", '"', "\ud800"]) | st.text(max_size=4)
MODELS = st.text(min_size=1, max_size=12)


def same(one: object, other: object) -> bool:
    """Equal, NaN and the order of keys included."""
    return json.dumps(one) == json.dumps(other)


def pairs(body: bytes) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = json.loads(body, object_pairs_hook=list)
    return found


@given(
    fields=st.dictionaries(KEYS, VALUES, max_size=6),
    model=MODELS,
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"]),
)
def test_readers_find_the_other_model_and_else_what_was_there(
    fields: dict[str, Any], model: str, indent: int | None, ascii_only: bool, encoding: str
) -> None:
    text = json.dumps(fields, indent=indent, ensure_ascii=ascii_only)
    body = text.encode(encoding, "surrogatepass")
    rewritten = with_model(body, model)
    assert rewritten is not None
    assert same(json.loads(rewritten), json.loads(body) | {"model": model})


RAW_VALUES = st.sampled_from(
    [
        "1",
        "1.0",
        "1e2",
        "1E+400",
        "-0.0",
        '"\\u0041\\/"',
        '"é"',
        "[1,  2]",
        '{ "model" : "in" }',
        "null",
        '"fast"',
        "9" * 5000,
    ]
)


@given(
    members=st.lists(st.tuples(st.sampled_from(["a", "b", "model", "mod\\u0065l"]), RAW_VALUES), max_size=6),
    space=st.sampled_from(["", " ", "\n\t "]),
)
def test_every_other_value_stays_byte_for_byte_and_of_what_stands_twice_the_last(
    members: list[tuple[str, str]], space: str
) -> None:
    inside = f",{space}".join(f'"{key}"{space}:{space}{value}' for key, value in members)
    rewritten = with_model(f"{{{space}{inside}{space}}}{space}".encode(), "m")
    last = {json.loads(f'"{key}"'): value for key, value in members} | {"model": '"m"'}
    assert rewritten == ("{" + ",".join(f'"{key}":{value}' for key, value in last.items()) + "}").encode()


@given(body=st.binary(max_size=40) | st.text(max_size=40).map(str.encode), model=st.text(max_size=5))
@example(body=b"[1]", model="m")
@example(body=b'"model"', model="m")
@example(body=b"\xef\xbb\xbf[1]", model="m")
@example(body=b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", model="m")
@example(body=b'{"b":NaN,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", model="m")
@example(body=b'{"a":NaN,"b":' + b"9" * 5000 + b"}", model="m")
@example(body=b'{"a":NaN}', model="\ud800")
def test_no_bytes_raise(body: bytes, model: str) -> None:
    rewritten = with_model(body, model)
    try:
        readable = isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        readable = False
    assert rewritten is not None or not readable


ODD = (
    b'{"model": "fast", "messages": [], "temperature": NaN}',
    b'{"model": "fast", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b"\xef\xbb\xbf" + CHAT,
    CHAT.decode().encode("utf-16"),
    b'{"model": "fast", "model": "slow", "messages": []}',
    b'{"model": "fast", "messages": [], "seed": ' + b"9" * 4000 + b"}",
)


@pytest.mark.parametrize("body", [CHAT, *ODD])
def test_what_is_routed_is_rewritten_and_then_asks_for_the_other_model(body: bytes) -> None:
    before = openai.parse(Endpoint.CHAT, body, 1000)
    rewritten = with_model(body, "größer\t\u2028")
    assert rewritten is not None
    assert same(json.loads(rewritten), json.loads(body) | {"model": "größer\t\u2028"})
    assert [key for key, _ in pairs(rewritten)].count("model") == 1
    again = with_model(rewritten, "small")
    assert again is not None
    after = openai.parse(Endpoint.CHAT, again, 1000)
    assert isinstance(before, openai.ParsedBody)
    assert isinstance(after, openai.ParsedBody)
    assert (after.model, after.prompt) == ("small", before.prompt)


def test_a_body_that_names_no_model_names_one_then() -> None:
    assert with_model(b"{}", "m") == b'{"model":"m"}'
    assert with_model(b'{"n":1}', "m") == b'{"n":1,"model":"m"}'


def test_a_body_of_too_many_fields_is_left_alone() -> None:
    def body(fields: int) -> bytes:
        return b'{"model":"fast"' + b"".join(b',"%d" :1' % number for number in range(fields - 1)) + b"}"

    assert with_model(body(100), "m", members_max=100) is not None
    assert with_model(body(101), "m", members_max=100) is None
    assert with_model(body(101), "m") is not None
    numbers = b'{"model":"fast","input":[' + b"1," * MEMBERS_MAX + b"1]}"
    assert with_model(numbers, "m") == numbers.replace(b"fast", b"m")
