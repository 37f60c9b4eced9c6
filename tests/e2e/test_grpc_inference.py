"""gRPC inference through extproc's filter: KServe's service, as Triton and TensorRT-LLM have it, in every body mode.

Its bodies are no JSON, so they are not read: the fallback chooses a node, and messages pass as they come. A stream of
messages both ways has no end to wait for.
"""

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from extproc.address import TcpAddress
from tests.e2e.edited import HTTP_OPTIONS, Edited, Gateway, Json, gateway
from tests.e2e.test_websocket import BODY_MODES, with_mode
from tests.waiting import until

SERVICE = "/inference.GRPCInferenceService/"
UNARY, STREAM = f"{SERVICE}ModelInfer", f"{SERVICE}ModelStreamInfer"
REQUEST = b"\x0a\x04demo" + bytes(3000)
"""A `ModelInferRequest`: its first field is the model's name."""
BAD = b"\x0a\x03bad"
HEARD_WITHIN_S = 10
Unary = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
Stream = grpc.aio.StreamStreamCall[bytes, bytes]


@dataclass
class Node(grpc.GenericRpcHandler):
    """Says every message back. Knows its messages as bytes: what passes must not change."""

    got: list[bytes] = field(default_factory=list)
    streams_ended: int = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        match handler_call_details.method:
            case method if method == UNARY:
                return grpc.unary_unary_rpc_method_handler(self._infer)
            case method if method == STREAM:
                return grpc.stream_stream_rpc_method_handler(self._stream)
        return None

    async def _infer(self, message: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        self.got.append(message)
        if message == BAD:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such model")
        return b"re " + message

    async def _stream(self, messages: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        try:
            async for message in messages:
                self.got.append(message)
                yield b"re " + message
        finally:
            self.streams_ended += 1


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[TcpAddress, Node]]:
    node, server = Node(), grpc.aio.server()
    server.add_generic_rpc_handlers([node])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield TcpAddress("127.0.0.1", port), node
    finally:
        await server.stop(0)


def with_grpc(mode: str) -> Edited:
    """Routes and clusters of their own, for gRPC needs HTTP/2 to the nodes."""
    edited = with_mode(mode)
    for name in ("chosen-node", "known-nodes"):
        cluster = copy.deepcopy(edited.cluster(name))
        cluster["name"] = f"{name}-grpc"
        options = cluster["typed_extension_protocol_options"][HTTP_OPTIONS]
        options["explicit_http_config"] = {"http2_protocol_options": {}}
        if "health_checks" in cluster:
            cluster["health_checks"] = [{**_timing(cluster), "tcp_health_check": {}}]
        edited.clusters.append(cluster)
    routes = edited.host["routes"]
    (present,) = (one["match"]["headers"] for one in routes if one["name"] == "chosen")
    routes[:0] = [
        _route("grpc-chosen", "chosen-node-grpc", headers=present),
        _route("grpc-known", "known-nodes-grpc"),
    ]
    return edited


def _timing(cluster: Json) -> Json:
    (check,) = cluster["health_checks"]
    return {key: value for key, value in check.items() if not key.endswith("health_check")}


def _route(name: str, cluster: str, **match: Any) -> Json:
    return {"name": name, "match": {"prefix": SERVICE, **match}, "route": {"cluster": cluster, "timeout": "0s"}}


@asynccontextmanager
async def running_with(
    client: aiohttp.ClientSession, folder: Path, mode: str
) -> AsyncIterator[tuple[Gateway, grpc.aio.Channel, Node]]:
    """A node that speaks gRPC where its agent says it listens, and a client's channel."""
    async with AsyncExitStack() as stack:
        address, node = await stack.enter_async_context(serving())
        running = await stack.enter_async_context(gateway(client, folder, with_grpc(mode), []))
        await running.reporter.report("node", address)
        await running.ready("node")
        yield running, await stack.enter_async_context(channel_to(running)), node
        await running.all_closed()


@asynccontextmanager
async def channel_to(running: Gateway) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(running.envoy.url.removeprefix("http://")) as channel:
        yield channel


@pytest.mark.parametrize("mode", BODY_MODES)
async def test_a_call_reaches_a_node_of_ours_and_nothing_in_it_changes(
    client: aiohttp.ClientSession, tmp_path: Path, mode: str
) -> None:
    async with running_with(client, tmp_path, mode) as (running, channel, node):
        infer: Unary = channel.unary_unary(UNARY)
        assert await infer(REQUEST, timeout=HEARD_WITHIN_S) == b"re " + REQUEST
        assert node.got == [REQUEST]
        assert (await running.log_of(UNARY))["node"] == "node"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(BAD, timeout=HEARD_WITHIN_S)
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "no such model")


@pytest.mark.parametrize("mode", BODY_MODES)
async def test_a_stream_both_ways_is_answered_message_by_message(
    client: aiohttp.ClientSession, tmp_path: Path, mode: str
) -> None:
    async with running_with(client, tmp_path, mode) as (_, channel, node), asyncio.timeout(HEARD_WITHIN_S):
        call: Stream = channel.stream_stream(STREAM)()
        sent = [REQUEST, b"", b"\x0a\x04last"]
        for message in sent:
            await call.write(message)
            assert await call.read() == b"re " + message
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        assert node.got == sent


async def test_a_client_that_leaves_ends_its_stream_at_the_node(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with running_with(client, tmp_path, "BUFFERED") as (_, channel, node):
        call: Stream = channel.stream_stream(STREAM)()
        await call.write(REQUEST)
        async with asyncio.timeout(HEARD_WITHIN_S):
            assert await call.read() == b"re " + REQUEST
        call.cancel()
        await until(lambda: node.streams_ended == 1)
