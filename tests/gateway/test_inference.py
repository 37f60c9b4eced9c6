"""What is known of a request of which the body is not shown, or not whole."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.policy import RoutingPolicy
from extproc.core.request import MODEL_CHARS_MAX, CountSource, Endpoint, TokenCount
from extproc.gateway import inference, openai
from extproc.gateway.conversation import BodyMode, RequestHeaders
from extproc.gateway.openai import BodyFault, ParsedBody
from extproc.prompt import CountedPrompt, Prompt, texts_of

POLICY = RoutingPolicy()
ITEMS_MAX = 100_000


def head(model: str | None = None, length: int | None = None, mode: BodyMode = BodyMode.PARTIAL) -> RequestHeaders:
    named = {} if model is None else {"x-model": model}
    return RequestHeaders("POST", "/v1/chat/completions", length, mode=mode, named=named)


def of_part(part: bytes, *, model: str | None = None, length: int | None = None, **changes: Any) -> ParsedBody | None:
    endpoint = changes.get("endpoint", Endpoint.CHAT)
    return inference.of_part(endpoint, head(model, length), POLICY, part, changes.get("items_max", ITEMS_MAX))


def chat(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize("length", [None, 0, 70_000])
def test_of_the_head_alone_the_model_and_the_size_are_known(length: int | None) -> None:
    parsed = inference.of_head(Endpoint.CHAT, head("m", length), POLICY)
    assert parsed is not None
    assert (parsed.model, parsed.prompt, parsed.sequences) == ("m", Prompt(unread_bytes=length or 0), 1)
    assert not parsed.length_binds


@pytest.mark.parametrize("model", [None, "", "x" * (MODEL_CHARS_MAX + 1), "a\nb"])
def test_a_head_that_names_no_possible_model_tells_nothing(model: str | None) -> None:
    assert inference.of_head(Endpoint.CHAT, head(model), POLICY) is None


def test_a_policy_may_name_another_header_or_none() -> None:
    other = RequestHeaders("POST", "/v1/completions", named={"x-gateway-model-name": "m", "x-model": "n"})
    parsed = inference.of_head(Endpoint.COMPLETION, other, RoutingPolicy(model_header="x-gateway-model-name"))
    assert parsed is not None
    assert parsed.model == "m"
    assert inference.of_head(Endpoint.COMPLETION, other, RoutingPolicy(model_header=None)) is None


def test_a_part_tells_what_stands_in_it_and_the_rest_by_its_size() -> None:
    body = chat(model="m", max_tokens=7, n=2, messages=[{"role": "user", "content": "hello " * 100}])
    part = body[:200]
    parsed = of_part(part, length=len(body))
    assert parsed is not None
    assert (parsed.model, parsed.output_tokens_max, parsed.sequences, parsed.length_binds) == ("m", 7, 2, False)
    (text,) = texts_of(parsed.prompt)
    assert text
    assert ("hello " * 100).startswith(text)
    assert parsed.prompt.unread_bytes == len(body) - 200


@pytest.mark.parametrize(
    ("part", "model", "limit"),
    [
        (b'{"messages": [], "model": "llama-7', "of-the-header", None),
        (b'{"messages": [], "model": "llama-70b"', "llama-70b", None),
        (b'{"model": "llama-70b", "messages": [], "model": "lla', "llama-70b", None),
        (b'{"messages": [], "model": "llama-70b", "max_tokens": 12', "llama-70b", None),
        (b'{"messages": [], "model": "llama-70b", "max_tokens": 12, "n": 1', "llama-70b", 12),
        (b'{"model": "llama-70b", "messages": [{"role": "user", "content": "a', "llama-70b", None),
        (b'{"model": "llama-70b", "tools": [{"a": ', "llama-70b", None),
        (b'{"model": "llama-70b", "messages": [{"role": "user", "content": "\\ud8', "llama-70b", None),
        ('{"model": "llama-70b", "messages": [{"content": "é'.encode()[:-1], "llama-70b", None),
        (b'{"model": "x", "model": "llama-70b", "messages": [', "llama-70b", None),
        (b"{", "of-the-header", None),
        (b"\xff\xfe{\x00", "of-the-header", None),
        (b"[1, 2", "of-the-header", None),
        (b'{"model": 7, "messages": [', "of-the-header", None),
        (b'{"model": "llama-70b", "messages": "no list", "n": ', "of-the-header", None),
        (b'{"model": "a\\nb", "messages": [', "of-the-header", None),
        (b"[" * 1000, "of-the-header", None),
    ],
)
def test_a_field_in_which_the_part_ends_is_not_heard_where_a_piece_says_something_else(
    part: bytes, model: str, limit: int | None
) -> None:
    parsed = of_part(part, model="of-the-header")
    assert parsed is not None
    assert (parsed.model, parsed.output_tokens_max) == (model, limit)


def test_a_part_without_a_model_tells_nothing_unless_a_header_does() -> None:
    assert of_part(b'{"messages": [{"role": "user", "content": "he') is None
    assert of_part(b'{"model": "he') is None


@pytest.mark.parametrize(("spare", "read"), [(0, True), (-1, False)])
def test_a_part_of_too_many_items_is_not_read(spare: int, read: bool) -> None:
    part = b'{"model": "m", "prompt": [[],[],[],[],[],[],[],['
    items_max = openai.items_of(part) * openai.LENIENT_COST + spare
    parsed = of_part(part, endpoint=Endpoint.COMPLETION, model="h", items_max=items_max)
    assert parsed is not None
    assert parsed.model == ("m" if read else "h")


def test_of_a_long_part_the_beginning_is_read() -> None:
    beginning = b'{"model": "m", "prompt": "'
    part = beginning + b"x" * (inference.PART_BYTES_MAX + 1000)
    for length, unread_bytes in ((None, 1000), (len(part) + 5, 1005)):
        parsed = of_part(part, endpoint=Endpoint.COMPLETION, length=length)
        assert parsed is not None
        assert parsed.prompt.unread_bytes == unread_bytes + len(beginning)
        assert sum(map(len, texts_of(parsed.prompt))) == inference.PART_BYTES_MAX - len(beginning)


@pytest.mark.parametrize(
    ("mode", "ended", "length", "cut"),
    [
        (BodyMode.PARTIAL, True, None, False),
        (BodyMode.PARTIAL, False, None, True),
        (BodyMode.PARTIAL, False, 5000, True),
        (BodyMode.PARTIAL, False, 45, False),  # trailers follow
        (BodyMode.BUFFERED, False, None, False),
        (BodyMode.DUPLEX, True, 5000, False),
    ],
)
def test_only_a_partial_body_that_goes_on_is_a_part(mode: BodyMode, ended: bool, length: int | None, cut: bool) -> None:
    body = b'{"model": "m", "messages": [], "max_tokens":1'
    assert len(body) == 45
    read = inference.of_body(Endpoint.CHAT, head(None, length, mode), POLICY, body, ITEMS_MAX, ended=ended)
    assert isinstance(read, ParsedBody if cut else BodyFault)


WHOLE = chat(messages=[{"role": "user", "content": "x" * 50}], tools=[{"a": [1.5, None]}], model="mistral", n=3)


@pytest.mark.parametrize("cut", range(len(WHOLE) + 1))
def test_a_part_tells_the_whole_name_of_the_model_or_none(cut: int) -> None:
    parsed = of_part(WHOLE[:cut])
    assert (None if parsed is None else parsed.model) == ("mistral" if b'"mistral"' in WHOLE[:cut] else None)


@given(cut=st.integers(0, len(WHOLE)), body=st.binary(max_size=40))
def test_no_part_of_any_body_raises(cut: int, body: bytes) -> None:
    for part in (body, WHOLE[:cut] + body):
        of_part(part)


@pytest.mark.parametrize(
    ("header", "policy", "priority"),
    [(None, None, ""), (None, "low", "low"), ("high", "low", "high"), ("nobody's", "low", "low"), ("", "low", "low")],
)
def test_a_header_may_name_another_class_that_there_is(header: str | None, policy: str | None, priority: str) -> None:
    named = {} if header is None else {"x-priority": header}
    told = RequestHeaders("POST", "/v1/chat/completions", named=named, subset=("10.0.0.1:80",), trace_id="t")
    parsed = inference.of_head(Endpoint.CHAT, head("m"), POLICY)
    assert parsed is not None
    request = inference.request_of(
        "r1",
        told,
        RoutingPolicy(priority=policy, priority_header="x-priority"),
        ("high", "low"),
        parsed,
        "m",
        CountedPrompt(TokenCount(5, exact=False, source=CountSource.ESTIMATED), (1, 2)),
        body_bytes=9,
        model_fixed=True,
    )
    assert (request.priority, request.subset, request.trace_id) == (priority, ("10.0.0.1:80",), "t")
    assert (request.prompt.tokens, request.prompt_blocks, request.body_bytes, request.model_fixed) == (
        5,
        (1, 2),
        9,
        True,
    )
