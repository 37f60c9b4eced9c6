"""A gRPC port as `serve` protects it, with a service of every kind of handler behind it."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import LogCapture

from extproc import listening
from extproc.address import TcpAddress
from extproc.config import parse
from extproc.ops.metrics import Metrics
from extproc.peers import ports
from tests.parsing import whole

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream", "unary_written", "stream_written")
"""gRPC's four, and those whose answers are written instead of yielded."""


async def _unary(_: bytes, __: Any) -> bytes:
    return b"answer"


async def _yielded(_: Any, __: Any) -> AsyncIterator[bytes]:
    yield b"answer"
    yield b"answer"


async def _joined(requests: AsyncIterator[bytes], _: Any) -> bytes:
    return b"".join([request async for request in requests])


async def _echoed(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def _written(_: Any, context: Any) -> None:
    await context.write(b"answer")


HANDLERS: dict[str, Any] = {
    "unary_unary": grpc.unary_unary_rpc_method_handler(_unary),
    "unary_stream": grpc.unary_stream_rpc_method_handler(_yielded),
    "stream_unary": grpc.stream_unary_rpc_method_handler(_joined),
    "stream_stream": grpc.stream_stream_rpc_method_handler(_echoed),
    "unary_written": grpc.unary_stream_rpc_method_handler(_written),
    "stream_written": grpc.stream_stream_rpc_method_handler(_written),
}


@dataclass
class Port:
    address: str
    metrics: Metrics
    logged: LogCapture
    now_s: float = 0.0

    def sample(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.metrics.page([]).decode())
        found = [one.value for family in families for one in family.samples if (one.name, one.labels) == (name, labels)]
        return sum(found)

    def events(self, name: str) -> list[Any]:
        return [entry for entry in self.logged.entries if entry["event"] == name]


@contextlib.asynccontextmanager
async def port(listen: dict[str, Any], name: str = "agents") -> AsyncIterator[Port]:
    """One port as `listen` says. Its clock stands still until the test moves it."""
    settings = whole(parse({"listen": listen}))
    logged = LogCapture()
    log = structlog.wrap_logger(None, processors=[logged], wrapper_class=structlog.BoundLogger)
    opened = Port("", Metrics(), logged)
    found = ports.secured(settings.listen, opened.metrics, lambda: opened.now_s, log)
    assert isinstance(found, dict), found
    server = grpc.aio.server(interceptors=found[name].gates, options=listening.GRPC_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", HANDLERS),))
    at = await listening.grpc_port(server, TcpAddress("127.0.0.1", 0), found[name].credentials)
    await server.start()
    opened.address = str(at)
    try:
        yield opened
    finally:
        await server.stop(0)


async def called(channel: grpc.aio.Channel, kind: str = "unary_unary", *metadata: tuple[str, str]) -> str:
    """What comes of one call: `answer`, or the name of gRPC's status. Closes the channel."""
    asks_stream, answers_stream = kind.startswith("stream"), not kind.endswith("unary")
    make = getattr(channel, f"{'stream' if asks_stream else 'unary'}_{'stream' if answers_stream else 'unary'}")
    call = make(f"/t.T/{kind}")([b"answer"].__iter__() if asks_stream else b"ask", metadata=metadata, timeout=20)
    async with channel:
        try:
            answers = {answer async for answer in call} if answers_stream else {await call}
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return b"".join(answers).decode()
