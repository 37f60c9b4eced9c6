"""What becomes of requests when `serve` fails, or refuses, or many come at a time?

Seen with Envoy 1.40:

    failure_mode_allow          unless it is true requests get 500 while `serve` is away, and its crash cuts running
                                answers; with FULL_DUPLEX_STREAMED Envoy heeds it only where it has no healthy `serve`
                                to ask: with one, once health checks have seen it gone, 1 to 2 s as rendered
    retry_policy                inside of envoy_grpc heeded for xDS alone; at grpc_service a stream that `serve` refuses
                                goes to another one
    disable_immediate_response  refusals get 500; with failure_mode_allow such requests go on
    observability_mode          nothing that is answered is heard; bodies are shown in STREAMED alone
    circuit_breakers            every request in flight holds a stream, and 1024 are Envoy's default for a cluster; of a
                                composite cluster its own limit of retries counts, 3 by default, and the other limits of
                                those that it tries
    initial_metadata            what is made of the request's headers, clients choose
"""

from collections.abc import Iterator, Mapping
from typing import Final

from extproc.config import Config
from extproc.core.settings import Fault, shown
from extproc.envoycheck.bodies import body_mode
from extproc.envoycheck.destinations import members
from extproc.envoycheck.file import At, Warned
from extproc.envoycheck.places import Place, places
from extproc.envoycheck.processors import Processors
from extproc.gateway.routepolicy import DESTINATION_KEY, KEY

_DEFAULT_MAX: Final = 1024
_DEFAULT_RETRIES: Final = 3
_BREAKERS: Final = ("max_connections", "max_pending_requests", "max_requests")
_OF_CLIENTS: Final = ("%REQ(", "%REQUEST_HEADER(")


def watching_faults(found: Processors) -> Iterator[Fault]:
    """Of filters that only tell."""
    for one in found.filters:
        at = one.of("observability_mode")
        yield Warned(at.path, "false (nothing that serve answers is heard)", shown(at.value))
    for place in (one for one in places(found) if one.is_first):
        body = place.mode.of("request_body_mode")
        if body_mode(body) != "STREAMED":
            got = "nothing, so NONE" if body.value is None else shown(body.value)
            wanted = "STREAMED (with observability_mode no other one shows bodies: nothing is decided)"
            yield Warned(body.path, wanted, got)


def faults_in(found: Processors, settings: Config) -> Iterator[Fault]:
    """What fails with `serve`, or at a load that it could bear. Never raises."""
    for one in found.filters:
        disabled = one.of("disable_immediate_response")
        if disabled.value is True:
            wanted = "false (refusals become 500, or with failure_mode_allow requests that go on)"
            yield Fault(disabled.path, wanted, "True")
        unheeded = one.of("grpc_service", "envoy_grpc", "retry_policy")
        if unheeded.value is not None:
            wanted = (
                "nothing, but the same at grpc_service (this is for xDS alone: what a draining serve refuses fails)"
            )
            yield Warned(unheeded.path, wanted, shown(unheeded.value))
    clusters: dict[str, None] = {}
    for place in places(found):
        if place.is_first:
            yield from _failure_faults(place, found.clusters)
        for name, what in ((KEY, "policy"), (DESTINATION_KEY, "destination")):
            at = place.metadata(name)
            if at is not None and isinstance(at.value, str) and any(one in at.value for one in _OF_CLIENTS):
                yield Warned(at.path, f"no header of the request (clients choose their {what})", shown(at.value))
        if place.cluster is not None and place.cluster in found.clusters:
            clusters |= dict.fromkeys((place.cluster, *members(found.clusters[place.cluster])))
    for cluster in found.their_clusters():
        at = _breakers(cluster)
        if at.of("max_requests").value is None:
            wanted = f"more, as {settings.limits.streams_max} (limits.streams_max: each request in flight holds one)"
            yield Fault(at.of("max_requests").path, wanted, f"nothing, so {_DEFAULT_MAX}")
    for cluster in (found.clusters[name] for name in clusters if name in found.clusters):
        at = _breakers(cluster)
        if members(cluster):
            if at.of("max_retries").value is None:
                wanted = "more, as 1000 (its clusters' own limits do not count: a node that fails has more requests)"
                yield Warned(at.of("max_retries").path, wanted, f"nothing, so {_DEFAULT_RETRIES}")
            continue
        absent = [name for name in _BREAKERS if at.of(name).value is None]
        if absent:
            wanted = f"{', '.join(absent)} (the default is a limit over all nodes; serve judges overload)"
            yield Warned(at.path, wanted, f"nothing, so {_DEFAULT_MAX}")


def _failure_faults(place: Place, clusters: Mapping[str, At]) -> Iterator[Fault]:
    allow, body = place.nearest("failure_mode_allow"), place.mode.of("request_body_mode")
    if body_mode(body) == "FULL_DUPLEX_STREAMED":
        away = _in_full_duplex(place, clusters)
        yield Warned(body.path, f"BUFFERED (its crash cuts running answers; {away})", shown(body.value))
    elif allow.value is not True:
        wanted = "true (else 500 while serve is away, and its crash cuts running answers)"
        yield Warned(allow.path, wanted, "nothing, so false" if allow.value is None else shown(allow.value))


def _in_full_duplex(place: Place, clusters: Mapping[str, At]) -> str:
    """What requests get while `serve` is away. Envoy heeds failure_mode_allow where it knows nobody to ask."""
    always = "500 while serve is away"
    cluster = clusters.get(str(place.nearest("grpc_service").of("envoy_grpc", "cluster_name").value))
    if cluster is None or place.nearest("failure_mode_allow").value is not True:
        return always
    panic = cluster.of("common_lb_config", "healthy_panic_threshold")
    if not any(cluster.of("health_checks").each()) or panic.value is None or panic.of("value").value not in (None, 0):
        return f"{always}: here failure_mode_allow needs health_checks and a healthy_panic_threshold of 0"
    localities = cluster.of("load_assignment", "endpoints")
    endpoints = [one for locality in localities.each() for one in locality.of("lb_endpoints").each()]
    return f"{always if len(endpoints) <= 1 else '500 while all of them are away'}, until health checks see it"


def _breakers(cluster: At) -> At:
    """Of the default priority; of two the first one holds."""
    thresholds = cluster.of("circuit_breakers", "thresholds")
    told = (one for one in thresholds.each() if one.of("priority").value in (None, "DEFAULT", 0))
    return next(told, At(f"{thresholds.path}.0", None))
