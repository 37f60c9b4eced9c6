"""A real gRPC server with the real balancer, and what Envoy would send it."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
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
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub

from extproc import listening
from extproc.config import ServeLimits
from extproc.core.admissionsettings import PriorityClass
from extproc.core.balancer import Balancer
from extproc.core.policy import RoutingPolicy
from extproc.core.request import CountSource, TokenCount
from extproc.core.settings import BalancerSettings, NodeLimits
from extproc.core.snapshot import NodeReported, Snapshot
from extproc.gateway.routepolicy import RoutePolicies
from extproc.gateway.server import ExternalProcessor, grpc_options, register
from extproc.ops.metrics import Metrics
from extproc.prompt import CountedPrompt, Prompt, texts_of
from tests.core.fleet import snapshot
from tests.gateway.talk import CHAT_PATH

LEAVING = RoutingPolicy(name="leaving", leave_after_first_token=True)
Call = Any
"""A stream as the client holds it."""


class Counter:
    """Four bytes a token. Bodies over a thousand bytes wait while `gate` is closed."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        self.fails = False
        self.late: Callable[[TokenCount], None] | None = None

    def count(
        self,
        model: str,  # noqa: ARG002
        prompt: Prompt,
        body_bytes: int,
        late: Callable[[TokenCount], None],
    ) -> CountedPrompt | Awaitable[CountedPrompt]:
        if self.fails:
            msg = "counter is broken"
            raise RuntimeError(msg)
        self.late = late
        tokens = sum(map(len, texts_of(prompt))) // 4
        counted = CountedPrompt(TokenCount(tokens, exact=False, source=CountSource.ESTIMATED))
        return self._wait(counted) if body_bytes > 1000 else counted

    async def _wait(self, counted: CountedPrompt) -> CountedPrompt:
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        return counted


@dataclass
class Wire:
    port: int
    server: grpc.aio.Server
    processor: ExternalProcessor
    ends: list[bool]
    """Whether an access log tells ends, in one place."""
    balancer: Balancer
    policies: RoutePolicies
    counter: Counter
    metrics: Metrics
    stub: Any
    _reports: int = 0

    def open(self, metadata: Sequence[tuple[str, str]] = ()) -> Call:
        return self.stub.Process(metadata=metadata)

    def idle(self) -> bool:
        """Nothing is held for any stream."""
        processor = self.processor
        held = (
            processor.streams_open,
            processor._budget.bytes_reserved,
            len(processor._rests),
            len(processor._waiting),
            self.balancer.requests_open,
        )
        return not any(held) and not any(map(any, self.balancer.waiting.values()))

    def report(self, one: Snapshot) -> None:
        """An agent's next word."""
        self._reports += 1
        self.balancer.observe(NodeReported(replace(one, sequence=1 + self._reports)), time.monotonic())

    def metric(self, line: str) -> bool:
        return line in self.metrics.page(()).decode().splitlines()


LIMITS = ServeLimits(body_bytes_max=100_000, body_bytes_total_max=1_000_000, body_claim_bytes_min=0)


PATIENCE = {"grpc.keepalive_time_ms": 100, "grpc.keepalive_timeout_ms": 10, "grpc.http2.ping_timeout_ms": 10}
"""How much sooner than `serve` these tests lose it."""


def options(limits: ServeLimits) -> list[tuple[str, int]]:
    """The gRPC options of `serve`, but for its patience."""
    return [(name, value // PATIENCE.get(name, 1)) for name, value in [*grpc_options(limits), *listening.GRPC_OPTIONS]]


@asynccontextmanager
async def wire(
    *snapshots: Snapshot,
    limits: ServeLimits = LIMITS,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    classes: dict[str, PriorityClass] | None = None,
    policies: Sequence[RoutingPolicy] = (),
) -> AsyncIterator[Wire]:
    clock = time.monotonic
    settings = BalancerSettings(
        nodes=NodeLimits(fresh_s=3000, stale_s=3000, member_s=3000), **({} if classes is None else {"classes": classes})
    )
    balancer = Balancer(settings, clock() - 60)
    for one in snapshots or (snapshot("a", kv_blocks_total=None, kv_blocks_available=None),):
        balancer.observe(NodeReported(one), clock())
    known = RoutePolicies(
        {one.name: one for one in (RoutingPolicy(name="batch"), LEAVING, *policies)},
        RoutingPolicy(),
        policy_bytes_max=limits.policy_bytes_max,
    )
    counter, metrics = Counter(), Metrics()
    ends = [True]
    processor = ExternalProcessor(
        balancer, known, counter, limits, metrics, clock, boot="test", ends_are_told=lambda: ends[0]
    )
    server = grpc.aio.server(options=options(limits), interceptors=interceptors)
    register(server, processor)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    try:
        yield Wire(port, server, processor, ends, balancer, known, counter, metrics, ExternalProcessorStub(channel))
    finally:
        counter.gate.set()
        await channel.close()
        await server.stop(None)


def head(
    path: str = CHAT_PATH, *, method: str = "POST", content_length: int | None = None, end_of_stream: bool = False
) -> ProcessingRequest:
    pairs = [(":method", method), (":path", path), ("x-request-id", "t-1")]
    if content_length is not None:
        pairs.append(("content-length", str(content_length)))
    headers = HeaderMap(headers=[HeaderValue(key=key, raw_value=value.encode()) for key, value in pairs])
    return ProcessingRequest(
        request_headers=HttpHeaders(headers=headers, end_of_stream=end_of_stream),
        protocol_config=ProtocolConfiguration(request_body_mode=ProcessingMode.BUFFERED),
    )


def body(data: bytes) -> ProcessingRequest:
    return ProcessingRequest(request_body=HttpBody(body=data, end_of_stream=True))


def response_head(status: int) -> ProcessingRequest:
    headers = HeaderMap(headers=[HeaderValue(key=":status", raw_value=str(status).encode())])
    return ProcessingRequest(response_headers=HttpHeaders(headers=headers))


def response_body(data: bytes, *, end_of_stream: bool = False) -> ProcessingRequest:
    return ProcessingRequest(response_body=HttpBody(body=data, end_of_stream=end_of_stream))


def response_trailers() -> ProcessingRequest:
    return ProcessingRequest(response_trailers=HttpTrailers())


async def ask(call: Call, *messages: ProcessingRequest) -> ProcessingResponse:
    """The reply to the last of these."""
    for message in messages:
        await call.write(message)
        reply = await call.read()
        assert reply is not grpc.aio.EOF, await call.code()
    assert isinstance(reply, ProcessingResponse)
    return reply


async def answer(call: Call) -> Any:
    """The reply that comes next; where the request waits for room Envoy is asked for patience before it."""
    reply = await call.read()
    if reply is not grpc.aio.EOF and reply.HasField("override_message_timeout"):
        reply = await call.read()
    return reply


async def end(call: Call) -> grpc.StatusCode:
    """Envoy is through with the request."""
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    code: grpc.StatusCode = await call.code()
    return code


def destination(reply: ProcessingResponse) -> str | None:
    """The host that a reply names."""
    kind = reply.WhichOneof("response")
    if kind not in ("request_headers", "request_body"):
        return None
    options = getattr(reply, kind).response.header_mutation.set_headers
    return options[0].header.raw_value.decode() if options else None


def metadata(reply: ProcessingResponse) -> dict[str, Any]:
    """What access logs see."""
    fields = reply.dynamic_metadata.fields["extproc"].struct_value.fields
    return {key: getattr(value, str(value.WhichOneof("kind"))) for key, value in fields.items()}
