"""Clients that name hosts and paths in ways that parsers disagree about, and texts that would become headers."""

import asyncio
import json
import posixpath
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import aiohttp
import grpc
import pytest
import pytest_asyncio

from tests.e2e.attacking import LISTENERS, ROUTING, Secret, attacked, request, secret, send
from tests.e2e.listeners import NODES
from tests.e2e.modes import Running, completion

PATH = "/v1/completions"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(client: aiohttp.ClientSession, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with attacked(client, tmp_path_factory.mktemp("paths")) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def other() -> AsyncIterator[Secret]:
    """Beside the nodes. Nobody may be sent there."""
    async with secret() as found:
        yield found
    assert found.connections == 0, "somebody was sent there"


@pytest.mark.parametrize(
    "target", ["http://HOST", "https://HOST", "http://x@HOST", "http://HOST@x", "ftp://HOST", "//HOST", ""]
)
@pytest.mark.parametrize(
    "host", ["HOST", "x\r\nhost: HOST", "x, HOST", "HOST\r\nx-forwarded-host: HOST\r\nforwarded: host=HOST"]
)
async def test_no_authority_is_a_destination(system: Running, other: Secret, target: str, host: str) -> None:
    spelled = request(path=target + PATH, host=host).replace(b"HOST", other.host.encode())
    answered = await asyncio.gather(*(send(system.urls[name], spelled) for name in LISTENERS))
    statuses = {one.status for one in answered}
    assert statuses == {200} or statuses <= {0, 400, 403, 404}, "all listeners read a request alike"
    got = system.got()
    assert [(one.node, one.path) for one in got] == ([("a", PATH)] * len(LISTENERS) if statuses == {200} else [])


@pytest.mark.parametrize("line", [
    "CONNECT HOST HTTP/1.1", "CONNECT /v1/completions HTTP/1.1", "CONNECT http://HOST/v1/x HTTP/1.1",
    "GET HOST HTTP/1.1", "GET HOST/v1/completions HTTP/1.1", "OPTIONS * HTTP/1.1",
    "GET /v1/x HTTP/1.1 HTTP/1.1", "GET http:///v1/x HTTP/1.1", "GET /v1/x",
])  # fmt: skip
async def test_no_request_line_opens_a_way_out(system: Running, other: Secret, line: str) -> None:
    data = f"{line}\r\nhost: HOST\r\nconnection: close\r\nupgrade: tcp\r\n\r\n".replace("HOST", other.host).encode()
    for name in LISTENERS:
        assert (await send(system.urls[name], data)).status in (0, 400, 403, 404, 426, 505), line
    assert system.got() == []


async def test_over_http2_neither(system: Running, other: Secret) -> None:
    for name in LISTENERS:
        options = [("grpc.default_authority", other.host)]
        async with grpc.aio.insecure_channel(system.urls[name].removeprefix("http://"), options=options) as channel:
            for path in ("/v1/rerank", "/v1/../metrics", "//metrics", "/metrics"):
                spoofed = tuple((header, other.host) for header in ROUTING)
                method: Any = channel.unary_unary(path)
                call = method(b"{}", metadata=spoofed)
                assert await call.code() is not grpc.StatusCode.OK, "a node's answer is none of gRPC's"
    got = system.got()
    assert [(one.method, one.path) for one in got] == [("POST", "/v1/rerank")] * len(LISTENERS)
    assert {one.node for one in got} <= set(NODES)


@pytest.mark.parametrize("path", [
    "/v1/../metrics", "/v1/%2e%2e/metrics", "/v1/%2E./metrics", "/v1/..%2fmetrics", "/v1/..%5cmetrics",
    "/v1\\..\\metrics", "/v1//../../metrics", "//metrics", "/%2fmetrics", "/v1/./.././metrics", "/v1/x/..//../metrics",
    "/%76%31/../metrics", "/v1/%2e%2e%2fmetrics", "/v1%2f..%2fmetrics", "http://x/v1/../metrics", "http://x//metrics",
    "/v1/%252e%252e/metrics", "/v1/..;/metrics", "/v1/;/../../metrics", "/v1/completions#/../../metrics",
    "/v1/completions?/../../metrics", "/v1/completions%3f/../../metrics", "/v1/completions%23/../../../metrics",
    "/v1/%c0%ae%c0%ae/metrics", "/v1/%u002e%u002e/metrics", "/v1/%00/../../metrics", "/v1/..%00/metrics", "/v1/%",
    "/V1/metrics", "/v1", "/v1.metrics", "/%2e/metrics", "metrics", "", "/v1/\t/metrics", "/v1/é/../../metrics",
])  # fmt: skip
async def test_nodes_are_asked_for_nothing_but_the_api(system: Running, path: str) -> None:
    for name in LISTENERS:
        assert (await send(system.urls[name], request(method="GET", path=path))).status in (0, 200, 400, 404), name
    for got in system.got():
        sent = urlsplit(got.path).path
        assert sent.startswith("/v1/"), sent
        assert posixpath.normpath(unquote(sent)).startswith("/v1"), sent
        assert not {".", ".."} & set(unquote(sent).replace("\\", "/").split("/")), sent


@pytest.mark.parametrize("path", [
    "/v1/%63ompletions", "/v1/c%6Fmpletions", "//v1//completions", "/v1/x/../completions", "/v1/%2e/completions",
    "/v1%2fcompletions", "/%76%31/completions", "/v1/completions?", "/v1/completions?x=/v1/rerank", "http://x/v1/completions",
    "/v1/rerank/../completions", "/v1/.//completions",
])  # fmt: skip
async def test_inference_by_another_spelling_is_inference(system: Running, path: str) -> None:
    """Else limits, quotas and the ledger would not see what an engine computes."""
    for name in LISTENERS:
        answered = await send(system.urls[name], request(path=path))
        assert answered.status == 200, (name, answered.raw)
        (latest,) = await system.decisions()
        (got,) = system.got()
        assert (got.node, urlsplit(got.path).path, latest["model"]) == ("a", PATH, "a"), (name, got, latest)


@pytest.mark.parametrize("framing", [
    "content-length: 60\r\ntransfer-encoding: chunked", "transfer-encoding: chunked\r\ntransfer-encoding: identity",
    "transfer-encoding: xchunked", "transfer-encoding : chunked", "transfer-encoding:\x0bchunked",
    "content-length: 0\r\ncontent-length: 60", "content-length: +60", "content-length: 0x3c", "content-length: 6 0",
    "x: y\n transfer-encoding: chunked", "content-length: 60, 0", "x: y\rtransfer-encoding: chunked",
])  # fmt: skip
async def test_no_second_request_is_smuggled(system: Running, other: Secret, framing: str) -> None:
    inner = request([(name, other.host) for name in ROUTING], method="GET", path="/metrics", host=other.host)
    data = f"POST {PATH} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n0\r\n\r\n".encode() + inner
    answered = await asyncio.gather(*(send(system.urls[name], data, all_of_it=True) for name in LISTENERS))
    statuses = {one.raw.split(b"HTTP/1.1 ")[-1][:3] for one in answered}
    assert statuses <= {b"", b"200", b"400", b"501"}, "no answer of a path that is not there"
    assert {(got.method, got.path, got.size) for got in system.got()} <= {("POST", PATH, 0)}


HOSTILE = [
    "a\r\nset-cookie: x=1",
    "a\nset-cookie: x=1",
    "a\0",
    "a\u2028b",
    "a\u0085",
    "\x1b[31m",
    "\u202ea",
    "x" * 10_000,
    "%0d%0a",
]
BODIES: dict[str, Callable[[str], Any]] = {
    "model": lambda text: {"model": text, "prompt": "x"},
    "role": lambda text: {"model": "a", "messages": [{"role": text, "content": "x"}]},
    "type": lambda text: {"model": "a", "messages": [{"role": "user", "content": [{"type": text}]}]},
    "key": lambda text: {"model": "a", "prompt": {text: 1}},
    "number": lambda text: {"model": "a", "prompt": "x", "max_tokens": text},
    "stream": lambda text: {"model": "a", "prompt": "x", "stream": text, "n": text, "stop": {text: text}},
}


@pytest.mark.parametrize("field", BODIES)
async def test_texts_of_a_body_become_no_headers(system: Running, field: str) -> None:
    path = "/v1/chat/completions" if field in ("role", "type") else PATH
    for text in HOSTILE:
        for name in LISTENERS:
            body = json.dumps(BODIES[field](text)).encode()
            answered = await send(system.urls[name], request(path=path, body=body))
            assert answered.status in (200, 400, 404), answered.raw
            names = [line.partition(":")[0] for line in answered.head[1:]]
            assert "set-cookie" not in names
            assert names.count("x-extproc-reason") == 1
            assert all(line.isprintable() or not line.isascii() for line in answered.head), answered.head
            assert len(answered.raw) < 3_000, "what a client says is repeated in short"
    system.got()
    await system.at_rest()


async def test_headers_with_odd_bytes_stand_in_no_page_as_they_are(system: Running) -> None:
    odd = b"\xff\xe2\x80\xa8\xc2\x85\xe2\x80\xae" + b"y" * 500
    for name in LISTENERS:
        for header in (b"x-request-id", b"x-model", b"user-agent", b"x-priority"):
            data = request([("HEADER", "VALUE")], body=completion("nobodys"))
            data = data.replace(b"HEADER", header).replace(b"VALUE", odd)
            assert (await send(system.urls[name], data)).status == 404, header
    for page in ("decisions?limit=100", "nodes", "metrics"):
        async with system.client.get(f"http://{system.serve.admin}/{page}") as answer:
            text = (await answer.read()).decode()
        assert all(one.isprintable() or one == "\n" for one in text), page
        assert "y" * 200 not in text, page


async def test_what_a_client_asks_for_is_told_as_it_is(system: Running) -> None:
    """The other tests would pass as well if nothing were told."""
    answered = await send(system.urls["original-dst"], request(body=completion("nobody's é")))
    assert answered.status == 404
    assert any("nobody's Ã©" in line for line in answered.head if line.startswith("x-extproc-reason")), answered.head
