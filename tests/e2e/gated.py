"""What makes a system that can be asked for too much: classes that wait, tenants, a route for each policy."""

import asyncio
import base64
import contextlib
import copy
import hmac
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extproc.address import TcpAddress
from extproc.fleet import BOOTSTRAP
from tests.e2e.reporter import Reporter
from tests.rendered import mapping_of

SERVED = "demo"
"""The model of the slow engines."""
HELD = "held"
"""The model of a node that takes as much as a test says."""
ALIASES = {"fast": SERVED, "stands-for-held": HELD, "h": HELD, "split": {SERVED: 1, HELD: 1}}
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "objective": {"ttft_s": 2.0},
    "patient": {"priority": "nightly", "priority_header": "x-priority", "tenant_header": "x-tenant"},
    "claims": {"priority": "nightly", "tenant_metadata": "envoy.filters.http.jwt_authn:payload.sub"},
    "aliased": {"priority": "nightly", "aliases": ALIASES, "fallback_models": {HELD: SERVED}},
}
"""Each is that of the requests below `/its name/v1/`."""
CONFIG: Mapping[str, Any] = {
    "nodes": {"fresh_s": 60.0, "stale_s": 60.0, "report_interval_s": 0.2, "settle_s": 0, "slow_start_s": 0},
    "policies": POLICIES,
    "classes": [
        {"name": "interactive", "queue_ms_max": 60_000},
        {"name": "nightly", "queue_ms_max": 60_000},
        {"name": "standard"},
    ],
}
_KEY = b"a key that only these tests know"
_JWT_AUTHN = "envoy.filters.http.jwt_authn"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token_of(subject: str) -> str:
    """A JSON Web Token (HS256) that Envoy believes."""
    head = _base64url(json.dumps({"alg": "HS256", "typ": "JWT", "kid": "tests"}).encode())
    claims = {"iss": "tests", "sub": subject, "exp": int(time.time()) + 600}
    signed = f"{head}.{_base64url(json.dumps(claims).encode())}"
    return f"{signed}.{_base64url(hmac.digest(_KEY, signed.encode(), 'sha256'))}"


def write_bootstrap(folder: Path) -> Path:
    """The shipped bootstrap with what its comments tell to add: routes, headers, and a claim that is believed."""
    bootstrap = mapping_of(BOOTSTRAP.read_text())
    (listener,) = bootstrap["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    shipped = {one["name"]: one for one in host["routes"]}
    for policy in POLICIES:
        for kind in ("known", "chosen"):
            route = copy.deepcopy(shipped[f"batch-{kind}"])
            route["name"] = f"{policy}-{kind}"
            route["match"]["prefix"] = f"/{policy}/v1/"
            per_route = route["typed_per_filter_config"]["envoy.filters.http.ext_proc"]
            (said,) = per_route["overrides"]["grpc_initial_metadata"]
            said["value"] = policy
            host["routes"].insert(0, route)
    filters = manager["http_filters"]
    (ours,) = (index for index, one in enumerate(filters) if one["name"] == "envoy.filters.http.ext_proc")
    config = filters[ours]["typed_config"]
    config["forward_rules"]["allowed_headers"]["patterns"] += [{"exact": "x-priority"}, {"exact": "x-tenant"}]
    config["metadata_options"]["forwarding_namespaces"] = {"untyped": [_JWT_AUTHN]}
    keys = {"keys": [{"kty": "oct", "alg": "HS256", "kid": "tests", "k": _base64url(_KEY)}]}
    provider = {"issuer": "tests", "local_jwks": {"inline_string": json.dumps(keys)}, "payload_in_metadata": "payload"}
    believes = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
        "providers": {"tests": provider},
        "rules": [{"match": {"prefix": "/claims/"}, "requires": {"provider_name": "tests"}}],
    }
    filters.insert(ours, {"name": _JWT_AUTHN, "typed_config": believes})
    path = folder / "gated.yaml"
    path.write_text(json.dumps(bootstrap))
    return path


@dataclass(slots=True)
class Got:
    """A request as a node gets it."""

    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass(slots=True)
class Held:
    """The node of `HELD`: it takes no more than the test says, answers at once, and keeps what it got."""

    reporter: Reporter
    at: TcpAddress
    got: list[Got] = field(default_factory=list)

    async def report(self, requests_waiting: int) -> None:
        """100 is a full queue; with 99 there is room for one at a time."""
        await self.reporter.report("held", self.at, model=HELD, waiting_queue_size=requests_waiting)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request of one connection."""
        with contextlib.closing(writer):
            try:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
            except asyncio.IncompleteReadError:
                return  # a connection that was not needed
            headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
            lengths = [int(value) for name, value in headers if name == "content-length"]
            self.got.append(Got(headers, await reader.readexactly(lengths[0])))
            writer.write(b"HTTP/1.1 200 OK\r\nx-engine: held\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
            await writer.drain()


@contextlib.asynccontextmanager
async def holding(agents: TcpAddress) -> AsyncIterator[Held]:
    """The node, which has no room at first."""
    held = Held(Reporter(agents), TcpAddress("127.0.0.1", 0))
    async with await asyncio.start_server(held.serve, "127.0.0.1", 0) as server, held.reporter:
        held.at = TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        await held.report(requests_waiting=100)
        yield held
