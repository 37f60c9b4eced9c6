"""What the processor's limits admit, and what it still holds afterwards, over real gRPC."""

import asyncio
import contextlib
import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub

from extproc.config import ServeLimits
from extproc.gateway.routepolicy import KEY
from extproc.sizes import KIB, MIB
from tests.core.fleet import snapshot
from tests.gateway.talk import CHAT_PATH, chat
from tests.gateway.wire import ask, body, destination, head, metadata, wire
from tests.waiting import until

HOST = snapshot("a").host


async def test_a_body_little_over_the_limit_is_413_and_one_far_over_it_fails_only_its_stream() -> None:
    async with wire() as envoy:
        other = envoy.open()
        await ask(other, head())
        exact = chat("x" * (100_000 - len(chat(""))))
        assert destination(await ask(envoy.open(), head(), body(exact))) == HOST
        reply = await ask(envoy.open(), head(), body(exact + b" "))
        assert reply.immediate_response.status.code == 413
        call = envoy.open()
        await ask(call, head())
        await call.write(body(b" " * 3_000_000))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert destination(await ask(other, body(chat()))) == HOST


async def test_bodies_over_the_budget_are_429_before_they_come() -> None:
    async with wire(
        limits=ServeLimits(body_bytes_max=10_000, body_bytes_total_max=10_000, body_claim_bytes_min=0)
    ) as envoy:
        first = envoy.open()
        await ask(first, head(content_length=9000))
        reply = await ask(envoy.open(), head(content_length=1001))
        assert reply.immediate_response.status.code == 429
        first.cancel()
        await until(lambda: envoy.metric("extproc_body_bytes_held 0.0"))
        assert destination(await ask(envoy.open(), head(content_length=9000), body(chat()))) == HOST


@pytest.mark.parametrize("policy_bytes_max", [64, 16 * KIB, MIB])
async def test_the_longest_policies_of_filter_and_route_are_taken_and_a_longer_one_is_a_fault(
    policy_bytes_max: int,
) -> None:
    async with wire(limits=ServeLimits(policy_bytes_max=policy_bytes_max)) as envoy:
        longest = '{"limits": {"kv_usage_max": 0.5}}'.ljust(policy_bytes_max)
        told = metadata(await ask(envoy.open([(KEY, longest)] * 2), head(), body(chat())))
        assert (told["policy"], told.get("x-extproc-policy-error")) == ("inline", None)
        told = metadata(await ask(envoy.open([(KEY, longest), (KEY, longest + " ")]), head(), body(chat())))
        assert (told["policy"], told["x-extproc-policy-error"]) == (
            "default",
            f"wanted at most {policy_bytes_max} bytes, got {policy_bytes_max + 1}",
        )


async def test_metadata_far_beyond_the_longest_policies_fails_only_its_stream() -> None:
    async with wire() as envoy:
        other = envoy.open()
        await ask(other, head())
        call = envoy.open([("x-padding", "x" * 63 * KIB)])
        assert destination(await ask(call, head(), body(chat()))) == HOST
        call = envoy.open([("x-padding", "x" * 64 * KIB)])
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert destination(await ask(other, body(chat()))) == HOST


async def test_streams_over_the_limit_are_refused_until_one_ends() -> None:
    async with wire(limits=ServeLimits(streams_max=2)) as envoy:
        streams = [envoy.open() for _ in range(2)]
        for call in streams:
            await ask(call, head())
        refused = envoy.open()
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await refused.details() == "streams_max is 2"
        assert envoy.processor.streams_open == 2
        streams[0].cancel()
        await until(lambda: envoy.processor.streams_open == 1)
        await ask(envoy.open(), head())


class Seen:
    """A message beside the bytes that it came in, which `tracemalloc` counts: what protobuf allocates it does not."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._message = ProcessingRequest.FromString(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


class SeesMessages(grpc.aio.ServerInterceptor):
    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        return grpc.stream_stream_rpc_method_handler(handler.stream_stream, Seen, handler.response_serializer)


@contextlib.contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("path", [CHAT_PATH, "/upload"])
async def test_streams_that_are_decided_hold_no_bodies(path: str) -> None:
    big = body(chat("x" * MIB))
    limits = ServeLimits(body_bytes_max=2 * MIB)
    async with wire(limits=limits, interceptors=[SeesMessages()]) as envoy:
        with traced():
            streams = [envoy.open() for _ in range(5)]
            for call in streams:
                await ask(call, head(path), big)
            await until(lambda: len(envoy.processor._rests) == len(streams))
            gc.collect()
            held, most = tracemalloc.get_traced_memory()
            assert most > MIB, "a body is seen while it is there"
            assert held < MIB / 2


@dataclass
class Relay:
    """A network between. Once it is silent it passes nothing on any more, and closes nothing."""

    port: int
    passed: int = 0
    silent: bool = False


@contextlib.asynccontextmanager
async def relay(port: int) -> AsyncIterator[Relay]:
    between = Relay(0)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while data := await reader.read(65536):
                if not between.silent:
                    between.passed += 1
                    writer.write(data)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, back), copy(there, writer))

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        between.port = server.sockets[0].getsockname()[1]
        yield between


async def test_an_envoy_that_vanishes_without_a_word_leaves_nothing_behind() -> None:
    async with (
        wire() as envoy,
        relay(envoy.port) as between,
        grpc.aio.insecure_channel(f"127.0.0.1:{between.port}") as channel,
    ):
        call = ExternalProcessorStub(channel).Process()
        assert destination(await ask(call, head(), body(chat()))) == HOST
        talked = between.passed
        await until(lambda: between.passed > talked + 12)  # pings go on, beyond the few that follow any message
        assert envoy.balancer.requests_open == 1, "who answers pings is there"
        between.silent = True
        await until(envoy.idle)
