"""What is rendered, before a real Envoy: it takes every combination, and does with requests what it should."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import aiohttp
import grpc
import pytest
import trustme
from aiohttp import web
from envoy.config.core.v3.base_pb2 import HeaderValueOption
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import (
    ExternalProcessorServicer,
    add_ExternalProcessorServicer_to_server,
)
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc.address import TcpAddress
from extproc.children import envoy_binary
from extproc.fleet import Fleet
from extproc.render.bootstrap import render
from extproc.render.description import BodyMode, Description, Destination, parse
from extproc.render.parts import ROUTING_HEADERS

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
AT_ONCE = 2
"""Processes of Envoy."""
DESTINATIONS, BODY_MODES = get_args(Destination), get_args(BodyMode)


def rendered(**mapping: Any) -> str:
    d = parse(mapping)
    assert isinstance(d, Description), d
    text = render(d)
    assert isinstance(text, str), text
    return text


def combinations(folder: Path) -> list[dict[str, Any]]:
    """Every destination with every body mode, every other one open if it can, and half with TLS; then the rest."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    own = authority.issue_cert("extproc")
    own.private_key_and_cert_chain_pem.write_to_path(folder / "own.pem")
    ca, pem = str(folder / "ca.pem"), str(folder / "own.pem")
    nodes = ["10.0.0.1:8000", "[fd00::1]:8000"]
    secured = {
        "processor_tls": {"ca": ca, "certificate": pem, "key": pem, "name": "extproc"},
        "node_tls": {"ca": ca, "name": "engines"},
    }
    made = [
        {
            "destination": destination,
            "body_mode": mode,
            "fail_open": is_open and (mode != "buffered-partial" or destination == "override-host"),
            "nodes": nodes,
            **tls,
        }
        for (destination, mode), is_open, tls in zip(
            itertools.product(DESTINATIONS, BODY_MODES),
            itertools.cycle([True, False]),
            itertools.cycle([secured, {}, {}, secured]),
            strict=False,
        )
    ]
    return [
        *made,
        {"nodes": nodes, "failover": True, "node_http2": True, **secured},
        {"nodes": nodes, "failover": True, "destination": "original-dst-metadata", "body_mode": "full-duplex"},
        {"nodes": ["engine-1:8000", "10.0.0.1:8000"], "processor": ["extproc:9002"], "several_processors": True},
        {"nodes": nodes, "processor": ["unix:/run/a", "unix:/run/b"], "listen": "unix:/tmp/llm", "health_path": None},
        {"nodes": nodes, "node_http2": True, "node_tls": {"ca": ca, "name": "10.0.0.1"}, "websockets": False},
        {"nodes": nodes, "node_tls": {"ca": ca}, "routes": [{"prefix": "/", "first_tokens": True}], "usage": True},
        {
            "nodes": nodes,
            "body_mode": "full-duplex",
            "route_metadata": True,
            "decision_headers": True,
            "policy": {"weights": {"kv_usage": 80}},
            "headers_shown": ["x-tenant"],
            "metadata_shown": ["envoy.filters.http.jwt_authn"],
            "routes": [{"prefix": "/a/", "rewrite": "/v1/", "first_tokens": True, "policy": "batch", "name": "a"}],
        },
    ]


