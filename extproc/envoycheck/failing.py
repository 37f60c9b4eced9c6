"""What becomes of requests when `serve` fails, or refuses, or many come at a time?

Seen with Envoy 1.40:

    failure_mode_allow          unless it is true requests get 500 while `serve` is away, and its crash cuts running
                                answers; with FULL_DUPLEX_STREAMED Envoy does not heed it
    disable_immediate_response  refusals get 500; with failure_mode_allow such requests go on
    observability_mode          nothing that is answered is heard
    circuit_breakers            every request in flight holds a stream, and 1024 are Envoy's default for a cluster
    initial_metadata            what is made of the request's headers, clients choose
"""

from collections.abc import Iterator
from typing import Final

from extproc.config import Config
from extproc.core.settings import Fault, shown
from extproc.envoycheck.bodies import body_mode
from extproc.envoycheck.file import At, Warned
from extproc.envoycheck.places import Place, places
from extproc.envoycheck.processors import Processors

_DEFAULT_MAX: Final = 1024
_BREAKERS: Final = ("max_connections", "max_pending_requests", "max_requests")
_OF_CLIENTS: Final = ("%REQ(", "%REQUEST_HEADER(")


def watching_faults(found: Processors) -> Iterator[Fault]:
    """Of filters that only tell."""
    for one in found.filters:
        at = one.of("observability_mode")
        yield Warned(at.path, "false (nothing that serve answers is heard)", shown(at.value))


def faults_in(found: Processors, settings: Config) -> Iterator[Fault]:
    """What fails with `serve`, or at a load that it could bear. Never raises."""
    for one in found.filters:
        disabled = one.of("disable_immediate_response")
        if disabled.value is True:
            wanted = "false (refusals become 500, or with failure_mode_allow requests that go on)"
            yield Fault(disabled.path, wanted, "True")
    clusters: dict[str, None] = {}
    for place in places(found):
        if place.is_first:
            yield from _failure_faults(place)
        at = place.asked_for
        if at is not None and isinstance(at.value, str) and any(one in at.value for one in _OF_CLIENTS):
            yield Warned(at.path, "no header of the request (clients choose their policy)", shown(at.value))
        clusters |= {place.cluster: None} if place.cluster is not None else {}
    for cluster in found.their_clusters():
        at = _breakers(cluster)
        if at.of("max_requests").value is None:
            wanted = f"more, as {settings.limits.streams_max} (limits.streams_max: each request in flight holds one)"
            yield Fault(at.of("max_requests").path, wanted, f"nothing, so {_DEFAULT_MAX}")
    for cluster in (found.clusters[name] for name in clusters if name in found.clusters):
        at = _breakers(cluster)
        absent = [name for name in _BREAKERS if at.of(name).value is None]
        if absent:
            wanted = f"{', '.join(absent)} (the default is a limit over all nodes; serve judges overload)"
            yield Warned(at.path, wanted, f"nothing, so {_DEFAULT_MAX}")


def _failure_faults(place: Place) -> Iterator[Fault]:
    allow, body = place.nearest("failure_mode_allow"), place.mode.of("request_body_mode")
    if body_mode(body) == "FULL_DUPLEX_STREAMED":
        wanted = "BUFFERED (Envoy does not heed failure_mode_allow with it: 500 while serve is away)"
        yield Warned(body.path, wanted, shown(body.value))
    elif allow.value is not True:
        wanted = "true (else 500 while serve is away, and its crash cuts running answers)"
        yield Warned(allow.path, wanted, "nothing, so false" if allow.value is None else shown(allow.value))


def _breakers(cluster: At) -> At:
    """Of the default priority; of two the first one holds."""
    thresholds = cluster.of("circuit_breakers", "thresholds")
    told = (one for one in thresholds.each() if one.of("priority").value in (None, "DEFAULT", 0))
    return next(told, At(f"{thresholds.path}.0", None))
