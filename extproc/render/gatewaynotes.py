"""Why each setting of Envoy Gateway's resources is there, by kind and path."""

from collections.abc import Mapping
from typing import Final

from extproc.render.description import Description

_HEAD: Final = """\
extproc for Envoy Gateway, written by `extproc render envoy-gateway`. Written for 1.9; needs 1.5 (endpointOverride,
streamIdleTimeout). Envoy Gateway itself was not run: an Envoy 1.40 was, with what it makes of such resources.
docs/meshes.md says how to use it. What is yours: namespace, names of Gateway and Service, and the nodes' addresses.
EnvoyGateway has to allow Backends: `extensionApis: {enableBackend: true}`.
Every policy in extproc.yaml needs `destination: override-host`, `default` too: with another one extproc names nodes
where nobody looks, and they serve in turn. Envoy Gateway has no field by which Envoy could say so itself.
What Envoy Gateway has no field for, so that it stays as Envoy has it: extproc is shown all headers of a request,
authorization and cookies as well; it may set any header but x-envoy-* and those of the connection; and it cannot ask
for more time than messageTimeout."""
_DUPLEX: Final = (
    "\nIn body mode full-duplex extproc takes a request for done when its answer begins, and has its end from the log."
)

NOTES: Final[Mapping[str, str]] = {
    "HTTPRoute:annotations": (
        "This route's policy: the name of one in extproc's configuration, or a policy in place. Envoy Gateway hands it "
        "to extproc in the route's metadata."
    ),
    "HTTPRoute:timeouts": "The default of 15 s cuts generations.",
    "Backend:endpoints": (
        "The nodes: extproc chooses among these only, by address and port as agents name their engines. A name has to "
        "have the pods' own addresses, as that of a headless Service. In place of the Backend the routes may name a "
        "Service that is not headless: its pods are the nodes then."
    ),
    "EnvoyExtensionPolicy:backendSettings": (
        "Every request in flight holds one gRPC stream: the default of 1024 would be the limit of the gateway. A "
        "process that is alive and hangs gets new requests until the health check notices, within 3 s."
    ),
    "EnvoyExtensionPolicy:failOpen": "Errors of extproc send the request on, to any node.",
    "EnvoyExtensionPolicy:messageTimeout": (
        "As long as requests may wait in extproc's queue: more than the longest queue_ms_max of its classes. An "
        "extproc that hangs holds so long what it has by then."
    ),
    "EnvoyExtensionPolicy:attributes": "In the route's metadata stands the annotation with its policy.",
    "EnvoyExtensionPolicy:response": "The head of each answer tells whether the node failed.",
    "EnvoyExtensionPolicy:0/metadata": (
        "What extproc tells the access log and the load balancer, and what it is told."
    ),
    "BackendTrafficPolicy:endpointOverride": (
        "The nodes that extproc lists, the chosen one first; in turn where it lists none."
    ),
    "BackendTrafficPolicy:retry": "On to the next of the list; extproc is not asked again.",
    "BackendTrafficPolicy:circuitBreaker": "Overload is extproc's to judge, who knows the engines.",
    "BackendTrafficPolicy:http/requestTimeout": "The default of 15 s cuts generations.",
    "BackendTrafficPolicy:http/connectionIdleTimeout": (
        "uvicorn, and so vLLM, closes idle connections after 5 s: let go of them first."
    ),
    "ClientTrafficPolicy:earlyRequestHeaders": (
        "Only extproc names a destination: without this a client's own header would choose the node whenever extproc "
        "is down."
    ),
    "ClientTrafficPolicy:path": "The default redirects paths with escaped slashes.",
    "ClientTrafficPolicy:requestReceivedTimeout": "A body holds memory until it has arrived.",
    "ClientTrafficPolicy:streamIdleTimeout": (
        "The default of 5 minutes cuts generations that wait in an engine's queue or prefill in silence."
    ),
    "ClientTrafficPolicy:bufferLimit": (
        "Bodies are held until extproc has chosen. The default is 32 KiB, and above it 413. It bounds answers too: a "
        "client that does not read costs as much. extproc's limits.body_bytes_max has to be the same."
    ),
    "EnvoyProxy:telemetry": (
        "Takes effect where the Gateway names it: `infrastructure: {parametersRef: {group: gateway.envoyproxy.io, "
        "kind: EnvoyProxy, name: extproc}}`."
    ),
    "EnvoyProxy:settings/1": (
        "How each request ended, for extproc. Of requests that it was not asked about it reads nothing."
    ),
}


def head_of(d: Description) -> str:
    """What stands at the top."""
    return "\n".join((*d.about.splitlines(), _HEAD)) + (_DUPLEX if d.body_mode == "full-duplex" else "")
