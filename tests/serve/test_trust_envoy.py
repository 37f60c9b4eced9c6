"""The real Envoy before a `serve` that wants to see its certificate."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from extproc.address import TcpAddress, UnixAddress
from extproc.children import Child, envoy_binary
from tests.bootstraps import TYPE, cluster, listener, manager, put
from tests.certificates import Authority, Pair
from tests.serve.served import ANY_PORTS, Serve, Served
from tests.waiting import until

NAME = "spiffe://cluster.local/ns/edge/sa/envoy"
STATS = "cluster.extproc.health_check."


def towards(port: str, tls: dict[str, Any] | None) -> Any:
    """Envoy's cluster for serve, with health checks, which go the same way."""
    host, _, number = port.rpartition(":")
    made = cluster("extproc", TcpAddress(host, int(number))) | {
        "health_checks": [
            {
                "timeout": "5s",
                "interval": "0.1s",
                "no_traffic_interval": "0.1s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
            }
        ],
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
    }
    if tls is None:
        return made
    socket = {"@type": f"{TYPE}extensions.transport_sockets.tls.v3.UpstreamTlsContext", "sni": "serve.example"}
    return made | {
        "transport_socket": {
            "name": "envoy.transport_sockets.tls",
            "typed_config": socket | {"common_tls_context": tls},
        }
    }


def context(folder: Path, authority: Authority, own: Pair | None) -> dict[str, Any]:
    """What Envoy's cluster says of certificates."""
    names = [{"san_type": "DNS", "matcher": {"exact": "serve.example"}}]
    trusted = {"filename": authority.written(folder, "trusted")}
    tls: dict[str, Any] = {
        # gRPC wants to be asked for HTTP/2 by TLS too; without this Envoy does not in its health checks.
        "alpn_protocols": ["h2"],
        "validation_context": {"trusted_ca": trusted, "match_typed_subject_alt_names": names},
    }
    if own is not None:
        shown = own.written(folder, "envoy")
        tls["tls_certificates"] = [
            {
                "certificate_chain": {"filename": shown["certificate"]},
                "private_key": {"filename": shown["key"]},
            }
        ]
    return tls


class Asking:
    """An Envoy between a client and an engine, both on unix sockets."""

    def __init__(self, folder: Path) -> None:
        self._client = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(folder / "listen")))
        self._admin = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(folder / "admin")))

    async def ask(self) -> int:
        body = {"model": "m", "prompt": "hello"}
        async with self._client.post("http://envoy/v1/completions", json=body) as answer:
            return answer.status

    async def stat(self, name: str) -> int:
        try:
            async with self._admin.get("http://envoy/stats", params={"filter": f"^{STATS}{name}$"}) as page:
                return int((await page.text()).rpartition(": ")[2] or 0)
        except aiohttp.ClientError:
            return 0

    async def close(self) -> None:
        await self._client.close()
        await self._admin.close()


@contextlib.asynccontextmanager
async def envoy(folder: Path, processor: Any) -> AsyncIterator[Asking]:
    async def answered(_: web.Request) -> web.Response:
        return web.Response(text="served")

    runner = web.AppRunner(application := web.Application())
    application.router.add_post("/{tail:.*}", answered)
    await runner.setup()
    await web.UnixSite(runner, str(folder / "engine")).start()
    engines = cluster("engines", UnixAddress(str(folder / "engine")), http2=False)
    document = {
        "admin": {"address": {"pipe": {"path": str(folder / "admin")}}},
        "static_resources": {
            "listeners": [
                listener(put(manager(), "stat_prefix", "llm"), {"pipe": {"path": str(folder / "listen")}}),
            ],
            "clusters": [processor, engines],
        },
    }
    (folder / "envoy.json").write_text(json.dumps(document))
    command: list[str | Path] = [envoy_binary(), "--config-path", folder / "envoy.json"]
    command += ["--concurrency", "1", "--disable-hot-restart"]
    child = await Child.start("envoy", command, folder)
    asking = Asking(folder)
    try:
        yield asking
    finally:
        await asking.close()
        await child.kill()
        await runner.cleanup()


async def metric(served: Served, start: str) -> float:
    page = await served.page("/metrics")
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(start))


@pytest.fixture
async def ours() -> Authority:
    return Authority()


async def protected(serve: Serve, folder: Path, ours: Authority) -> Served:
    tls = ours.issue("serve.example").written(folder, "serve") | {"client_ca": ours.written(folder)}
    return await serve(listen=ANY_PORTS | {"tls": {"extproc": tls | {"peer_names": ["a.example", NAME]}}})


async def test_envoy_with_an_allowed_certificate_asks_for_requests_and_for_health(
    serve: Serve, tmp_path: Path, ours: Authority
) -> None:
    served = await protected(serve, tmp_path, ours)
    shown = context(tmp_path, ours, ours.issue_uri(NAME))
    async with envoy(tmp_path, towards(served.at["extproc"], shown)) as asking:
        await until(lambda: asking.stat("success"), within_s=15)
        assert await asking.ask() == 200
        assert await metric(served, "extproc_decisions_total{") == 1
        assert await asking.stat("failure") == 0
        assert await metric(served, "extproc_peers_refused_total{") == 0


@pytest.mark.parametrize(
    "wrong", ["no certificate", "a stranger's", "another name", "plain text", "a stranger's serve"]
)
async def test_envoy_without_one_gets_neither_choices_nor_health(
    serve: Serve, tmp_path: Path, ours: Authority, wrong: str
) -> None:
    served = await protected(serve, tmp_path, ours)
    stranger = Authority()
    shown: dict[str, Callable[[], dict[str, Any] | None]] = {
        "no certificate": lambda: context(tmp_path, ours, None),
        "a stranger's": lambda: context(tmp_path, ours, stranger.issue_uri(NAME)),
        "another name": lambda: context(tmp_path, ours, ours.issue("b.example")),
        "plain text": lambda: None,
        "a stranger's serve": lambda: context(tmp_path, stranger, ours.issue_uri(NAME)),
    }
    async with envoy(tmp_path, towards(served.at["extproc"], shown[wrong]())) as asking:
        await until(lambda: asking.stat("failure"), within_s=15)
        assert await asking.ask() == 500
        assert await asking.stat("success") == 0
        assert await metric(served, "extproc_decisions_total{") == 0
        refused = await metric(served, 'extproc_peers_refused_total{port="extproc",reason="name"}')
        assert (refused > 0) == (wrong == "another name")
