import json
from pathlib import Path
from typing import Any

import pytest

from extproc.render.description import Description, parse
from extproc.render.envoygateway import ENDPOINTS_MAX, EnvoyGateway, render
from extproc.render.parts import ROUTING_HEADERS
from tests.render import gatewaymesh
from tests.render.gatewaymesh import resources
from tests.render.test_istio import validate

LOAD_SCORE = {"strategy": "load-score"}
LISTED = {"destination": "override-host"}
"""As every policy says that is written in place."""
BATCH = {"prefix": "/batch/v1/", "rewrite": "/v1/", "name": "batch", "policy": LOAD_SCORE}
TLS = {"ca": "/ca.pem"}
BODY_MODES = [
    ("buffered", "Buffered", 33554432),
    ("full-duplex", "FullDuplexStreamed", None),
    ("streamed", "Streamed", None),
    ("buffered-partial", "BufferedPartial", 1048576),
    ("none", None, None),
]


def described(**given: Any) -> Description:
    basic = {
        "destination": "override-host",
        "processor": ["extproc:9002"],
        "nodes": ["10.0.0.7:8000", "10.0.0.8:8000"],
        "routes": [BATCH, {"prefix": "/v1/"}],
    }
    found = parse(basic | given)
    assert isinstance(found, Description), found
    return found


def rendered(at: EnvoyGateway | None = None, **given: Any) -> str:
    text = render(described(**given), at or EnvoyGateway())
    assert isinstance(text, str), text
    return text


def spec(text: str, kind: str, name: str = "extproc") -> Any:
    return resources(text)[kind][name]["spec"]


@pytest.mark.parametrize(("body_mode", "body", "limit"), BODY_MODES)
async def test_envoy_takes_what_envoy_gateway_makes_of_it(
    body_mode: str, body: str | None, limit: int | None, tmp_path: Path
) -> None:
    text = rendered(body_mode=body_mode, fail_open=body_mode != "full-duplex")
    (given,) = spec(text, "EnvoyExtensionPolicy")["extProc"]
    assert given["processingMode"]["request"].get("body") == body
    assert spec(text, "ClientTrafficPolicy").get("connection", {}).get("bufferLimit") == limit
    await validate(gatewaymesh.bootstrap(text), tmp_path)


@pytest.mark.parametrize(
    "given",
    [
        {"nodes": ["engines:8000", "more-engines:8001"], "health_path": None},
        {"nodes": ["[fd00::7]:8000"], "node_http2": True, "fail_open": False},
        {"routes": [{"prefix": "/", "first_tokens": True}, BATCH]},
        {"metadata_shown": ["envoy.filters.http.jwt_authn"], "policy": "chat"},
    ],
)
async def test_envoy_takes_it_with_options(given: dict[str, Any], tmp_path: Path) -> None:
    await validate(gatewaymesh.bootstrap(rendered(**given)), tmp_path)


@pytest.mark.parametrize(
    ("route", "policy", "wanted"),
    [
        ({"prefix": "/v1/"}, "default", None),
        ({"prefix": "/v1/"}, "chat", "chat"),
        ({"prefix": "/v1/", "policy": "batch"}, "default", "batch"),
        ({"prefix": "/v1/", "policy": LOAD_SCORE}, "chat", json.dumps(LOAD_SCORE | LISTED)),
        (
            {"prefix": "/v1/", "first_tokens": True},
            "default",
            '{"name": "first-tokens", "leave_after_first_token": true, "destination": "override-host"}',
        ),
    ],
)
def test_a_routes_policy_is_its_annotation(route: dict[str, Any], policy: str, wanted: str | None) -> None:
    (made,) = resources(rendered(routes=[route], policy=policy))["HTTPRoute"].values()
    given = made["metadata"].get("annotations")
    assert given == (None if wanted is None else {"gateway.envoyproxy.io/extproc.policy": wanted})


@pytest.mark.parametrize(
    ("prefix", "rewrite", "value", "replaced"),
    [
        ("/v1/", None, "/v1", None),
        ("/", None, "/", None),
        ("/batch/v1/", "/v1/", "/batch/v1", "/v1"),
        ("/llm/", "/", "/llm", "/"),
    ],
)
def test_prefixes_are_those_of_the_gateway_api(
    prefix: str, rewrite: str | None, value: str, replaced: str | None
) -> None:
    text = rendered(routes=[{"prefix": prefix, "name": "one", **({} if rewrite is None else {"rewrite": rewrite})}])
    (rule,) = spec(text, "HTTPRoute", "extproc-one")["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": value}}]
    path = {"type": "ReplacePrefixMatch", "replacePrefixMatch": replaced}
    assert rule.get("filters") == (None if replaced is None else [{"type": "URLRewrite", "urlRewrite": {"path": path}}])
    assert rule["timeouts"] == {"request": "0s"}


