"""Do nodes get parts of bodies twice?

Seen with Envoy 1.40 on routes with retries, whatever they are for: Envoy then keeps what it sends of a body, and sends
it once more when the filter goes on

    STREAMED, BUFFERED_PARTIAL  without `serve`, where it fails during an upload or passes `message_timeout`
    FULL_DUPLEX_STREAMED        at the trailers of a request, which are heard with `enable_trailers`
"""

from collections.abc import Iterator

from extproc.core.settings import Fault, shown
from extproc.envoycheck.bodies import body_mode
from extproc.envoycheck.file import At, Warned
from extproc.envoycheck.places import Place, places
from extproc.envoycheck.processors import Processors, Routed


def faults_in(found: Processors) -> Iterator[Fault]:
    """Routes whose retries break bodies. Never raises."""
    for place in places(found):
        at = None if place.routed is None else retries(place.routed)
        why = None if at is None else broken(place)
        if at is not None and why is not None:
            yield Warned(at.path, f"nothing ({why})", shown(at.of("retry_on").value or at.value))


def broken(place: Place) -> str | None:
    """When what has gone on of a body goes on again."""
    mode = body_mode(place.mode.of("request_body_mode"))
    if mode in ("STREAMED", "BUFFERED_PARTIAL") and place.nearest("failure_mode_allow").value is True:
        return f"with {mode} what has gone on of a body reaches the node twice when serve fails during an upload"
    if mode == "FULL_DUPLEX_STREAMED" and place.asking is not None:
        trailers = place.asking.manager.of("http_protocol_options", "enable_trailers")
        if trailers.value is True:
            return "with FULL_DUPLEX_STREAMED and enable_trailers Envoy sends bodies twice that have trailers"
    return None


def retries(routed: Routed) -> At | None:
    """What asks for retries; that of the route counts, if it has any."""
    for holder in (routed.route.of("route"), routed.virtual_host):
        for name in ("retry_policy", "retry_policy_typed_config"):
            at = holder.of(name)
            if at.value is not None:
                return at if name != "retry_policy" or at.of("retry_on").value else None
    return None