async def refusal(path: Path, text: str) -> str:
    """What a real Envoy says against a bootstrap, by way of this path; nothing if it takes it."""
    path.write_text(text)  # noqa: ASYNC240 - nothing else runs here
    envoy = await asyncio.create_subprocess_exec(
        *(envoy_binary(), "--mode", "validate", "--log-level", "error", "--config-path", str(path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await envoy.communicate()
    return "" if envoy.returncode == 0 else f"{text}\n{output.decode()}"


async def test_envoy_accepts_every_combination(tmp_path: Path) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def tried(number: int, mapping: dict[str, Any]) -> str:
        async with slots:
            return await refusal(tmp_path / f"{number}.yaml", rendered(**mapping))

    made = combinations(tmp_path)
    assert len(made) == len(DESTINATIONS) * len(BODY_MODES) + 7
    refusals = await asyncio.gather(*(tried(*one) for one in enumerate(made)))
    assert [one for one in refusals if one] == []


async def test_extprocs_expression_has_no_room_for_the_headers_of_two_destinations(tmp_path: Path) -> None:
    """Envoy compiles it when it validates, so that each one's fits is proved above."""
    text = rendered(nodes=["10.0.0.1:8000"])
    one = "x-envoy-original-dst-host|content-length|"
    assert text.count(one) == 1
    said = await refusal(tmp_path / "both.yaml", text.replace(one, f"x-gateway-destination-endpoint|{one}"))
    assert "program size" in said


class Processor(ExternalProcessorServicer):  # type: ignore[misc]
    """Names the same host for every request, in header and metadata, whichever Envoy listens to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = ""
        self.policies: list[str] = []
        """What `x-extproc-policy` said to each stream."""
        self.served: Any = None
        """The host that Envoy said served the last answer."""

    async def Process(  # noqa: N802 - the protocol's name
        self, requests: AsyncIterator[ext_proc.ProcessingRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[ext_proc.ProcessingResponse]:
        self.policies += [str(value) for key, value in context.invocation_metadata() or () if key == "x-extproc-policy"]
        async for request in requests:
            kind = str(request.WhichOneof("request"))
            reply = ext_proc.ProcessingResponse()
            getattr(reply, kind).SetInParent()
            if kind == "request_body":
                common = reply.request_body.response
                common.clear_route_cache = True
                option = common.header_mutation.set_headers.add(
                    append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
                )
                option.header.key, option.header.raw_value = self.name, self.host.encode()
                reply.dynamic_metadata.update({"envoy.lb": {self.name: self.host}})
            if kind == "response_headers":
                self.served = request.metadata_context.filter_metadata["envoy.lb"][f"{self.name}-served"]
            yield reply


@asynccontextmanager
async def engine(name: str) -> AsyncIterator[tuple[TcpAddress, list[Any]]]:
    """An engine that answers everything with its name, and the headers that it got."""
    got: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        got.append(dict(request.headers))
        return web.Response(text=name)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield TcpAddress("127.0.0.1", runner.addresses[0][1]), got
    finally:
        await runner.cleanup()


@asynccontextmanager
async def listening(processor: Processor) -> AsyncIterator[tuple[grpc.aio.Server, int]]:
    """A server that is not started yet, and its port."""
    server = grpc.aio.server()
    add_ExternalProcessorServicer_to_server(processor, server)
    health_pb2_grpc.add_HealthServicer_to_server(healthy := health.aio.HealthServicer(), server)
    await healthy.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    try:
        yield server, server.add_insecure_port("127.0.0.1:0")
    finally:
        await server.stop(None)


@pytest.mark.parametrize("destination", DESTINATIONS)
async def test_extproc_names_the_node_and_a_client_never_does(destination: Destination, tmp_path: Path) -> None:
    listed = destination == "override-host"
    processor = Processor("x-gateway-destination-endpoint" if listed else "x-envoy-original-dst-host")
    async with (
        listening(processor) as (server, port),
        engine("known") as (known, _),
        engine("chosen") as (chosen, got),
        engine("evil") as (evil, robbed),
    ):
        nodes = [str(known), str(chosen)] if listed else [str(known)]
        path = tmp_path / "envoy.yaml"
        path.write_text(
            rendered(destination=destination, nodes=nodes, processor=[f"127.0.0.1:{port}"], health_path=None)
        )
        # A host that no cluster knows comes first where a list may name several.
        processor.host = f"127.0.0.1:1,{chosen}" if listed else str(chosen)
        spoofed = dict.fromkeys(ROUTING_HEADERS, str(evil))
        async with Fleet(tmp_path) as fleet, aiohttp.ClientSession() as client:
            envoy = await fleet.envoy(None, [], bootstrap=path)

            async def ask() -> str:
                async with client.post(f"{envoy.url}/v1/completions", data=b"{}", headers=spoofed) as response:
                    return await response.text()

            # Nobody answers yet: the known nodes serve.
            assert {await ask() for _ in range(4)} <= {"known", "chosen" if listed else "known"}
            await server.start()

            async def asked() -> bool:
                await ask()
                return bool(processor.policies)

            await fleet.until("the processor", asked)
            assert [await ask() for _ in range(4)] == ["chosen"] * 4
            assert set(processor.policies) == {"default"}
            assert processor.served == (str(chosen) if listed else None)
            headers = {key.lower(): value for key, value in got[-1].items()}
            shown = {key: value for key, value in headers.items() if key in ROUTING_HEADERS}
            header = {} if destination == "original-dst-metadata" else {processor.name: processor.host}
            assert shown == header, "of metadata no header is made"
            await server.stop(None)
            assert {await ask() for _ in range(4)} <= {"known", "chosen" if listed else "known"}
    assert robbed == []
