"""The least that an ext_proc server in Python can do: read a message, answer it with nothing looked at.

    python -m bench.echo PORT

It names one fixed destination (the environment's DESTINATION). What `serve` costs over it is what we spend ourselves.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator

import grpc
import uvloop
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import add_ExternalProcessorServicer_to_server
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

HEADERS = ProcessingResponse()
HEADERS.request_headers.SetInParent()
BODY = ProcessingResponse()
BODY.request_body.response.clear_route_cache = True
OPTION = BODY.request_body.response.header_mutation.set_headers.add()
OPTION.header.key = "x-envoy-original-dst-host"
OPTION.header.raw_value = os.environ.get("DESTINATION", "").encode()


class Echo:
    """The service."""

    async def Process(  # noqa: N802
        self,
        _requests: AsyncIterator[ProcessingRequest],
        context: grpc.aio.ServicerContext[ProcessingRequest, ProcessingResponse],
    ) -> None:
        """One request."""
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(HEADERS if message.HasField("request_headers") else BODY)


async def run(port: int) -> None:
    """Serve until killed."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 * 1024 * 1024)])
    add_ExternalProcessorServicer_to_server(Echo(), server)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    serving = health_pb2.HealthCheckResponse.SERVING
    await servicer.set("envoy.service.ext_proc.v3.ExternalProcessor", serving)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print(f"listening on {port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(run(int(sys.argv[1])))
