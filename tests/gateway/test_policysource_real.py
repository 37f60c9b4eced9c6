"""What Envoy's configuration asks for is what the real Envoy tells us, and its clients have no say in it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from extproc.address import TcpAddress, UnixAddress
from extproc.children import Child, envoy_binary
from extproc.core.policy import RoutingPolicy
from extproc.gateway.answers import POLICY_FAULT_KEY
from extproc.gateway.policysource import ATTRIBUTES, GATEWAY_NAMESPACE, NAMESPACE, ROUTE_METADATA
from extproc.gateway.routepolicy import KEY
from tests.bootstraps import PER_ROUTE, ROUTE, TYPE, cluster, listener, manager, put
from tests.gateway.talk import CHAT_PATH, chat
from tests.gateway.wire import wire
from tests.waiting import until

Json = Any
Puts = Sequence[tuple[str, Json]]

SET_METADATA = f"{TYPE}extensions.filters.http.set_metadata.v3.Config"
SETTER, OURS = "http_filters.0.typed_config", "http_filters.1.typed_config."
HOST, OVER_ROUTE = "route_config.virtual_hosts.0.typed_per_filter_config.", f"{ROUTE}typed_per_filter_config."
ROUTES_OWN = f"{ROUTE}metadata"
TOLD, FAULT = "x-served-by", "x-fault"
NAMES = ("filter", "host", "route", "cluster", "dynamic", "dynamic-of-route", "metadata", "annotation", "client")
INLINE = {"name": "mine", "ttft_s": 1.5, "limits": {"kv_usage_max": 0.5}, "aliases": {"fast": {"m": 2}}}
PLACES = (KEY, NAMESPACE, ATTRIBUTES, ROUTE_METADATA, f"grpc-{KEY}", f"x-envoy-{KEY}", "x-route-metadata")
FORGED = dict.fromkeys(PLACES, "client")
"""Headers of a client that would have a policy."""


def entries(*values: str, key: str = KEY) -> Json:
    return [{"key": key, "value": value} for value in values]


def over(*values: str, key: str = KEY) -> Json:
    return {"@type": PER_ROUTE, "overrides": {"grpc_initial_metadata": entries(*values, key=key)}}


def setting(value: Json, *, allow_overwrite: bool = False) -> Json:
    metadata = {"metadata_namespace": NAMESPACE, "value": value, "allow_overwrite": allow_overwrite}
    return {"@type": SET_METADATA, "metadata": [metadata]}


def own(value: Json) -> Json:
    typed = {"@type": f"{TYPE}config.core.v3.Address", "pipe": {"path": "/x"}}
    return {"filter_metadata": {NAMESPACE: value, "other": {"policy": "x"}}, "typed_filter_metadata": {"typed": typed}}


def annotated(value: str) -> Json:
    resource = {"kind": "HTTPRoute", "name": "llm", "namespace": "default", "annotations": {NAMESPACE: value}}
    return {"filter_metadata": {GATEWAY_NAMESPACE: {"resources": [resource]}}}


def weighted(config: Json) -> Json:
    return {"weighted_clusters": {"clusters": [{"name": "engines", "weight": 1, "typed_per_filter_config": config}]}}


FILTERS: tuple[str, Json] = (f"{OURS}grpc_service.initial_metadata", entries("filter"))
DYNAMIC: tuple[str, Json] = (SETTER, setting({"policy": "dynamic"}))
OWN: tuple[str, Json] = (ROUTES_OWN, own({"policy": "metadata"}))
CASES: dict[str, tuple[Puts, str]] = {
    "nothing": ([], "default"),
    "the filter": ([FILTERS], "filter"),
    "of two of the filter the last": ([(FILTERS[0], entries("route", "filter"))], "filter"),
    "the host before the filter": ([FILTERS, (f"{HOST}ours", over("host"))], "host"),
    "the route before the host": (
        [FILTERS, (f"{HOST}ours", over("host")), (f"{OVER_ROUTE}ours", over("route"))],
        "route",
    ),
    "of two of the route the last": ([(f"{OVER_ROUTE}ours", over("host", "route"))], "route"),
    "the cluster before the route": (
        [(f"{OVER_ROUTE}ours", over("route")), (f"{ROUTE}route", weighted({"ours": over("cluster")}))],
        "cluster",
    ),
    "each key by itself": (
        [FILTERS, (f"{HOST}ours", over("host")), (f"{OVER_ROUTE}ours", over("x", key="x-other"))],
        "host",
    ),
    "a key in upper case": ([FILTERS, (f"{OVER_ROUTE}ours", over("route", key=KEY.title()))], "route"),
    "JSON": ([(f"{OVER_ROUTE}ours", over(json.dumps(INLINE)))], "mine"),
    "dynamic metadata": ([DYNAMIC], "dynamic"),
    "dynamic metadata that is a policy": ([(SETTER, setting(INLINE))], "mine"),
    "dynamic metadata of the route": (
        [(f"{OVER_ROUTE}setter", setting({"policy": "dynamic-of-route"}))],
        "dynamic-of-route",
    ),
    "that of the filter, which the route may not overwrite": (
        [DYNAMIC, (f"{OVER_ROUTE}setter", setting({"policy": "dynamic-of-route"}))],
        "dynamic",
    ),
    "that of the route, which may": (
        [DYNAMIC, (f"{OVER_ROUTE}setter", setting({"policy": "dynamic-of-route"}, allow_overwrite=True))],
        "dynamic-of-route",
    ),
    "keys of both": (
        [(SETTER, setting({"name": "both"})), (f"{OVER_ROUTE}setter", setting({"ttft_s": 1.5}, allow_overwrite=True))],
        "both",
    ),
    "dynamic metadata that is not forwarded": (
        [DYNAMIC, (f"{OURS}metadata_options.forwarding_namespaces", {})],
        "default",
    ),
    "the route's metadata": ([OWN], "metadata"),
    "the route's metadata that is a policy": ([(ROUTES_OWN, own(INLINE))], "mine"),
    "the route's metadata that is JSON": ([(ROUTES_OWN, own({"policy": json.dumps(INLINE)}))], "mine"),
    "the route's metadata that is not asked for": ([OWN, (f"{OURS}request_attributes", [])], "default"),
    "an annotation of Envoy Gateway's": ([(ROUTES_OWN, annotated("annotation"))], "annotation"),
    "all three": ([FILTERS, DYNAMIC, OWN], "filter"),
    "dynamic metadata before the route's": ([DYNAMIC, OWN], "dynamic"),
    "what is empty says nothing": ([(SETTER, setting({"policy": ""})), OWN], "metadata"),
    "what is wrong is not made good elsewhere": (
        [DYNAMIC, OWN, (FILTERS[0], entries("nobody"))],
        "default, for wanted a policy of the configuration, or one as a JSON object, got 'nobody'",
    ),
    "a value that is out of its range": (
        [(SETTER, setting({"limits": {"kv_usage_max": 1.5}}))],
        "default, for limits.kv_usage_max: wanted less than or equal to 1, got 1.5",
    ),
    "one of the route's metadata": (
        [(ROUTES_OWN, own({"ttft_s": -1}))],
        "default, for ttft_s: wanted greater than 0, got -1.0",
    ),
    "one that is too long": (
        [(SETTER, setting({"policy": "a" * 16385}))],
        "default, for wanted at most 16384 bytes, got 16385",
    ),
}
"""What is put into a filter that forwards and asks for everything, and the policy that comes of it, or why it is the
default one."""


def made(puts: Puts) -> Json:
    made = manager()
    made["http_filters"].insert(0, {"name": "setter", "typed_config": {"@type": SET_METADATA}})
    made = put(made, f"{OURS}request_attributes", ["xds.route_name", ROUTE_METADATA])
    made = put(made, f"{OURS}metadata_options.forwarding_namespaces.untyped", [NAMESPACE])
    made = put(made, f"{OURS}metadata_options.receiving_namespaces.untyped", ["extproc"])
    keys = {TOLD: "policy", FAULT: POLICY_FAULT_KEY}
    told = [{"header": {"key": name, "value": f"%DYNAMIC_METADATA(extproc:{key})%"}} for name, key in keys.items()]
    made = put(made, f"{ROUTE}response_headers_to_add", told)
    for path, value in puts:
        made = put(made, path, value)
    return made


async def ask(path: UnixAddress, page: str, body: bytes | None, headers: dict[str, str]) -> aiohttp.ClientResponse:
    method = "GET" if body is None else "POST"
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path.path)) as session,
        session.request(method, f"http://envoy{page}", data=body, headers=headers) as answer,
    ):
        await answer.read()
        return answer


async def test_the_policy_is_the_one_that_the_configuration_asks_for_whatever_clients_send(tmp_path: Path) -> None:
    def socket(name: str) -> UnixAddress:
        return UnixAddress(f"{tmp_path}/{name}")

    async def served(_: web.Request) -> web.Response:
        return web.Response(text="served")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", served)
    runner = web.AppRunner(application)
    sockets = {name: socket(f"l{number}") for number, name in enumerate(CASES)}
    listeners = [listener(made(puts), {"pipe": {"path": sockets[name].path}}) for name, (puts, _) in CASES.items()]
    async with wire(policies=[RoutingPolicy(name=name) for name in NAMES]) as ours:
        processor = cluster("extproc", TcpAddress("127.0.0.1", ours.port))
        document = {
            "admin": {"address": {"pipe": {"path": socket("admin").path}}},
            "static_resources": {
                "listeners": listeners,
                "clusters": [processor, cluster("engines", socket("e"), http2=False)],
            },
        }
        (tmp_path / "envoy.json").write_text(json.dumps(document))
        command: list[str | Path] = [envoy_binary(), "--config-path", tmp_path / "envoy.json"]
        envoy = await Child.start("envoy", [*command, "--concurrency", "1", "--disable-hot-restart"], tmp_path)

        async def is_ready() -> bool:
            envoy.check()
            try:
                return (await ask(socket("admin"), "/ready", None, {})).status == 200
            except aiohttp.ClientError:
                return False

        async def policy(name: str, headers: dict[str, str]) -> str:
            answer = await ask(sockets[name], CHAT_PATH, chat(), headers)
            assert answer.status == 200, name
            fault = answer.headers.get(FAULT, "-")
            return answer.headers.get(TOLD, "nobody") + ("" if fault == "-" else f", for {fault}")

        try:
            await runner.setup()
            await web.UnixSite(runner, socket("e").path).start()
            await until(is_ready, within_s=30)
            served_by = {name: await policy(name, {}) for name in CASES}
            in_spite_of_clients = {name: await policy(name, FORGED) for name in CASES}
        finally:
            await envoy.stop()
            await runner.cleanup()
    wanted = {name: policy for name, (_, policy) in CASES.items()}
    assert served_by == wanted
    assert in_spite_of_clients == wanted
