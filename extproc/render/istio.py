"""Istio's resources: a VirtualService and a DestinationRule of the engines, and an EnvoyFilter that asks extproc."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from extproc.address import TcpAddress
from extproc.core.settings import Fault
from extproc.render.description import Description, Route, Tls, is_name
from extproc.render.istiopatches import Context, Patch, patches, route_name
from extproc.render.notes import notes
from extproc.render.parts import KNOWN, Part, retries, seconds
from extproc.render.routing import route_faults
from extproc.render.yamltext import yaml_text

NAME: Final = "extproc"
"""Of each resource."""

_HEAD: Final = """\
extproc for Istio, written by `extproc render istio`. Written for Istio 1.28 and later, whose Envoy is 1.36: before,
request_body_buffer_limit is ignored, and bodies over 1 MiB are answered 413.
Istio itself was not run. Each `value` was loaded by Envoy 1.40, put together as Istio does it.
docs/meshes.md says how to use it. What is yours: namespace, labels, names of Gateway and Services."""
_VIRTUAL_SERVICE: Final = (
    "If you have one already, keep it: what counts is each http entry's `name`, by which the EnvoyFilter finds it, "
    "and that it has one match. Paths that no entry has are answered 404, and must be: engines have more than the API, "
    "and no login there."
)
_MESH_TLS: Final = (
    "Mutual TLS as Istio's own clusters have it, with the certificates of the mesh: a cluster that is added has none."
)
_OTHERS: Final = ("access_log", "retry_host_predicate", "early_header_mutation_extensions")
"""Notes of a bootstrap that are about what does not stand here, or say what a patch says."""
_NOTES: Final = {
    "spec/http": _VIRTUAL_SERVICE,
    "connectionPool": "uvicorn, and so vLLM, closes idle connections after 5 s: let go of them first.",
}


class Istio(Struct, frozen=True, kw_only=True):
    """What a description does not say: where in a cluster Istio's resources belong."""

    context: Context = "gateway"
    namespace: str = "istio-ingress"
    """Of the gateway's pods, or of the clients'."""
    labels: tuple[tuple[str, str], ...] = (("istio", "ingressgateway"),)
    """Of the pods whose Envoy shall ask extproc; none: all of the namespace."""
    gateway: str = "llm"
    """Name of the Gateway whose requests the VirtualService takes; unused beside clients."""
    mesh_tls: str | None = None
    """How identities (SPIFFE) of engines and extproc begin, as `spiffe://cluster.local/ns/llm/`. `None`: plain text,
    or as the description says."""


def render(d: Description, istio: Istio) -> str | list[Fault]:
    """The resources as YAML documents with comments, or what the description lacks for them.

    Raises KeyError where a value has a field that Envoy's API does not have: a fault of ours.
    """
    service = _service(d)
    faults = _faults(d, istio)
    if isinstance(service, Fault) or faults:
        return [*([service] if isinstance(service, Fault) else []), *faults]
    steps = patches(d, service, istio.context, istio.mesh_tls)
    envoy_filter = _envoy_filter([step.checked() for step in steps], istio)
    first, *others = _virtual_service(d, service, istio), _destination_rule(d, service, istio)
    texts = [
        yaml_text(first, _NOTES, "\n".join((*d.about.splitlines(), _HEAD))),
        *(yaml_text(other, _NOTES, "") for other in others),
        yaml_text(envoy_filter, _filter_notes(d, istio, steps), ""),
    ]
    return "---\n".join(texts)


def _filter_notes(d: Description, istio: Istio, steps: Sequence[Patch]) -> dict[str, str]:
    """The notes of a bootstrap, as far as they fit, and why each patch is there."""
    made = {
        path: note.lstrip("\n")
        for path, note in notes(d).items()
        if note.strip("\n") and path.rpartition("/")[2] not in _OTHERS
    }
    for index, step in enumerate(steps):
        made[f"configPatches/{index}"] = step.why
        if step.applies_to == "CLUSTER" and (name := step.value.get("name")) is not None:
            about = {key.removeprefix(f"{name}/"): note for key, note in made.items() if key.startswith(f"{name}/")}
            if istio.mesh_tls is not None:
                about["transport_socket"] = _MESH_TLS
            made |= {f"{index}/patch/value/{key}": note for key, note in about.items()}
    return made


