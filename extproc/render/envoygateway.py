"""Resources for Envoy Gateway: routes and nodes, and the policies that have extproc asked and obeyed."""

import json
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from extproc.address import Address, TcpAddress, UnixAddress
from extproc.core.settings import Fault
from extproc.render.accesslogs import access_logs
from extproc.render.description import Description, Route, is_name
from extproc.render.gatewaynotes import NOTES, head_of
from extproc.render.gatewaypolicies import backend_traffic, client_traffic, extension
from extproc.render.parts import Part, leaving_policy
from extproc.render.yamltext import yaml_text

NAME: Final = "extproc"
"""Of each resource, or how its name begins."""
API: Final = "gateway.envoyproxy.io/v1alpha1"
ANNOTATION: Final = "gateway.envoyproxy.io/extproc.policy"
"""Of an HTTPRoute. Envoy Gateway hands annotations with this prefix on, without it, in the route's metadata."""
ENDPOINTS_MAX: Final = 64
"""Of one Backend."""


class EnvoyGateway(Struct, frozen=True, kw_only=True):
    """What a description does not say: where in a cluster the resources belong."""

    namespace: str = "llm"
    """Of the Gateway, the Services and of all that is written here."""
    gateway: str = "llm"
    """Name of the Gateway."""


def render(d: Description, at: EnvoyGateway) -> str | list[Fault]:
    """The resources as YAML documents with comments, or what Envoy Gateway cannot do of the description."""
    if faults := _faults(d):
        return faults
    notes = dict(NOTES)
    texts = []
    for number, resource in enumerate(resources(d, at)):
        kind = resource["kind"]
        own = {path.removeprefix(f"{kind}:"): note for path, note in notes.items() if path.startswith(f"{kind}:")}
        for path in own:  # each reason once, where it stands first
            del notes[f"{kind}:{path}"]
        top = head_of(d) if number == 0 else ""
        texts.append(yaml_text(resource, own, top))
    return "---\n".join(texts)


def resources(d: Description, at: EnvoyGateway) -> list[Part]:
    """The same as mappings, for a description that has no faults."""
    routes = {f"{NAME}-{route.name or index}": route for index, route in enumerate(d.routes)}
    backends = [
        _resource(API, "Backend", f"{NAME}-nodes-{number}", at, _backend(d, d.nodes[start : start + ENDPOINTS_MAX]))
        for number, start in enumerate(range(0, len(d.nodes), ENDPOINTS_MAX))
    ]
    refs = [{"group": "gateway.envoyproxy.io", "kind": "Backend", "name": one["metadata"]["name"]} for one in backends]
    services = [_service(one) for one in d.endpoints]
    made = [
        _resource("gateway.networking.k8s.io/v1", "HTTPRoute", name, at, _http_route(route, refs, at))
        for name, route in routes.items()
    ]
    for one, route in zip(made, d.routes, strict=True):
        if (text := _policy_text(d, route)) is not None:
            one["metadata"]["annotations"] = {ANNOTATION: text}
    made += backends
    for first_tokens in (False, True):
        targets = [name for name, route in routes.items() if route.first_tokens is first_tokens]
        if targets:
            name = f"{NAME}-first-tokens" if first_tokens else NAME
            spec = {"targetRefs": _targets(targets), **extension(d, services, first_tokens=first_tokens)}
            made.append(_resource(API, "EnvoyExtensionPolicy", name, at, spec))
    gateway = [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": at.gateway}]
    return [
        *made,
        _resource(API, "BackendTrafficPolicy", NAME, at, {"targetRefs": _targets(list(routes)), **backend_traffic(d)}),
        _resource(API, "ClientTrafficPolicy", NAME, at, {"targetRefs": gateway, **client_traffic(d)}),
        _resource(API, "EnvoyProxy", NAME, at, {"telemetry": {"accessLog": _access_log(services)}}),
    ]


def _faults(d: Description) -> list[Fault]:
    faults = []
    if d.destination != "override-host":
        why = "override-host: Envoy Gateway lets extproc set no x-envoy- header, and has no original-dst cluster"
        faults.append(Fault("destination", why, d.destination))
    if d.body_mode == "full-duplex" and d.fail_open:
        faults.append(Fault("fail_open", "false with body_mode full-duplex: Envoy Gateway refuses both", "true"))
    match d.processor:
        case (TcpAddress() as one,) if is_name(one) and one.host.count(".") == 0:
            pass
        case several:
            wanted = "the name of a Service in the same namespace and its port, as extproc:9002"
            faults.append(Fault("processor", wanted, ", ".join(str(one) for one in several[:3])))
    if any(isinstance(one, UnixAddress) for one in d.nodes) or len({is_name(one) for one in d.nodes}) != 1:
        kinds = "IP addresses or names, and not both: Envoy Gateway keeps them apart"
        faults.append(Fault("nodes", kinds, ", ".join(str(one) for one in d.nodes[:3]) or "nothing"))
    tls = "nothing: Envoy Gateway has certificates from the cluster, by a BackendTLSPolicy (docs/meshes.md)"
    faults += [
        Fault(key, tls, "a mapping")
        for key, given in (("processor_tls", d.processor_tls), ("node_tls", d.node_tls))
        if given is not None
    ]
    if d.usage:
        faults.append(Fault("usage", "false: its Lua filter is none that Envoy Gateway lets in unchecked", "true"))
    names = [route.name for route in d.routes if route.name is not None]
    if len(set(names)) < len(names):
        faults.append(Fault("routes", "names of their own", ", ".join(names)[:80]))
    return faults


def _resource(api: str, kind: str, name: str, at: EnvoyGateway, spec: Part) -> Part:
    metadata: Part = {"name": name, "namespace": at.namespace}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def _targets(names: Sequence[str]) -> list[Part]:
    return [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name} for name in names]


