"""Listeners of one Envoy, for each way in which it can be told to ask; rendered, and put into one bootstrap."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from extproc.fleet import ANY_PORT, Serve
from extproc.render.bootstrap import bootstrap
from extproc.render.description import BodyMode, Description, Destination, Route
from tests.e2e.modenodes import Node
from tests.e2e.scripted import CONFIG

Json = dict[str, Any]
MODES: tuple[BodyMode, ...] = get_args(BodyMode)
DESTINATIONS: tuple[Destination, ...] = get_args(Destination)
NODES = ("a", "b", "c")
"""Each serves the model of its name and one that all serve; beside them Envoy knows `known`, and serve does not."""
SHARED = "shared"
ALIAS = "alias"
"""Of the model `b`."""
POLICIES: Json = {one: {"destination": one, "aliases": {ALIAS: "b"}} for one in DESTINATIONS}
TRAILERS: Json = {"enable_trailers": True}
SUBSET_HEADER = "x-allowed-hosts"
ROUTES = tuple(
    Route(prefix=f"/{name}/v1/", rewrite="/v1/", name=name, policy=name) for name in ("observing", "off", "canary")
)
KIB = 1024
MIB = 1024 * KIB
BODY_BYTES_MAX = 21 * MIB
SETTINGS: Json = CONFIG | {
    "ejection": {"unreachable_max": 1000, "errors_max": 1000},  # no test makes a node another's to avoid
    "limits": {"body_bytes_max": BODY_BYTES_MAX},
    "policies": {"observing": {"mode": "observe"}, "off": {"mode": "off"}, "canary": {"canary": 50}},
}


def describe(mode: BodyMode, destination: Destination, nodes: Mapping[str, Node], **fields: Any) -> Description:
    """As much of a listener as is the same for all tests. `fields` say otherwise."""
    known = (
        tuple(one.address for one in nodes.values()) if destination == "override-host" else (nodes["known"].address,)
    )
    same: Json = {"listen": ANY_PORT, "admin": ANY_PORT, "health_path": None, "decision_headers": True}
    same |= {
        "body_bytes_max": BODY_BYTES_MAX,
        "body_mode": mode,
        "destination": destination,
        "nodes": known,
        "policy": destination,
    }
    return Description(**(same | fields))


Edit = Callable[[Json], None]
"""Changes a listener's connection manager."""


def all_listeners(nodes: Mapping[str, Node]) -> dict[str, "Listening"]:
    """One for each mode and destination, as `streamed.override-host`, and those of single tests."""
    made = {
        f"{mode}.{destination}": Listening(describe(mode, destination, nodes, fail_open=not cannot_fail_open(mode)))
        for mode in MODES
        for destination in DESTINATIONS
    }
    made["retries"] = Listening(describe("full-duplex", "override-host", nodes), _passes_trailers, TRAILERS)
    made["partial-fail-open"] = Listening(describe("buffered-partial", "original-dst", nodes))
    short = {"body_bytes_max": 64 * KIB, "fail_open": False}
    for mode in MODES:
        override = describe(mode, "override-host", nodes)
        made[f"trailers.{mode}"] = Listening(override, _passes_trailers_without_retries, TRAILERS)
        made[f"hinted.{mode}"] = Listening(override, _hints)
        made[f"short.{mode}"] = Listening(describe(mode, "original-dst", nodes, **short), _tells_more)
        made[f"policies.{mode}"] = Listening(describe(mode, "original-dst", nodes, routes=ROUTES))
        made[f"observed.{mode}"] = Listening(describe(mode, "original-dst", nodes), _only_observes)
    made["hinted-list"] = Listening(describe("full-duplex", "override-host", nodes), _hints_list(nodes["b"]))
    return made


def cannot_fail_open(mode: BodyMode) -> bool:
    """Whether a second route for the time without serve would take requests that serve decides about.

    In this mode Envoy picks no new route with the reply to a body, unless all of it came with the headers.
    """
    return mode == "buffered-partial"


def _filters(manager: Json) -> list[Json]:
    found: list[Json] = manager["http_filters"]
    return found


def _passes_trailers(manager: Json) -> None:
    manager["http_protocol_options"] = TRAILERS


def _passes_trailers_without_retries(manager: Json) -> None:
    _passes_trailers(manager)
    (host,) = manager["route_config"]["virtual_hosts"]
    for route in host["routes"]:
        route.get("route", {}).pop("retry_policy", None)


def _tells_more(manager: Json) -> None:
    (host,) = manager["route_config"]["virtual_hosts"]
    header = {"key": "x-extproc-shown", "value": "%DYNAMIC_METADATA(extproc:shown)%"}
    host["response_headers_to_add"].append({"header": header, "keep_empty_value": False})


def _only_observes(manager: Json) -> None:
    (ours,) = (one["typed_config"] for one in _filters(manager) if one["name"] == "envoy.filters.http.ext_proc")
    ours |= {"observability_mode": True, "deferred_close_timeout": "0.2s"}


def _hints_list(*nodes: Node) -> Edit:
    def edit(manager: Json) -> None:
        hosts = [str(one.address) for one in nodes]
        value = {"x-gateway-destination-endpoint-subset": hosts}
        filter_config = {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{"metadata_namespace": "envoy.lb.subset_hint", "value": value}],
        }
        _filters(manager).insert(0, {"name": "hints", "typed_config": filter_config})

    return edit


def _hints(manager: Json) -> None:
    """What stands in front of Envoy and is trusted names the hosts that are allowed; here a header of the test's."""
    rule = {"metadata_namespace": "envoy.lb.subset_hint", "key": "x-gateway-destination-endpoint-subset"}
    filter_config = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
        "request_rules": [{"header": SUBSET_HEADER, "on_header_present": rule, "remove": True}],
    }
    _filters(manager).insert(0, {"name": "hints", "typed_config": filter_config})


@dataclass
class Listening:
    """A listener to be."""

    description: Description
    edit: Edit = lambda _: None
    upstream_http: Json = field(default_factory=dict)
    """Options of HTTP/1.1 towards nodes."""


def merged(serve: Serve, listenings: Mapping[str, Listening]) -> Json:
    """One bootstrap with a listener for each, whose clusters are named after its name where they differ."""
    whole: Json = {}
    for name, one in listenings.items():
        d = one.description.model_copy(update={"processor": (serve.extproc,)})
        text = json.dumps(bootstrap(d))
        for cluster in ("chosen-node", "known-nodes"):
            text = text.replace(f'"{cluster}"', f'"{name}.{cluster}"')
        part: Json = json.loads(text)
        (listener,) = part["static_resources"]["listeners"]
        listener["name"] = name
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager["stat_prefix"] = name
        one.edit(manager)
        for cluster in part["static_resources"]["clusters"]:
            if cluster["name"] != "extproc":
                (http,) = cluster["typed_extension_protocol_options"].values()
                http["explicit_http_config"]["http_protocol_options"] |= one.upstream_http
        if not whole:
            whole = part
            continue
        resources = whole["static_resources"]
        resources["listeners"].append(listener)
        resources["clusters"] += [one for one in part["static_resources"]["clusters"] if one["name"] != "extproc"]
    return whole
