import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from extproc.children import envoy_binary
from extproc.core.settings import Fault
from extproc.render.description import Description, parse
from extproc.render.istio import Istio, render
from tests.render import istiomesh
from tests.render.istiomesh import cluster, documents, manager, routes

SERVICE = "engines.llm.svc.cluster.local"
ENGINES = f"outbound|8000||{SERVICE}"
EXT_PROC = "envoy.filters.http.ext_proc"
IDENTITIES = "spiffe://cluster.local/ns/llm/"
BATCH = {"prefix": "/batch/v1/", "rewrite": "/v1/", "name": "batch", "policy": {"strategy": "load-score"}}
ROUTES = [BATCH, {"prefix": "/v1/"}]
TLS = {"ca": "/etc/ssl/certs/ca-certificates.crt", "name": "engines.example"}
HEADERS = [{"name": "x-envoy-original-dst-host", "present_match": True}]
TOLD = [{"filter": "envoy.lb", "path": [{"key": "x-envoy-original-dst-host"}], "value": {"present_match": True}}]


def described(**given: Any) -> Description:
    basic = {"processor": ["extproc.llm.svc.cluster.local:9002"], "nodes": [f"{SERVICE}:8000"], "routes": ROUTES}
    found = parse(basic | given)
    assert isinstance(found, Description), found
    return found


def rendered(istio: Istio | None = None, **given: Any) -> str:
    text = render(described(**given), istio or Istio())
    assert isinstance(text, str), text
    return text


