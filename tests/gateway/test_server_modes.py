"""The server in full duplex, and where Envoy only observes, over real gRPC."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)

from extproc.core.admissionsettings import PriorityClass
from extproc.core.policy import RoutingPolicy
from extproc.gateway.routepolicy import KEY
from tests.core.fleet import snapshot
from tests.gateway.talk import CHAT_PATH, chat
from tests.gateway.wire import LIMITS, destination, end, head, metadata, response_head, wire
from tests.waiting import until

HOST = snapshot("a").host
DUPLEX = ProtocolConfiguration(request_body_mode=ProcessingMode.FULL_DUPLEX_STREAMED)
FULL = snapshot("a", requests_waiting=100)
BATCH = RoutingPolicy(name="waits", priority="batch")


def duplex(path: str = CHAT_PATH, **changes: Any) -> ProcessingRequest:
    message = head(path, **changes)
    message.protocol_config.CopyFrom(DUPLEX)
    return message


def piece(data: bytes, *, last: bool = False) -> ProcessingRequest:
    return ProcessingRequest(request_body=HttpBody(body=data, end_of_stream=last))


async def read(call: Any, count: int) -> list[ProcessingResponse]:
    return [await asyncio.wait_for(call.read(), 10) for _ in range(count)]


def given_back(replies: Sequence[ProcessingResponse]) -> tuple[bytes, list[bool]]:
    pieces = [one.request_body.response.body_mutation.streamed_response for one in replies]
    return b"".join(one.body for one in pieces), [one.end_of_stream for one in pieces]


async def test_in_full_duplex_the_headers_are_answered_when_the_body_is_whole_and_the_body_comes_back() -> None:
    sent = chat("x" * 70_000)
    async with wire() as envoy:
        call = envoy.open()
        for message in (duplex(), piece(sent[:40_000]), piece(sent[40_000:]), piece(b"", last=True)):
            await call.write(message)
        first, *pieces = await read(call, 4)
        assert destination(first) == HOST
        assert given_back(pieces) == (sent, [False, False, True])
        assert envoy.balancer.requests_open == 1
        await until(lambda: envoy.processor._budget.bytes_reserved == 0)
        assert envoy.balancer.requests_open == 1, "while the answer runs"
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)


async def test_the_host_of_a_full_duplex_request_is_named_though_its_model_is_cut_in_two() -> None:
    sent = chat()
    at = sent.index(b"llama") + 2
    async with wire() as envoy:
        call = envoy.open()
        for message in (duplex(), piece(sent[:at]), piece(sent[at:], last=True)):
            await call.write(message)
        first, *pieces = await read(call, 3)
        assert destination(first) == HOST
        assert metadata(first)["model"] == "llama"
        assert given_back(pieces) == (sent, [False, True])
        assert await end(call) is grpc.StatusCode.OK


async def test_a_full_duplex_request_that_waits_is_not_answered_and_goes_when_there_is_room() -> None:
    classes = {"batch": PriorityClass(queue_ms_max=60_000), "standard": PriorityClass()}
    async with wire(FULL, classes=classes, policies=[BATCH]) as envoy:
        call = envoy.open([(KEY, "waits")])
        for message in (duplex(), piece(chat(), last=True)):
            await call.write(message)
        await until(lambda: envoy.balancer.waiting["batch"][0] == 1)
        envoy.report(snapshot("a"))
        first, *pieces = await read(call, 2)
        assert destination(first) == HOST, "nothing was said before: full duplex has no timeout to put off"
        assert given_back(pieces) == (chat(), [True])
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)


@pytest.mark.parametrize("sent", [b"no json", chat(model="nobody's")])
async def test_a_refusal_is_said_instead_of_everything(sent: bytes) -> None:
    async with wire() as envoy:
        call = envoy.open()
        for message in (duplex(), piece(sent, last=True)):
            await call.write(message)
        (reply,) = await read(call, 1)
        assert reply.WhichOneof("response") == "immediate_response"
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)


async def test_draining_lets_an_upload_that_passes_through_us_come_to_its_end() -> None:
    async with wire() as envoy:
        call = envoy.open()
        await call.write(duplex("/upload"))
        (first,) = await read(call, 1)
        assert first.WhichOneof("response") == "request_headers"
        envoy.processor.drain()
        for data, last in ((b"abc", False), (b"def", True)):
            await call.write(piece(data, last=last))
            (reply,) = await read(call, 1)
            assert given_back([reply]) == (data, [last])
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        await until(envoy.idle)


@pytest.mark.parametrize("fails", ["counting", "replying"])
async def test_an_error_of_ours_gives_the_body_back_all_the_same(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with wire() as envoy:
        if fails == "counting":
            envoy.counter.fails = True
        else:
            monkeypatch.setattr("extproc.gateway.codec._write_destination", _fails)
        call = envoy.open()
        for message in (duplex(), piece(chat()), piece(b"", last=True)):
            await call.write(message)
        first, *pieces = await read(call, 3)
        assert destination(first) == (HOST if fails == "counting" else None)
        assert given_back(pieces) == (chat(), [False, True])
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)


def _fails(*_: object) -> None:
    msg = "a fault of ours"
    raise RuntimeError(msg)


async def test_who_only_observes_is_not_answered_and_the_decision_is_kept() -> None:
    async with wire() as envoy:
        call = envoy.open()
        first = head()
        first.observability_mode = True
        first.protocol_config.request_body_mode = ProcessingMode.STREAMED
        for message in (first, piece(chat()[:20]), piece(chat()[20:], last=True), response_head(200)):
            await call.write(message)
        assert await end(call) is grpc.StatusCode.OK, "and no reply before it"
        assert [one.arm for one in envoy.balancer.decisions(9)] == ["observed"]
        await until(envoy.idle)


async def test_a_stream_that_says_nothing_is_no_request() -> None:
    async with wire() as envoy:
        call = envoy.open()
        assert await end(call) is grpc.StatusCode.OK
        await until(envoy.idle)


async def test_a_body_too_long_is_refused_in_full_duplex_before_it_is_whole() -> None:
    async with wire() as envoy:
        call = envoy.open()
        await call.write(duplex())
        await call.write(piece(b"x" * (LIMITS.body_bytes_max + 1)))
        (reply,) = await read(call, 1)
        assert reply.immediate_response.status.code == 413
        assert envoy.processor._budget.bytes_reserved == 0
        assert await end(call) is grpc.StatusCode.OK
