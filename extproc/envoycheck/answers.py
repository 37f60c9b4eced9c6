"""Do answers reach clients whole and as they come, and does `serve` hear how they end?

Seen with Envoy 1.40:

    timeout                of a route is 15 s where it has none: longer answers are cut, or become 504, which counts
                           against the node
    stream_idle_timeout    of the manager is 5 minutes where it has none, and cuts an answer that waits so long
    response_body_mode     BUFFERED and BUFFERED_PARTIAL hold what has come of an answer, its head too
    response_trailer_mode  unless it is SEND streams of requests that have no body end before their answers do, where no
                           bodies of answers are sent; and so do those for which `serve` wants none, whatever is sent
    access_log             its entries tell `serve` of failures, and how long answers were; nothing else tells it of
                           what has no head
"""

from collections.abc import Iterator
from typing import Final

from extproc.config import Config
from extproc.core.settings import Fault, shown
from extproc.envoycheck.bodies import body_mode
from extproc.envoycheck.file import At, Warned
from extproc.envoycheck.places import Place, places
from extproc.envoycheck.policies import policies_at
from extproc.envoycheck.processors import Processors

_GRPC_LOG = "envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig"
_SKIP: Final = ("SKIP", 2)
_HELD: Final = ("BUFFERED", "BUFFERED_PARTIAL")
_UNHELD: Final = ("NONE", "FULL_DUPLEX_STREAMED")
"""Modes of requests' bodies with which every stream ends early: `bodies` says so."""


def faults_in(found: Processors, settings: Config) -> Iterator[Fault]:
    """What cuts or holds answers, or keeps `serve` from hearing of their ends. Never raises."""
    for place in places(found):
        if all(one.mode == "off" for one in policies_at(place, settings).possible):
            continue
        if place.routed is not None:
            yield from _timeout_faults(place.routed.route.of("route", "timeout"))
        if place.is_first:
            yield from _mode_faults(place.mode)
        if place.asking is not None:
            yield from _idle_faults(place, place.asking.manager)
            yield from _log_faults(place, place.asking.manager, found)


def _timeout_faults(at: At) -> Iterator[Fault]:
    if at.value is None:
        wanted = "0s, or more than answers take (longer ones are cut, and count against nodes that are well)"
        yield Warned(at.path, wanted, "nothing, so 15s")


def _idle_faults(place: Place, manager: At) -> Iterator[Fault]:
    at = manager.of("stream_idle_timeout")
    is_own = place.routed is not None and place.routed.route.of("route", "idle_timeout").value is not None
    if at.value is None and not is_own:
        wanted = "more, as 3600s (answers are cut that an engine's queue or a long prompt keeps silent for so long)"
        yield Warned(at.path, wanted, "nothing, so 300s")


def _mode_faults(mode: At) -> Iterator[Fault]:
    body, trailers = mode.of("response_body_mode"), mode.of("response_trailer_mode")
    if body_mode(body) in _HELD:
        yield Fault(body.path, "NONE, or STREAMED (else answers are held until they are whole)", shown(body.value))
    is_told = body_mode(mode.of("request_body_mode")) in _UNHELD
    if not is_told and body_mode(body) == "NONE" and trailers.value not in ("SEND", 1):
        wanted = "SEND (else streams of requests without a body end before answers do: they count too short)"
        yield Warned(trailers.path, wanted, "nothing, so SKIP" if trailers.value is None else shown(trailers.value))


def _log_faults(place: Place, manager: At, found: Processors) -> Iterator[Fault]:
    at = manager.of("access_log")
    services = [one.of("common_config", "grpc_service") for one in at.typed(_GRPC_LOG)]
    service = place.nearest("grpc_service")
    if any(found.is_same(service, one) for one in services):
        return
    has_heads = place.mode.of("response_header_mode").value not in _SKIP
    learned = "by heads of answers alone" if has_heads else "by its agents' reports alone"
    wanted = f"a HttpGrpcAccessLogConfig to serve (else a node that fails is noticed {learned}, answers not measured)"
    yield Warned(at.path, wanted, "nothing" if at.value is None else "others")