async def validate(made: Any, folder: Path) -> None:
    path = folder / "envoy.json"
    path.write_text(json.dumps(made))
    envoy = await asyncio.create_subprocess_exec(
        *(envoy_binary(), "--mode", "validate", "--config-path", str(path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await envoy.communicate()
    assert envoy.returncode == 0, output.decode()


@pytest.mark.parametrize("destination", ["original-dst", "original-dst-metadata", "override-host"])
@pytest.mark.parametrize("body_mode", ["buffered", "full-duplex", "streamed", "buffered-partial", "none"])
async def test_envoy_takes_what_istio_makes_of_it(destination: str, body_mode: str, tmp_path: Path) -> None:
    is_closed = body_mode == "buffered-partial" and destination != "override-host"
    made = istiomesh.bootstrap(rendered(destination=destination, body_mode=body_mode, fail_open=not is_closed))
    actions = [one["route"] for one in routes(made) if "route" in one]
    streams = body_mode in ("streamed", "buffered-partial")
    assert {"retry_policy" in one for one in actions} == {not streams or destination == "override-host"}
    await validate(made, tmp_path)


@pytest.mark.parametrize(
    ("istio", "given"),
    [
        (Istio(context="sidecar", labels=()), {}),
        (Istio(mesh_tls=IDENTITIES), {}),
        (Istio(mesh_tls=IDENTITIES), {"destination": "override-host", "node_http2": True}),
        (Istio(), {"fail_open": False}),
        (Istio(), {"node_tls": TLS, "processor_tls": TLS | {"name": "extproc"}, "usage": True}),
        (Istio(), {"processor": ["unix:/run/extproc.sock"], "routes": [{"prefix": "/", "first_tokens": True}]}),
        (Istio(), {"route_metadata": True, "headers_shown": ["x-tenant"], "metadata_shown": ["jwt"]}),
    ],
)
async def test_envoy_takes_it_with_options(istio: Istio, given: dict[str, Any], tmp_path: Path) -> None:
    await validate(istiomesh.bootstrap(rendered(istio, **given)), tmp_path)


@pytest.mark.parametrize(
    ("destination", "named"),
    [("original-dst", {"headers": HEADERS}), ("original-dst-metadata", {"dynamic_metadata": TOLD})],
)
def test_a_request_starts_on_the_virtual_services_route_and_moves_once_a_destination_is_named(
    destination: str, named: dict[str, Any]
) -> None:
    made = istiomesh.bootstrap(rendered(destination=destination))
    found = [(one["name"], one["match"], one.get("route", {}).get("cluster")) for one in routes(made)]
    assert found[1:] == [
        ("batch-chosen", {"prefix": "/batch/v1/"} | named, "chosen-node"),
        ("batch", {"prefix": "/batch/v1/"}, ENGINES),
        ("llm-chosen", {"prefix": "/v1/"} | named, "chosen-node"),
        ("llm", {"prefix": "/v1/"}, ENGINES),
    ]
    assert found[0][0] == "no-adapters"
    assert routes(made)[0]["direct_response"]["status"] == 404


def test_both_of_a_routes_say_the_same_of_policy_time_rewrite_and_size() -> None:
    made = istiomesh.bootstrap(rendered(body_bytes_max=2_000_000, idle_timeout_s=7))
    by_name = {one["name"]: one for one in routes(made)}
    for name, policy in (("batch", '{"strategy": "load-score"}'), ("llm", None)):
        for one in (by_name[name], by_name[f"{name}-chosen"]):
            overrides = one["typed_per_filter_config"][EXT_PROC]["overrides"]
            assert overrides == (
                {} if policy is None else {"grpc_initial_metadata": [{"key": "x-extproc-policy", "value": policy}]}
            )
            assert one["request_body_buffer_limit"] == 2_000_000
            action = one["route"]
            assert (action["timeout"], action["idle_timeout"]) == ("0s", "7s")
            assert action.get("prefix_rewrite") == ("/v1/" if name == "batch" else None)
            assert action["retry_policy"]["num_retries"] == 1


def test_extproc_is_asked_on_its_routes_only() -> None:
    made = istiomesh.bootstrap(rendered(usage=True))
    usage, asked, router = manager(made)["http_filters"]
    assert (usage["disabled"], asked["disabled"]) == (True, True)
    assert [usage["name"], asked["name"], router["name"]] == ["usage-of-answers", EXT_PROC, "envoy.filters.http.router"]
    switched_on = {one["name"] for one in routes(made) if "overrides" in one["typed_per_filter_config"][EXT_PROC]}
    assert switched_on == {"batch", "batch-chosen", "llm", "llm-chosen"}
    assert {one["name"] for one in routes(made) if usage["name"] in one["typed_per_filter_config"]} == switched_on


def test_clients_headers_are_taken_away_and_ends_are_told_without_a_word_lost_of_the_meshs_own() -> None:
    http = manager(istiomesh.bootstrap(rendered()))
    (early,) = http["early_header_mutation_extensions"]
    removed = {one["remove"] for one in early["typed_config"]["mutations"]}
    assert {"x-envoy-original-dst-host", "x-gateway-destination-endpoint", "x-extproc-policy"} <= removed
    assert [one["name"] for one in http["access_log"]] == ["mesh", "failures", "ends"]


def test_listed_hosts_are_chosen_of_istios_own_cluster() -> None:
    text = rendered(destination="override-host", destinations_max=3)
    made = istiomesh.bootstrap(text)
    (policy,) = cluster(made, ENGINES)["load_balancing_policy"]["policies"]
    sources = policy["typed_extension_config"]["typed_config"]["override_host_sources"]
    assert [list(one) for one in sources] == [["metadata"]]
    told = manager(made)["http_filters"][0]["typed_config"]["grpc_service"]["initial_metadata"]
    assert {one["key"]: one["value"] for one in told}["x-extproc-destination"] == "override-host"
    assert [one["name"] for one in routes(made)] == ["no-adapters", "batch", "llm"]
    assert {one["name"] for one in made["static_resources"]["clusters"]} == {ENGINES, "sds-grpc", "extproc"}
    retries = [one["retries"] for one in documents(text)["VirtualService"]["spec"]["http"]]
    assert retries == [{"attempts": 2, "retryOn": "reset,503"}] * 2
    streamed = rendered(destination="original-dst", body_mode="streamed")
    (*_, last) = documents(streamed)["VirtualService"]["spec"]["http"]
    assert last["retries"] == {"attempts": 0}, "without a word Istio makes it two"


async def test_locality_weights_exclude_a_list_of_hosts_as_the_patch_says(tmp_path: Path) -> None:
    made = istiomesh.bootstrap(rendered(destination="override-host"))
    cluster(made, ENGINES)["common_lb_config"] = {"locality_weighted_lb_config": {}}
    with pytest.raises(AssertionError, match="locality_weighted_lb_config"):
        await validate(made, tmp_path)


def test_nobody_else_serves_where_that_is_not_wanted() -> None:
    made = istiomesh.bootstrap(rendered(fail_open=False))
    assert [one["route"]["cluster"] for one in routes(made)[1:]] == ["chosen-node", "chosen-node"]
    assert manager(made)["http_filters"][0]["typed_config"]["failure_mode_allow"] is False


@pytest.mark.parametrize(
    ("context", "here", "hosts", "gateways"),
    [("gateway", "GATEWAY", ["*"], ["edge"]), ("sidecar", "SIDECAR_OUTBOUND", [SERVICE], None)],
)
def test_every_patch_is_for_the_envoys_that_are_meant(
    context: Any, here: str, hosts: list[str], gateways: list[str] | None
) -> None:
    istio = Istio(context=context, namespace="edge-ns", labels=(("app", "edge"),), gateway="edge")
    found = documents(rendered(istio))
    spec = found["EnvoyFilter"]["spec"]
    assert {one["match"]["context"] for one in spec["configPatches"]} == {here}
    assert spec["workloadSelector"] == {"labels": {"app": "edge"}}
    assert {one["metadata"]["namespace"] for one in found.values()} == {"edge-ns"}
    assert found["VirtualService"]["spec"]["hosts"] == hosts
    assert found["VirtualService"]["spec"].get("gateways") == gateways


def test_the_meshs_own_tls_is_spoken_with_engines_and_extproc() -> None:
    text = rendered(Istio(mesh_tls=IDENTITIES))
    made = istiomesh.bootstrap(text)
    for name, alpn in (("chosen-node", "istio-http/1.1"), ("extproc", "istio-h2")):
        context = cluster(made, name)["transport_socket"]["typed_config"]["common_tls_context"]
        assert context["alpn_protocols"][0] == alpn
        checked = context["combined_validation_context"]
        names = checked["default_validation_context"]["match_typed_subject_alt_names"]
        assert names == [{"san_type": "URI", "matcher": {"prefix": IDENTITIES}}]
        assert checked["validation_context_sds_secret_config"]["name"] == "ROOTCA"
    assert documents(text)["DestinationRule"]["spec"]["trafficPolicy"]["tls"] == {"mode": "ISTIO_MUTUAL"}


@pytest.mark.parametrize(
    ("tls", "wanted"),
    [
        ({"ca": "/ca.pem"}, {"mode": "SIMPLE", "caCertificates": "/ca.pem"}),
        (
            {"ca": "/ca.pem", "certificate": "/c.pem", "key": "/k.pem", "name": "engines"},
            {
                "mode": "MUTUAL",
                "caCertificates": "/ca.pem",
                "clientCertificate": "/c.pem",
                "privateKey": "/k.pem",
                "sni": "engines",
                "subjectAltNames": ["engines"],
            },
        ),
    ],
)
def test_tls_towards_nodes_holds_for_istios_cluster_as_well(tls: dict[str, str], wanted: dict[str, Any]) -> None:
    text = rendered(node_tls=tls)
    assert documents(text)["DestinationRule"]["spec"]["trafficPolicy"]["tls"] == wanted
    socket = cluster(istiomesh.bootstrap(text), "chosen-node")["transport_socket"]["typed_config"]
    assert socket.get("sni") == tls.get("name")


@pytest.mark.parametrize(
    ("istio", "given", "path"),
    [
        (Istio(), {"nodes": ["10.0.0.1:8000"]}, "nodes"),
        (Istio(), {"nodes": ["engines:8000"]}, "nodes"),
        (Istio(), {"nodes": [f"{SERVICE}:8000", "other.llm:8000"]}, "nodes"),
        (Istio(), {"nodes": [], "fail_open": False}, "nodes"),
        (Istio(), {"routes": [{"prefix": "/v1/"}, {"prefix": "/v2/"}]}, "routes.1.name"),
        (Istio(), {"failover": True}, "failover"),
        (Istio(), {"body_mode": "buffered-partial"}, "fail_open"),
        (Istio(mesh_tls=IDENTITIES), {"node_tls": TLS}, "node_tls"),
        (Istio(mesh_tls=IDENTITIES), {"processor_tls": TLS}, "processor_tls"),
    ],
)
def test_what_istio_cannot_do_is_told(istio: Istio, given: dict[str, Any], path: str) -> None:
    faults = render(described(**given), istio)
    assert isinstance(faults, list)
    assert [one.path for one in faults if isinstance(one, Fault)] == [path]


def test_each_patch_says_why_it_is_there() -> None:
    text = rendered(Istio(mesh_tls=IDENTITIES), usage=True)
    lines = text.splitlines()
    places = [index for index, line in enumerate(lines) if line.startswith("  - applyTo")]
    assert len(places) == len(documents(text)["EnvoyFilter"]["spec"]["configPatches"])
    assert all(lines[index - 1].startswith("  # ") for index in places)
