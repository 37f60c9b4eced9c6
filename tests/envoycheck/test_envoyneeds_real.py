"""What `extproc check --envoy` finds of the filter is what the real Envoy does."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
from aiohttp import web
from envoy.config.core.v3.base_pb2 import HeaderValueOption
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import (
    ExternalProcessorServicer,
    add_ExternalProcessorServicer_to_server,
)

from extproc.address import UnixAddress
from extproc.children import Child, envoy_binary
from extproc.config import Config, parse
from extproc.envoycheck import bodies
from extproc.envoycheck.needs import QUOTA_HEADERS, READ_HEADERS, REFUSAL_HEADERS, faults_in
from extproc.envoycheck.processors import Processors, processors_of
from extproc.gateway.codec import DESTINATION_HEADER
from extproc.gateway.routepolicy import KEY
from tests.bootstraps import FILTER, PER_ROUTE, ROUTE, TYPE, bootstrap, cluster, listener, manager, put
from tests.waiting import until

Json = Any

CLAIMS = "envoy.filters.http.jwt_authn"
REFUSAL = (*REFUSAL_HEADERS, *QUOTA_HEADERS)
SHOWN = (*READ_HEADERS, "x-tenant", "x-priority")
RULES, FORWARD, MODE = f"{FILTER}mutation_rules", f"{FILTER}forward_rules", f"{FILTER}processing_mode"
NAMESPACES = f"{FILTER}metadata_options.forwarding_namespaces"
OWN, HOSTS = f"{ROUTE}typed_per_filter_config.ours", "route_config.virtual_hosts.0.typed_per_filter_config.ours"
GOOD_RULES = {"allow_envoy": True}
BUFFERED, NONE = {"request_body_mode": "BUFFERED"}, {"request_body_mode": "NONE"}


def regex(text: str) -> Json:
    return {"regex": text}


def own(**overrides: Json) -> Json:
    return {"@type": PER_ROUTE, "overrides": overrides}


def weighted(config: Json) -> Json:
    cluster = {"name": "engines", "weight": 1, "typed_per_filter_config": {"ours": config}}
    return {"weighted_clusters": {"clusters": [cluster]}}


TRIED: dict[str, list[tuple[str, Json]]] = {
    "nothing": [],
    "no rules": [(RULES, None)],
    "empty rules": [(RULES, {})],
    "all but routing": [(RULES, {"allow_all_routing": True, "disallow_system": True})],
    "nothing may be set": [(RULES, {"disallow_all": True})],
    "nothing may be set, Envoy's included": [(RULES, {"disallow_all": True, "allow_envoy": True})],
    "as shipped before": [(RULES, {"disallow_all": True, "allow_expression": regex("x-envoy-original-dst-host")})],
    "one is allowed": [(RULES, {"allow_expression": regex("x-envoy-original-dst-host")})],
    "expressions match whole names": [
        (RULES, {"disallow_all": True, "allow_expression": regex("x-|content|retry-.*")})
    ],
    "expressions mind their case": [(RULES, {"disallow_all": True, "allow_expression": regex("X-.*|Content-.*")})],
    "unless they say so": [(RULES, {"disallow_all": True, "allow_expression": regex("(?i)X-.*|Content-.*")})],
    "classes of characters": [(RULES, {"disallow_all": True, "allow_expression": regex("[[:alpha:]-]+")})],
    "some are disallowed": [(RULES, {"allow_envoy": True, "disallow_expression": regex("x-ratelimit-.*-tokens")})],
    "disallowed counts more": [
        (RULES, {"allow_expression": regex(".*"), "disallow_expression": regex("content-.*"), "allow_envoy": True})
    ],
    "some are shown": [(FORWARD, {"allowed_headers": {"patterns": [{"exact": ":path"}, {"prefix": "x-"}]}})],
    "rules that forward all": [(FORWARD, {})],
    "names mind their case": [(FORWARD, {"allowed_headers": {"patterns": [{"exact": "X-Tenant"}]}})],
    "unless the pattern does not": [
        (FORWARD, {"allowed_headers": {"patterns": [{"exact": "X-Tenant", "ignore_case": True}, {"suffix": "-id"}]}})
    ],
    "some are hidden": [
        (FORWARD, {"disallowed_headers": {"patterns": [{"contains": "tenant"}, {"exact": ":method"}]}})
    ],
    "hidden counts more": [
        (FORWARD, {"allowed_headers": {"patterns": [{"safe_regex": regex(".*")}]}}),
        (f"{FORWARD}.disallowed_headers", {"patterns": [{"safe_regex": regex("x-.*t.*")}]}),
    ],
    "no namespace": [(NAMESPACES, None)],
    "others' namespace": [(NAMESPACES, {"untyped": ["other"]})],
    "a route's namespaces": [
        (NAMESPACES, None),
        (OWN, own(metadata_options={"forwarding_namespaces": {"untyped": [CLAIMS]}})),
    ],
    "a route without": [(OWN, own(metadata_options={"forwarding_namespaces": {"typed": [CLAIMS]}}))],
    "a route that says nothing of it": [(OWN, own(metadata_options={}))],
    "no mode": [(MODE, None)],
    "no body": [(MODE, NONE)],
    "no head": [(f"{MODE}.request_header_mode", "SKIP")],
    "a route's mode": [(MODE, NONE), (OWN, own(processing_mode=BUFFERED))],
    "a route without a body": [(OWN, own(processing_mode={"request_header_mode": "SEND"}))],
    "a host's mode": [(HOSTS, own(processing_mode=NONE))],
    "a route's mode before the host's": [(HOSTS, own(processing_mode=NONE)), (OWN, own(processing_mode=BUFFERED))],
    "a host's mode beside a route's metadata": [
        (HOSTS, own(processing_mode=NONE)),
        (OWN, own(grpc_initial_metadata=[{"key": "x-other", "value": "1"}])),
    ],
    "a cluster's mode": [(f"{ROUTE}route", weighted(own(processing_mode=NONE)))],
    "asked for by a route": [(OWN, own(grpc_initial_metadata=[{"key": KEY, "value": "absent"}]))],
    "asked for by a cluster": [
        (f"{ROUTE}route", weighted(own(grpc_initial_metadata=[{"key": KEY, "value": "absent"}]))),
        (OWN, own(grpc_initial_metadata=[{"key": KEY, "value": "all"}])),
    ],
    "asked for by a route before the host": [
        (HOSTS, own(grpc_initial_metadata=[{"key": KEY, "value": "absent"}])),
        (OWN, own(grpc_initial_metadata=[{"key": KEY, "value": "all"}])),
    ],
    "the last one of two": [
        (OWN, own(grpc_initial_metadata=[{"key": KEY, "value": "absent"}, {"key": KEY, "value": "all"}]))
    ],
    "the service of a route": [
        (
            OWN,
            own(
                grpc_service={
                    "envoy_grpc": {"cluster_name": "extproc"},
                    "initial_metadata": [{"key": KEY.title(), "value": "100%% absent"}],
                }
            ),
        )
    ],
}
"""What is put into a filter that has all that is needed."""


def tried(name: str) -> Json:
    claims = {
        "name": "claims",
        "typed_config": {
            "@type": f"{TYPE}extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{"metadata_namespace": CLAIMS, "value": {"sub": "somebody"}}],
        },
    }
    made = put(put(manager(), RULES, GOOD_RULES), NAMESPACES, {"untyped": [CLAIMS]})
    made = put(made, f"{FILTER}grpc_service.initial_metadata", [{"key": KEY, "value": "all"}])
    made = put(made, MODE, {"request_body_mode": "BUFFERED", "response_header_mode": "SKIP"})
    for path, value in TRIED[name]:
        made = put(made, path, value)
    made["http_filters"].insert(0, claims)
    return made


def configured(**policy: Json) -> Config:
    made = parse({"policies": {"all": policy}, "quotas": [{"tokens_per_minute": 1}]})
    assert isinstance(made, Config)
    return made


CONFIGURED = (
    configured(tenant_header="x-tenant", priority_header="x-priority", aliases={"fast": "m"}),
    configured(tenant_metadata=f"{CLAIMS}:sub"),
)
"""Two, for a policy has one place for the tenant."""


def found(document: Json, processor: UnixAddress) -> set[str]:
    """What is lost on the way, by the faults."""
    processors = processors_of(document, processor)
    assert isinstance(processors, Processors)
    lost: set[str] = set()
    faults = [fault for one in CONFIGURED for fault in faults_in(processors, one)]
    faults += [one for one in bodies.faults_in(processors, CONFIGURED[0]) if "processing_mode.request_" in one.path]
    for fault in faults:
        if " let through" in fault.wanted:
            kind = "set " if "mutation_rules" in fault.path else "shown "
            lost |= {kind + header for header in fault.wanted.partition(" let through")[0].split(", ")}
        else:
            lost.add(next(one for one in ("header_mode", "body_mode", "namespaces", "metadata") if one in fault.path))
    return lost


class Answering(ExternalProcessorServicer):  # type: ignore[misc]
    """Refuses, or sends a longer body on, and keeps what it was shown."""

    def __init__(self) -> None:
        self.does = "choose"
        self.lost: set[str] = set()

    async def Process(  # noqa: N802
        self, requests: AsyncIterator[ext_proc.ProcessingRequest], context: grpc.aio.ServicerContext[Json, Json]
    ) -> AsyncIterator[ext_proc.ProcessingResponse]:
        if [value for key, value in context.invocation_metadata() or () if key == KEY][-1:] != ["all"]:
            self.lost.add("metadata")
        async for request in requests:
            kind = str(request.WhichOneof("request"))
            self.lost.discard({"request_headers": "header_mode", "request_body": "body_mode"}.get(kind, ""))
            if CLAIMS not in request.metadata_context.filter_metadata:
                self.lost.add("namespaces")
            if kind == "request_headers":
                names = {header.key for header in request.request_headers.headers.headers}
                self.lost |= {f"shown {name}" for name in SHOWN if name not in names}
            reply = ext_proc.ProcessingResponse()
            getattr(reply, kind).SetInParent()
            if self.does == "refuse":
                reply.immediate_response.status.code = 429
                reply.immediate_response.body = b"{}"
                put_headers(reply.immediate_response.headers, dict.fromkeys(REFUSAL, "application/json"))
            elif kind in ("request_headers", "request_body"):
                headers = {DESTINATION_HEADER: "127.0.0.1:1"}
                if kind == "request_body" and self.does == "replace":
                    reply.request_body.response.body_mutation.body = b"another length"
                    headers["content-length"] = "14"
                put_headers(getattr(reply, kind).response.header_mutation, headers)
            yield reply


def put_headers(mutation: ext_proc.HeaderMutation, headers: dict[str, str]) -> None:
    for name, value in headers.items():
        option = mutation.set_headers.add(append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
        option.header.key, option.header.raw_value = name, value.encode()


async def ask(path: str, page: str = "/", body: bytes | None = b"a body") -> tuple[int, dict[str, str]]:
    method, headers = "GET" if body is None else "POST", {"x-tenant": "a", "x-priority": "batch"}
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session,
        session.request(method, f"http://envoy{page}", data=body, headers=headers) as answer,
    ):
        await answer.read()
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}


async def test_what_is_found_is_what_gets_lost_in_the_real_envoy(tmp_path: Path) -> None:
    def socket(name: str) -> UnixAddress:
        return UnixAddress(f"{tmp_path}/{name}")

    reached: list[set[str]] = []

    async def served(request: web.Request) -> web.Response:
        reached.append({name.lower() for name in request.headers})
        return web.Response(text="served")

    clusters = [cluster("extproc", socket("p")), cluster("engines", socket("e"), http2=False)]
    managers = {name: tried(name) for name in TRIED}
    sockets = {name: socket(str(number)).path for number, name in enumerate(TRIED)}
    listeners = [listener(managers[name], {"pipe": {"path": sockets[name]}}) for name in TRIED]
    document = {
        "admin": {"address": {"pipe": {"path": socket("admin").path}}},
        "static_resources": {"listeners": listeners, "clusters": clusters},
    }
    (tmp_path / "envoy.json").write_text(json.dumps(document))
    command: list[str | Path] = [envoy_binary(), "--config-path", tmp_path / "envoy.json"]
    command += ["--concurrency", "1", "--disable-hot-restart"]
    envoy = await Child.start("envoy", command, tmp_path)
    answering, server = Answering(), grpc.aio.server()
    add_ExternalProcessorServicer_to_server(answering, server)
    server.add_insecure_port(str(socket("p")))
    runner = web.AppRunner(application := web.Application())
    application.router.add_post("/", served)

    async def is_ready() -> bool:
        envoy.check()
        try:
            return (await ask(socket("admin").path, "/ready", None))[0] == 200
        except aiohttp.ClientError:
            return False

    async def lost(name: str) -> set[str]:
        answering.lost, answering.does = {"header_mode", "body_mode"}, "choose"
        assert (await ask(sockets[name]))[0] == 200, name
        gone = set(answering.lost)
        if "header_mode" in gone:
            assert DESTINATION_HEADER not in reached[-1], "a choice comes too late, and so does a refusal"
            return {"header_mode"}
        if DESTINATION_HEADER not in reached[-1]:
            gone.add(f"set {DESTINATION_HEADER}")
        answering.does = "replace"
        status, _ = await ask(sockets[name])
        if status != 200:
            assert status == 500, name
            gone.add("set content-length")
        answering.does = "refuse"
        status, headers = await ask(sockets[name])
        assert status == 429, name
        return gone | {f"set {header}" for header in REFUSAL if headers.get(header) != "application/json"}

    try:
        await server.start()
        await runner.setup()
        await web.UnixSite(runner, socket("e").path).start()
        await until(is_ready, within_s=30)
        came = {name: await lost(name) for name in TRIED}
    finally:
        await envoy.stop()
        await server.stop(None)
        await runner.cleanup()
    assert came == {name: found(bootstrap(managers[name], clusters=clusters), socket("p")) for name in TRIED}
