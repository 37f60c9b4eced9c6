"""Whoever reaches Envoy's port without being Envoy: streams in any order, hostile policies, hints without end."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)
from google.protobuf.struct_pb2 import Struct
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.config import ServeLimits
from extproc.gateway.policysource import NAMESPACE
from extproc.gateway.replies import PIECE_BYTES_MAX
from extproc.gateway.routepolicy import KEY
from tests.core.fleet import snapshot
from tests.gateway.talk import CHAT_PATH, chat
from tests.gateway.wire import Wire, answer, body, destination, metadata, response_head, wire
from tests.waiting import until

LIMITS = ServeLimits(body_bytes_max=2_000, body_bytes_total_max=100_000, body_claim_bytes_min=0)
UNKNOWN_MODE = 77
MODES = (*ProcessingMode.BodySendMode.values(), UNKNOWN_MODE, None)
HOST = snapshot("a").host
DUPLEX = ProcessingMode.FULL_DUPLEX_STREAMED


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def envoyless(runner: asyncio.Runner) -> Iterator[Wire]:
    """A processor, and nothing of ours in front of it."""
    stack = AsyncExitStack()
    yield runner.run(stack.enter_async_context(wire(limits=LIMITS)))
    runner.run(stack.aclose())


def head(
    path: str = CHAT_PATH, *, mode: int | None = None, ends: bool = False, observed: bool = False, length: str = ""
) -> ProcessingRequest:
    pairs = [(":method", "POST"), (":path", path), *([("content-length", length)] if length else [])]
    headers = HeaderMap(headers=[HeaderValue(key=key, raw_value=value.encode()) for key, value in pairs])
    message = ProcessingRequest(
        request_headers=HttpHeaders(headers=headers, end_of_stream=ends), observability_mode=observed
    )
    if mode is not None:
        # As off the wire: a number that Python's class knows no name of.
        config = ProtocolConfiguration(request_body_mode=mode, response_body_mode=mode)
        message.protocol_config.CopyFrom(config)
    return message


DATA = st.sampled_from([b"", b"{", b"[]", b"\xff", chat(), chat()[:20], b"x" * 3_000]) | st.binary(max_size=20)
ENDS = st.booleans()


def heads(modes: Sequence[int | None]) -> st.SearchStrategy[ProcessingRequest]:
    return st.builds(
        head,
        st.sampled_from([CHAT_PATH, "/v1/models", "", "/v1/completions?\0"]),
        mode=st.sampled_from(modes),
        ends=ENDS,
        length=st.sampled_from(["", "0", "10", "-1", "9" * 40, "1900"]),
    )


OTHERS = st.one_of(
    st.builds(lambda data, ends: ProcessingRequest(request_body=HttpBody(body=data, end_of_stream=ends)), DATA, ENDS),
    st.builds(lambda data, ends: ProcessingRequest(response_body=HttpBody(body=data, end_of_stream=ends)), DATA, ENDS),
    st.sampled_from([200, 503, 0, -1, 99999]).map(response_head),
    st.sampled_from(
        [
            ProcessingRequest(request_trailers=HttpTrailers()),
            ProcessingRequest(response_trailers=HttpTrailers()),
            ProcessingRequest(),
        ]
    ),
)
LATER = st.lists(heads([None]) | OTHERS, max_size=7)
"""The first message alone tells the mode."""
STREAMS = st.builds(lambda first, later: [first, *later], heads(MODES) | OTHERS, LATER)


def errors(wire: Wire) -> list[str]:
    page = wire.metrics.page(()).decode().splitlines()
    return [line for line in page if line.startswith("extproc_errors_total{")]


async def all_said(wire: Wire, messages: Sequence[ProcessingRequest]) -> list[ProcessingResponse]:
    """Every reply to these, sent without waiting, and nothing held in the end."""
    before = errors(wire)
    call = wire.open()
    replies = []

    async def read() -> None:
        while (reply := await call.read()) is not grpc.aio.EOF:
            replies.append(reply)

    async with asyncio.timeout(10):
        reading = asyncio.ensure_future(read())
        for message in messages:
            await call.write(message)
        await call.done_writing()
        await reading
        assert await call.code() is grpc.StatusCode.OK
    await until(wire.idle)
    assert errors(wire) == before, "of ours"
    return replies


def kinds(replies: Sequence[ProcessingResponse]) -> list[str | None]:
    return [reply.WhichOneof("response") for reply in replies]


@settings(max_examples=80)
@given(messages=STREAMS)
def test_whatever_the_order_each_message_has_one_reply_and_nothing_is_held(
    runner: asyncio.Runner, envoyless: Wire, messages: list[ProcessingRequest]
) -> None:
    duplex = messages[0].protocol_config.request_body_mode == DUPLEX
    replies = runner.run(all_said(envoyless, messages))
    asked = [message.WhichOneof("request") for message in messages]
    told = kinds(replies)
    assert told.count("immediate_response") <= 1
    if not duplex:
        assert len(told) == len(asked)
        assert all(one in (kind, "immediate_response") for one, kind in zip(told, asked, strict=True)), (asked, told)
        return
    for kind in ("request_headers", "request_trailers", "response_headers", "response_trailers"):
        # A decision that headers did not bring comes as the reply to them.
        assert told.count(kind) <= asked.count(kind) + (kind == "request_headers")
    for kind in ("request_body", "response_body"):
        pieces = [getattr(one, kind).response.body_mutation.streamed_response for one in replies if one.HasField(kind)]
        sent = b"".join(getattr(one, kind).body for one in messages)
        assert b"".join(one.body for one in pieces) in sent, "nothing is invented"
        assert sum(one.end_of_stream for one in pieces) <= 1
        assert all(len(one.body) <= PIECE_BYTES_MAX for one in pieces)


@pytest.mark.parametrize("first", [ProcessingRequest(), body(b"x")])
def test_a_mode_that_is_told_late_is_no_error(
    runner: asyncio.Runner, envoyless: Wire, first: ProcessingRequest
) -> None:
    trailers = ProcessingRequest(request_trailers=HttpTrailers())
    assert len(runner.run(all_said(envoyless, [first, head(mode=DUPLEX), trailers]))) == 3


@settings(max_examples=30)
@given(messages=LATER, mode=st.sampled_from(MODES))
def test_who_only_observes_hears_nothing(
    runner: asyncio.Runner, envoyless: Wire, messages: list[ProcessingRequest], mode: int
) -> None:
    assert runner.run(all_said(envoyless, [head(mode=mode, observed=True), *messages])) == []


@settings(max_examples=30)
@given(messages=STREAMS, cut=st.integers(0, 5))
def test_a_stream_cut_anywhere_leaves_nothing(
    runner: asyncio.Runner, envoyless: Wire, messages: list[ProcessingRequest], cut: int
) -> None:
    async def said_and_cut() -> None:
        call = envoyless.open()
        for message in messages[:cut]:
            await call.write(message)
        call.cancel()
        await until(envoyless.idle)

    runner.run(said_and_cut())


def test_it_serves_as_before(runner: asyncio.Runner, envoyless: Wire) -> None:
    """After all that."""
    (first, second) = runner.run(all_said(envoyless, [head(mode=ProcessingMode.BUFFERED), body(chat())]))
    assert (kinds([first]), destination(second)) == (["request_headers"], HOST)


def _nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize(
    "policy",
    [
        '{"strategy": "no\\r\\nset-cookie: x"}', _nested(5000), "[" * 10_000, '{"w": 1e999}', '{"w": NaN}',
        "{" * 15_000,
        json.dumps({f"key{n}": n for n in range(1000)}), '{"w": ' + "9" * 15_000 + "}", '{"name": "\\ud800"}',
        '{"name": "a\\nb"}', '{"aliases": {"a": "a"}}', "default,off",
        '{"__class__": 1}', '{"name": {"a": []}}',
    ],
)  # fmt: skip
def test_a_hostile_policy_is_a_fault_of_few_words(runner: asyncio.Runner, envoyless: Wire, policy: str) -> None:
    async def told() -> dict[str, Any]:
        call = envoyless.open([(KEY, policy)])
        await call.write(head(mode=ProcessingMode.BUFFERED))
        await call.read()
        await call.write(body(chat()))
        found = metadata(await answer(call))
        call.cancel()
        await until(envoyless.idle)
        return found

    found = runner.run(told())
    assert found["policy"] == "default"
    assert 0 < len(found["x-extproc-policy-error"]) <= 400
    assert found["x-extproc-policy-error"].isprintable()


def test_a_policy_of_a_megabyte_ends_its_stream_alone(runner: asyncio.Runner, envoyless: Wire) -> None:
    async def told() -> grpc.StatusCode:
        call = envoyless.open([(KEY, "x" * 1_000_000)])
        found: grpc.StatusCode = await call.code()
        await until(envoyless.idle)
        return found

    assert runner.run(told()) is grpc.StatusCode.RESOURCE_EXHAUSTED


def _hints() -> Iterator[tuple[str, Any]]:
    deep: Any = HOST
    for _ in range(40):
        deep = [deep]
    yield "many", [f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}:80" for n in range(20_000)]
    yield "one long text", "10.0.0.2:80," * 50_000
    yield "commas", "," * 300_000
    yield "nested", deep
    yield "numbers", [1, None, True, {"a": HOST}]
    yield "a mapping", {HOST: HOST}
    yield "odd", [HOST + "\r\n", HOST + "\0", "\u2028", "x" * 100_000]
    yield "nothing", None


@pytest.mark.parametrize(("hint", "value"), list(_hints()))
def test_hints_without_end_name_nobody(runner: asyncio.Runner, envoyless: Wire, hint: str, value: Any) -> None:
    message = head(mode=ProcessingMode.BUFFERED)
    told = Struct()
    told.update({"x-gateway-destination-endpoint-subset": value})
    message.metadata_context.filter_metadata["envoy.lb.subset_hint"].CopyFrom(told)
    message.metadata_context.filter_metadata[NAMESPACE].update({"policy": "default"})
    loop_s = runner.get_loop().time
    before_s = loop_s()
    _, reply = runner.run(all_said(envoyless, [message, body(chat())]))
    assert loop_s() - before_s < 2, "for one request"
    if hint == "odd":  # white space around a host is none of it
        assert destination(reply) == HOST
    else:
        assert (destination(reply), reply.immediate_response.status.code) == (None, 503)
