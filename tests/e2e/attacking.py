"""A client that means ill, a server that nobody may be sent to, and the listeners that both are tried on."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from extproc.render.description import Route
from tests.e2e.listeners import DESTINATIONS, Listening, describe
from tests.e2e.modenodes import Node
from tests.e2e.modes import Running, completion, running
from tests.e2e.scripted import CONFIG

Headers = Sequence[tuple[str, str]]
SLOW_S = 2.0
"""How long Envoy waits for serve here."""
AT_ONCE = 16
"""Requests; more would wait for one another on a busy machine."""
CLOSED = "closed.original-dst"
"""Without a way for the time without serve: the only route is that to the chosen node."""
DUPLEX = "duplex.original-dst"
LISTENERS = (*DESTINATIONS, CLOSED, DUPLEX)
NAKED = "naked"
"""As `original-dst`, without what takes clients' headers away."""
ROUTING = (
    "x-envoy-original-dst-host",
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-subset",
    "x-gateway-destination-endpoint-served",
    "x-extproc-policy",
)
SETTINGS: dict[str, Any] = CONFIG | {
    "limits": {"body_bytes_max": 1_000_000},
    "policies": {"observing": {"mode": "observe"}, "off": {"mode": "off"}},
}


def listeners(nodes: Mapping[str, Node]) -> dict[str, Listening]:
    """One for each destination, and those that fail in other ways."""
    same: dict[str, Any] = {"message_timeout_s": SLOW_S, "body_bytes_max": 1_000_000}
    made: dict[str, Listening] = {
        one: Listening(describe("buffered", one, nodes, **same), _passes_trailers) for one in DESTINATIONS
    }
    routes = tuple(Route(prefix=f"/{one}/v1/", rewrite="/v1/", name=one, policy=one) for one in ("observing", "off"))
    routes = (*routes, Route(prefix="/v1/"))
    closed = describe("buffered", "original-dst", nodes, fail_open=False, routes=routes, **same)
    made[CLOSED] = Listening(closed, _passes_trailers)
    made[DUPLEX] = Listening(describe("full-duplex", "original-dst", nodes, **same), _passes_trailers)
    return made | {NAKED: Listening(made["original-dst"].description, _obeys_clients)}


def _passes_trailers(manager: dict[str, Any]) -> None:
    manager["http_protocol_options"] = {"enable_trailers": True}
    manager["delayed_close_timeout"] = "0.05s"  # these tests wait for ends


def _obeys_clients(manager: dict[str, Any]) -> None:
    del manager["early_header_mutation_extensions"]


@dataclass
class Secret:
    """Listens beside the nodes and is none."""

    host: str
    connections: int = 0


@asynccontextmanager
async def secret() -> AsyncIterator[Secret]:
    """The server."""

    async def caught(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.connections += 1
        await reader.read(1000)
        writer.write(b"HTTP/1.1 200 OK\r\nx-secret: got\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(caught, "127.0.0.1", 0)
    found = Secret(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield found
    finally:
        server.close()


@asynccontextmanager
async def attacked(client: aiohttp.ClientSession, folder: Path) -> AsyncIterator[Running]:
    """What is attacked. Fails where a log has a control character at its end."""
    async with running(client, folder, listeners, SETTINGS) as found:
        yield found
    for log in (found.envoy.log, found.serve.child.log):
        text = log.read_bytes().decode()
        assert all(one.isprintable() for line in text.split("\n") for one in line), log


def spoofed(host: str) -> Iterator[Headers]:
    """Headers by which a client names this host, one header or two of one name in each."""
    policy = json.dumps({"mode": "off", "destination": "override-host"})
    for name in ROUTING:
        for spelled in (name, name.upper(), name.title()):
            yield [(spelled, host)]
        yield [(name, host), (name.upper(), host)]
        yield [(name, f"  {host}\t ")]
        yield [(name, f"{host},{host}")]
        yield [(name, f"127.0.0.1:1, {host}")]
        yield [(name, ""), (name, host)]
    yield [("x-extproc-policy", "off"), ("X-Extproc-Policy", policy)]
    yield [(one, host) for one in ROUTING]


@dataclass
class Answered:
    """All that came on a connection."""

    raw: bytes

    @property
    def status(self) -> int:
        """0: the connection was closed without an answer."""
        return int(self.raw.split(b" ", 2)[1]) if self.raw.startswith(b"HTTP/1.") else 0

    @property
    def head(self) -> list[str]:
        """The lines of its head."""
        return self.raw.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")


async def send(url: str, data: bytes, *, upgrade: bool = False, all_of_it: bool = False) -> Answered:
    """These bytes on a connection of their own, and the first answer to them, of an upgrade its head.

    `all_of_it`: whatever comes until Envoy closes the connection.
    """
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    came = bytearray()
    try:
        writer.write(data)
        async with asyncio.timeout(10):
            while piece := await reader.read(65_536):
                came += piece
                head, ends, body = bytes(came).partition(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                if ends and not all_of_it and (upgrade or (length and len(body) >= int(length[1]))):
                    break
    except ConnectionError:
        pass  # what came by then is the answer
    finally:
        writer.transport.abort()
    return Answered(bytes(came))


def request(
    headers: Headers = (),
    *,
    method: str = "POST",
    path: str = "/v1/completions",
    host: str = "x",
    body: bytes | None = None,
    trailers: Headers = (),
) -> bytes:
    """A request after which the connection is closed; without a body that of a completion by model `a`."""
    if body is None:
        body = b"" if method == "GET" else completion("a")
    framing = ("transfer-encoding", "chunked") if trailers else ("content-length", str(len(body)))
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", "connection: close"]
    lines += [f"{name}: {value}" for name, value in ([framing] if body else []) + list(headers)]
    head = "\r\n".join((*lines, "", "")).encode()
    if not trailers:
        return head + body
    ends = "".join(f"{name}: {value}\r\n" for name, value in trailers).encode()
    return head + b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, ends)