def _service(d: Description) -> TcpAddress | Fault:
    match d.nodes:
        case (TcpAddress(host, _) as service,) if is_name(service) and "." in host:
            return service
        case nodes:
            wanted = "one, the engines' Service by its full name, as engines.llm.svc.cluster.local:8000"
            return Fault("nodes", wanted, ", ".join(str(one) for one in nodes[:3]) or "nothing")


def _faults(d: Description, istio: Istio) -> list[Fault]:
    names = [route_name(route) for route in d.routes]
    faults = [
        Fault(f"routes.{index}.name", "a name of its own: by it the VirtualService's entry is found", name)
        for index, name in enumerate(names)
        if name in names[:index]
    ]
    faults += route_faults(d)
    if d.failover:
        faults.append(Fault("failover", "false: a bootstrap alone has it", "true"))
    if istio.mesh_tls is not None:
        faults += [
            Fault(key, "nothing, for the mesh's own TLS is asked for", "a mapping")
            for key, tls in (("processor_tls", d.processor_tls), ("node_tls", d.node_tls))
            if tls is not None
        ]
    return faults


def _metadata(istio: Istio) -> Part:
    return {"name": NAME, "namespace": istio.namespace}


def _virtual_service(d: Description, service: TcpAddress, istio: Istio) -> Part:
    at_the_edge = istio.context == "gateway"
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": _metadata(istio),
        "spec": {
            "hosts": ["*"] if at_the_edge else [service.host],
            **({"gateways": [istio.gateway]} if at_the_edge else {}),
            "http": [_http(d, route, service) for route in d.routes],
        },
    }


def _http(d: Description, route: Route, service: TcpAddress) -> Part:
    part: Part = {"name": route_name(route), "match": [{"uri": {"prefix": route.prefix}}]}
    if route.rewrite is not None:
        part["rewrite"] = {"uri": route.rewrite}
    return part | {
        "route": [{"destination": {"host": service.host, "port": {"number": service.port}}}],
        "timeout": "0s",
        "retries": _retries(d),
    }


def _retries(d: Description) -> Part:
    policy = retries(d, KNOWN)
    if policy is None:
        return {"attempts": 0}  # without a word Istio makes it two
    codes = [str(code) for code in policy.get("retriable_status_codes", [])]
    events = [event for event in policy["retry_on"].split(",") if event != "retriable-status-codes"]
    return {"attempts": policy["num_retries"], "retryOn": ",".join([*events, *codes])}


def _destination_rule(d: Description, service: TcpAddress, istio: Istio) -> Part:
    http: Part = {"idleTimeout": seconds(4)}
    if d.node_http2:
        http["h2UpgradePolicy"] = "UPGRADE"
    policy: Part = {"loadBalancer": {"simple": "ROUND_ROBIN"}, "connectionPool": {"http": http}}
    if istio.mesh_tls is not None:
        policy["tls"] = {"mode": "ISTIO_MUTUAL"}
    elif d.node_tls is not None:
        policy["tls"] = _client_tls(d.node_tls)
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "DestinationRule",
        "metadata": _metadata(istio),
        "spec": {"host": service.host, "trafficPolicy": policy},
    }


def _client_tls(tls: Tls) -> Part:
    part: Part = {"mode": "SIMPLE" if tls.certificate is None else "MUTUAL", "caCertificates": tls.ca}
    if tls.certificate is not None:
        part |= {"clientCertificate": tls.certificate, "privateKey": tls.key}
    if tls.name is not None:
        part |= {"sni": tls.name, "subjectAltNames": [tls.name]}
    return part


def _envoy_filter(config_patches: list[dict[str, Any]], istio: Istio) -> Part:
    selector = {"workloadSelector": {"labels": dict(istio.labels)}} if istio.labels else {}
    return {
        "apiVersion": "networking.istio.io/v1alpha3",
        "kind": "EnvoyFilter",
        "metadata": _metadata(istio),
        "spec": {**selector, "configPatches": config_patches},
    }
