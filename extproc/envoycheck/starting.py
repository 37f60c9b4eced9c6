"""Does Envoy start with its filter, and do streams to `serve` begin?

Seen with Envoy 1.40:

    FULL_DUPLEX_STREAMED  of requests or answers wants their trailers: without them Envoy refuses to start
    serve's cluster       speaks HTTP/1.1 where nothing says otherwise, and gRPC does not: every stream fails; it does
                          as well with use_downstream_protocol_config while clients speak HTTP/1.1
"""

from collections.abc import Iterator
from typing import Final

from extproc.core.settings import Fault, shown
from extproc.envoycheck.bodies import body_mode
from extproc.envoycheck.file import At
from extproc.envoycheck.processors import Processors
from extproc.envoycheck.timeouts import PROTOCOL_OPTIONS

_SENDERS: Final = ("request", "response")
_WANTED: Final = "explicit_http_config with http2_protocol_options (else no stream to serve begins: gRPC is HTTP/2)"


def faults_in(found: Processors) -> Iterator[Fault]:
    """What keeps all of it from working. Never raises."""
    for one in found.filters:
        mode = one.of("processing_mode")
        for sender in _SENDERS:
            body, trailers = mode.of(f"{sender}_body_mode"), mode.of(f"{sender}_trailer_mode")
            if body_mode(body) == "FULL_DUPLEX_STREAMED" and trailers.value not in ("SEND", 1):
                got = "nothing, so SKIP" if trailers.value is None else shown(trailers.value)
                wanted = f"SEND (else Envoy does not start: {sender}_body_mode is FULL_DUPLEX_STREAMED)"
                yield Fault(trailers.path, wanted, got)
    for cluster in found.their_clusters():
        yield from _protocol_faults(cluster)


def _protocol_faults(cluster: At) -> Iterator[Fault]:
    at = cluster.of("typed_extension_protocol_options")
    options = list(at.typed(PROTOCOL_OPTIONS))
    for one in options:
        explicit = one.of("explicit_http_config")
        if explicit.of("http_protocol_options").value is not None:
            yield Fault(explicit.path, _WANTED, "http_protocol_options")
        as_clients = one.of("use_downstream_protocol_config")
        if as_clients.value is not None:
            yield Fault(as_clients.path, _WANTED, "the protocol of the client")
    if not options and cluster.of("http2_protocol_options").value is None and cluster.of("cluster_type").value is None:
        yield Fault(at.path, _WANTED, "nothing, so HTTP/1.1")