def _service(processor: Address) -> Part:
    assert isinstance(processor, TcpAddress)
    return {"name": processor.host, "port": processor.port}


def _policy_text(d: Description, route: Route) -> str | None:
    """The policy as an annotation; `None`: extproc's default, which needs none."""
    policy = d.policy if route.policy is None else route.policy
    if route.first_tokens and route.policy is None:
        policy = leaving_policy(d) or d.policy
    if policy == "default":
        return None
    # No gRPC metadata says the destination here.
    return policy if isinstance(policy, str) else json.dumps({**policy, "destination": d.destination})


def _http_route(route: Route, refs: Sequence[Part], at: EnvoyGateway) -> Part:
    rule: Part = {"matches": [{"path": {"type": "PathPrefix", "value": _path(route.prefix)}}]}
    if route.rewrite is not None:
        replaced = {"type": "ReplacePrefixMatch", "replacePrefixMatch": _path(route.rewrite)}
        rule["filters"] = [{"type": "URLRewrite", "urlRewrite": {"path": replaced}}]
    rule |= {"backendRefs": list(refs), "timeouts": {"request": "0s"}}
    return {"parentRefs": [{"name": at.gateway}], "rules": [rule]}


def _path(prefix: str) -> str:
    """As the Gateway API has prefixes: whole parts of a path, a slash at the end means nothing."""
    return prefix.rstrip("/") or "/"


def _backend(d: Description, nodes: Sequence[Address]) -> Part:
    endpoints = [
        {"fqdn": {"hostname": node.host, "port": node.port}}
        if is_name(node)
        else {"ip": {"address": node.host, "port": node.port}}
        for node in nodes
        if isinstance(node, TcpAddress)
    ]
    return {"endpoints": endpoints, **({"appProtocols": ["gateway.envoyproxy.io/h2c"]} if d.node_http2 else {})}


def _access_log(services: list[Part]) -> Part:
    (line,) = (log for log in access_logs() if log["name"] == "stdout")
    shown = {"type": "JSON", "json": line["typed_config"]["log_format"]["json_format"]}
    told = {"type": "ALS", "als": {"logName": "ends", "type": "HTTP", "backendRefs": services}}
    return {
        "settings": [
            {"format": shown, "sinks": [{"type": "File", "file": {"path": "/dev/stdout"}}]},
            {"sinks": [told]},
        ]
    }