def test_extproc_may_write_its_metadata_and_is_asked_as_long_as_requests_may_wait() -> None:
    text = rendered(queue_timeout_s=40.5, metadata_shown=["jwt"])
    (given,) = spec(text, "EnvoyExtensionPolicy")["extProc"]
    assert given["metadata"]["writableNamespaces"] == ["extproc", "envoy.lb"]
    assert {"envoy.lb.subset_hint", "extproc.policy", "jwt"} <= set(given["metadata"]["accessibleNamespaces"])
    assert given["messageTimeout"] == "40s500ms"
    assert given["failOpen"] is True
    assert given["backendRefs"] == [{"name": "extproc", "port": 9002}]
    assert given["backendSettings"]["circuitBreaker"]["maxParallelRequests"] == 100000
    assert given["processingMode"]["request"]["attributes"] == ["xds.route_metadata"]


def test_routes_that_want_first_tokens_have_a_policy_of_their_own() -> None:
    text = rendered(routes=[{"prefix": "/v1/", "name": "chat", "first_tokens": True}, BATCH])
    targets = {
        name: ([one["name"] for one in each["spec"]["targetRefs"]], each["spec"]["extProc"][0]["processingMode"])
        for name, each in resources(text)["EnvoyExtensionPolicy"].items()
    }
    assert {name: (refs, mode["response"]) for name, (refs, mode) in targets.items()} == {
        "extproc": (["extproc-batch"], {}),
        "extproc-first-tokens": (["extproc-chat"], {"body": "Streamed"}),
    }


def test_the_listed_nodes_are_tried_in_turn() -> None:
    given = spec(rendered(destinations_max=4), "BackendTrafficPolicy")
    assert given["loadBalancer"] == {
        "type": "RoundRobin",
        "endpointOverride": {"extractFrom": [{"header": "x-gateway-destination-endpoint"}]},
    }
    triggers = {"triggers": ["reset", "retriable-status-codes"], "httpStatusCodes": [503]}
    assert given["retry"] == {"numRetries": 3, "retryOn": triggers}
    for mode in ("streamed", "buffered-partial"):
        assert spec(rendered(body_mode=mode), "BackendTrafficPolicy")["retry"]["numRetries"] == 2, "to other nodes"
    assert [one["name"] for one in given["targetRefs"]] == ["extproc-batch", "extproc-1"]


def test_clients_can_set_no_routing_header() -> None:
    given = spec(rendered(EnvoyGateway(gateway="edge")), "ClientTrafficPolicy")
    assert given["headers"]["earlyRequestHeaders"]["remove"] == list(ROUTING_HEADERS)
    assert given["targetRefs"] == [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"}]


def test_many_nodes_need_more_than_one_backend() -> None:
    nodes = [f"10.0.{number // 200}.{number % 200 + 1}:8000" for number in range(2 * ENDPOINTS_MAX + 1)]
    text = rendered(EnvoyGateway(namespace="engines"), nodes=nodes)
    found = resources(text)
    ends = [one["spec"]["endpoints"] for one in found["Backend"].values()]
    assert [len(one) for one in ends] == [ENDPOINTS_MAX, ENDPOINTS_MAX, 1]
    assert [f"{one['ip']['address']}:{one['ip']['port']}" for each in ends for one in each] == nodes
    (rule,) = spec(text, "HTTPRoute", "extproc-batch")["rules"]
    assert [one["name"] for one in rule["backendRefs"]] == list(found["Backend"])
    assert {one["metadata"]["namespace"] for kind in found.values() for one in kind.values()} == {"engines"}


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ({"destination": "original-dst"}, ["destination"]),
        ({"destination": "original-dst-metadata"}, ["destination"]),
        ({"body_mode": "full-duplex"}, ["fail_open"]),
        ({"processor": ["127.0.0.1:9002"]}, ["processor"]),
        ({"processor": ["extproc.llm.svc:9002"]}, ["processor"]),
        ({"processor": ["unix:/run/extproc.sock"]}, ["processor"]),
        ({"processor": ["one:9002", "two:9002"]}, ["processor"]),
        ({"nodes": ["10.0.0.1:8000", "engines:8000"]}, ["nodes"]),
        ({"nodes": ["unix:/run/engine.sock"]}, ["nodes"]),
        ({"node_tls": TLS, "processor_tls": TLS}, ["processor_tls", "node_tls"]),
        ({"usage": True}, ["usage"]),
        ({"routes": [BATCH, BATCH | {"prefix": "/v2/"}]}, ["routes"]),
    ],
)
def test_what_envoy_gateway_cannot_do_is_told(given: dict[str, Any], paths: list[str]) -> None:
    faults = render(described(**given), EnvoyGateway())
    assert isinstance(faults, list)
    assert [one.path for one in faults] == paths
