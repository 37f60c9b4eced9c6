"""`serve` and `agent` as processes that do not trust the network."""

import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.children import Child, ourselves
from tests.certificates import Authority, channel
from tests.serve.served import ANY_PORTS, Serve, Served, asked, refusal, reported
from tests.waiting import until

TOKEN, NEXT = "first-0123456789abcdef", "second-0123456789abcdef"
Start = Callable[..., Awaitable[Child]]


async def nodes(served: Served) -> list[str]:
    return [node["node_id"] for node in (await served.get("/nodes"))[1]["nodes"]]


async def refusals(served: Served) -> list[str]:
    page = await served.page("/metrics")
    return [line for line in page.splitlines() if line.startswith("extproc_peers_refused_total{")]


async def test_an_agent_with_certificate_and_token_is_let_in_and_its_rotated_files_too(
    serve: Serve, tmp_path: Path
) -> None:
    ours = Authority()
    tokens, own = tmp_path / "tokens", tmp_path / "own"
    tokens.write_text(f"{TOKEN}\n")
    own.write_text(f"{NEXT}\n")
    tls = ours.issue("127.0.0.1").written(tmp_path, "server") | {"client_ca": ours.written(tmp_path)}
    served = await serve(
        listen=ANY_PORTS
        | {"tls": {"agents": tls | {"peer_names": ["spiffe://a/gpu", "gpu.example"]}}, "agent_tokens": str(tokens)}
    )
    shown = ours.issue("gpu.example").written(tmp_path, "agent")
    (tmp_path / "agent.yaml").write_text(
        yaml.safe_dump(
            {
                "routers": [served.at["agents"]],
                "tls": {"ca": "ca.crt"} | shown,
                "token_file": "own",
                "engines": [{"node_id": "gpu-1", "engine": "http://127.0.0.1:1"}],
                "interval_s": "100ms",
                "reconnect_backoff_s_max": "200ms",
            }
        )
    )
    agent = await Child.start("agent", ourselves("agent", "--config", str(tmp_path / "agent.yaml")), tmp_path)
    try:
        reason = await agent.logged(r'"reason": ?"UNAUTHENTICATED: a bearer token [^"]*"', within_s=30)
        assert TOKEN not in reason[0]
        assert await nodes(served) == []
        tokens.write_text(f"{TOKEN}\n{NEXT}\n")
        await agent.logged("router reached", within_s=30)
        await until(lambda: nodes(served))
        assert await nodes(served) == ["gpu-1"]
        (counted,) = await refusals(served)
        assert counted.startswith('extproc_peers_refused_total{port="agents",reason="token"} ')
        log = served.child.log.read_text() + agent.log.read_text()
        assert TOKEN not in log
        assert NEXT not in log
    finally:
        await agent.kill()


@pytest.mark.parametrize("kind", ["certificate", "name", "plain text"])
async def test_an_agent_that_is_not_let_in_is_told_why_and_reports_nothing(
    serve: Serve, tmp_path: Path, kind: str
) -> None:
    ours, stranger = Authority(), Authority()
    tls = ours.issue("127.0.0.1").written(tmp_path, "server") | {"client_ca": ours.written(tmp_path)}
    served = await serve(listen=ANY_PORTS | {"tls": {"agents": tls | {"peer_names": ["gpu.example"]}}})
    command = ["--router", served.at["agents"], "--node-id", "gpu-1", "--engine", "http://127.0.0.1:1"]
    if kind != "plain text":
        pair = stranger.issue("gpu.example") if kind == "certificate" else ours.issue("other.example")
        shown = pair.written(tmp_path, "agent")
        command += ["--tls-ca", ours.written(tmp_path)]
        command += ["--tls-certificate", shown["certificate"], "--tls-key", shown["key"]]
    agent = await Child.start("agent", ourselves("agent", *command), tmp_path)
    try:
        status = "PERMISSION_DENIED" if kind == "name" else "UNAVAILABLE"
        await agent.logged(f'"reason": ?"{status}: ', within_s=30)
        assert await nodes(served) == []
    finally:
        await agent.kill()


@pytest.mark.parametrize("port", ["extproc", "agents", "scaler"])
async def test_a_file_that_cannot_be_used_keeps_serve_from_starting(start: Start, tmp_path: Path, port: str) -> None:
    ours = Authority()
    tls = ours.issue("a").written(tmp_path, "server")
    (tmp_path / "server.key").write_bytes(ours.issue("b").key)
    said = await refusal(await start({"listen": ANY_PORTS | {"tls": {port: tls | {"client_ca": "nowhere"}}}}))
    assert said.splitlines() == [
        (
            f"listen.tls.{port}.key: wanted the key of {tmp_path}/server.crt, "
            f"got {tmp_path}/server.key: the key of another certificate"
        ),
        (
            f"listen.tls.{port}.client_ca: wanted a PEM file of certificates, "
            f"got {tmp_path}/nowhere: No such file or directory"
        ),
    ]


async def test_unix_sockets_are_for_our_user_and_group_only(serve: Serve, tmp_path: Path) -> None:
    listen = {name: f"unix:{tmp_path}/{name}.sock" for name in ANY_PORTS}
    before = os.umask(0)  # which serve inherits: the worst that can be
    try:
        served = await serve(listen=listen)
    finally:
        os.umask(before)
    for name in listen:
        assert stat.S_IMODE((tmp_path / f"{name}.sock").stat().st_mode) == 0o660, name
    await reported(served)
    await asked(served.stream())


async def test_a_unix_socket_can_have_tls_too(serve: Serve, tmp_path: Path) -> None:
    ours = Authority()
    tls = ours.issue("serve.example").written(tmp_path, "server") | {"client_ca": ours.written(tmp_path)}
    listen = {"extproc": f"unix:{tmp_path}/x.sock", "tls": {"extproc": tls}}
    served = await serve(listen=ANY_PORTS | listen)
    ask = health_pb2.HealthCheckRequest()
    async with channel(served.at["extproc"], ours, ours.issue("a"), "serve.example") as known:
        stub: Any = health_pb2_grpc.HealthStub(known)
        assert (await stub.Check(ask)).status == health_pb2.HealthCheckResponse.SERVING
    async with channel(served.at["extproc"], ours, None, "serve.example") as unknown:
        stub = health_pb2_grpc.HealthStub(unknown)
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await stub.Check(ask)
