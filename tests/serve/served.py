"""A running `python -m extproc serve`, and what a test says to it."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    HttpBody,
    HttpHeaders,
    ProcessingRequest,
    ProtocolConfiguration,
)
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub
from grpc_health.v1 import health_pb2_grpc

from extproc.children import Child
from extproc.pb import nodes_pb2, nodes_pb2_grpc

ANY_PORTS = {"extproc": "127.0.0.1:0", "agents": "127.0.0.1:0", "admin": "127.0.0.1:0"}


@dataclass
class Served:
    """A running serve and connections to it."""

    child: Child
    at: dict[str, str]
    envoy: grpc.aio.Channel
    agents: grpc.aio.Channel
    http: aiohttp.ClientSession

    @property
    def health(self) -> Any:
        return health_pb2_grpc.HealthStub(self.envoy)

    def stream(self, *metadata: tuple[str, str]) -> Any:
        return ExternalProcessorStub(self.envoy).Process(metadata=metadata)

    def agent(self) -> Any:
        return nodes_pb2_grpc.NodesStub(self.agents).Report()  # type: ignore[no-untyped-call]

    async def page(self, path: str) -> str:
        async with self.http.get(self._url(path)) as response:
            return await response.text()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(f"http://serve{path}" if "unix" in self.at["admin"] else self._url(path)) as response:
            return response.status, await response.json(content_type=None)

    def _url(self, path: str) -> str:
        return f"http://{self.at['admin']}{path}"


Serve = Callable[..., Awaitable[Served]]


def headers() -> ProcessingRequest:
    pairs = {":method": "POST", ":path": "/v1/completions"}
    values = [HeaderValue(key=key, raw_value=value.encode()) for key, value in pairs.items()]
    return ProcessingRequest(
        request_headers=HttpHeaders(headers=HeaderMap(headers=values)),
        protocol_config=ProtocolConfiguration(request_body_mode=ProcessingMode.BUFFERED),
    )


def body(**fields: Any) -> ProcessingRequest:
    text = json.dumps({"model": "m", "prompt": "hello"} | fields)
    return ProcessingRequest(request_body=HttpBody(body=text.encode(), end_of_stream=True))


async def asked(stream: Any, **fields: Any) -> Any:
    """Send one whole request on a stream; the reply that carries the decision."""
    await stream.write(headers())
    assert (await stream.read()).WhichOneof("response") == "request_headers"
    await stream.write(body(**fields))
    return await stream.read()


def snapshot(node_id: str = "gpu-1") -> nodes_pb2.AgentMessage:
    return nodes_pb2.AgentMessage(
        snapshot=nodes_pb2.NodeSnapshot(
            node_id=node_id, host="127.0.0.1:8000", boot_id="b", sequence=1, state=nodes_pb2.NODE_STATE_READY
        )
    )


async def reported(served: Served) -> Any:
    """An agent's open stream on which one node was reported."""
    stream = served.agent()
    await stream.write(snapshot())
    reply = await stream.read()
    assert reply.acknowledgement.verdict == nodes_pb2.Acknowledgement.VERDICT_APPLIED, reply
    return stream


async def refusal(child: Child) -> str:
    """What a serve that cannot start said."""
    assert await child.ended() == 1
    return child.log.read_text()
