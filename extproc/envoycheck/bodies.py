"""Does Envoy show `serve` the bodies of requests, as long as they may be, and tell it when their answers end?

Seen with Envoy 1.40:

    request_header_mode    without the head Envoy chooses a node before the body is there
    request_body_mode      NONE and STREAMED: the node is chosen by the head alone; BUFFERED_PARTIAL: by as much of the
                           body as the buffer holds; none of them can be replaced
    two routes             with BUFFERED_PARTIAL Envoy picks no other one by the reply to a body, unless all of it has
                           come before the reply to the head: the choice is counted, and the first one's nodes serve
    buffer limits          of BUFFERED: longer bodies get 413. The limit is the listener's, 1 MiB if it has none, or
                           that of the first of route, virtual host, and both under the older name, if that is more
    response_trailer_mode  unless it is SEND, or answers' bodies are sent, streams of requests whose bodies are not held
                           end before their answers do
    upgrade_configs        with BUFFERED an upgraded request waits for the end of a body that has none
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from extproc.config import Config
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import Fault, shown
from extproc.envoycheck.destinations import Known, first_tried, obeyed, second_route
from extproc.envoycheck.file import At, Warned, number_of
from extproc.envoycheck.places import Place, places
from extproc.envoycheck.policies import policies_at
from extproc.envoycheck.processors import Processors
from extproc.sizes import MIB

BUFFER_BYTES: Final = MIB
"""Envoy's default for a listener."""
_SKIP: Final = ("SKIP", 2)
_NAMES: Final = ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED")
_MODES: Final = {None: "NONE"} | dict(enumerate(_NAMES))
_REPLACEABLE: Final = ("BUFFERED", "FULL_DUPLEX_STREAMED")
_PARTIAL: Final = "BUFFERED or FULL_DUPLEX_STREAMED (else longer bodies than Envoy's buffer decide by their beginning)"
_ONE_ROUTE: Final = "BUFFERED, or one route (else Envoy stays on the first one: what serve chose is counted, not heard)"
_LIMITS: Final = ("request_body_buffer_limit", "per_request_buffer_limit_bytes")


def body_mode(at: At) -> str:
    """The name of a body's mode, which may be absent or a number."""
    value = at.value
    return str(value) if isinstance(value, (dict, list)) else str(_MODES.get(value, value))


def rewriting(policies: Collection[RoutingPolicy]) -> str | None:
    """Why bodies get another model, if they do."""
    for policy in policies:
        for name, models in (("aliases", policy.aliases), ("fallback_models", policy.fallback_models)):
            if models:
                return f"{name} of policy {policy.name}"
    return None


def faults_in(found: Processors, settings: Config) -> Iterator[Fault]:
    """What of bodies is not seen, refused or waited for in vain. Never raises."""
    known: Known = {}
    for place in (one for one in places(found) if one.is_first):
        policies = [one for one in policies_at(place, settings).possible if one.mode != "off"]
        if policies:
            moves = any(_moves(place, one, found.clusters, known) for one in policies)
            yield from _mode_faults(place.mode, policies, moves=moves)
            yield from _trailer_faults(place.mode)
        yield from _limit_faults(place, settings.limits.body_bytes_max)
        yield from _upgrade_faults(place, found)


def _moves(place: Place, policy: RoutingPolicy, clusters: Mapping[str, At], known: Known) -> bool:
    """Whether a choice takes effect by a second route alone."""
    cluster = first_tried(place.cluster, clusters)
    if place.routed is None or policy.mode != "enforce" or cluster is None or policy.destination in obeyed(cluster):
        return False
    return second_route(place.routed, policy, clusters, known) is not None


def _mode_faults(mode: At, policies: Collection[RoutingPolicy], *, moves: bool) -> Iterator[Fault]:
    head, body, why = mode.of("request_header_mode"), mode.of("request_body_mode"), rewriting(policies)
    if head.value in _SKIP:
        yield Fault(head.path, "SEND (else a node is chosen before the body is there)", shown(head.value))
    name, got = body_mode(body), "nothing, so NONE" if body.value is None else shown(body.value)
    if why is not None and name not in _REPLACEABLE:
        yield Fault(body.path, f"BUFFERED or FULL_DUPLEX_STREAMED ({why})", got)
    elif name in ("NONE", "STREAMED"):
        headers = ", ".join(sorted({one.model_header for one in policies if one.model_header is not None}))
        by = f"{headers} must name the model" if headers else "no model is known"
        yield Warned(
            body.path, f"BUFFERED (else the head alone decides: {by}, prompts are guessed by their length)", got
        )
    elif name == "BUFFERED_PARTIAL":
        yield Fault(body.path, _ONE_ROUTE, got) if moves else Warned(body.path, _PARTIAL, got)


def _trailer_faults(mode: At) -> Iterator[Fault]:
    trailers = mode.of("response_trailer_mode")
    is_early = body_mode(mode.of("request_body_mode")) in ("NONE", "FULL_DUPLEX_STREAMED")
    if is_early and body_mode(mode.of("response_body_mode")) == "NONE" and trailers.value not in ("SEND", 1):
        got = "nothing, so SKIP" if trailers.value is None else shown(trailers.value)
        yield Fault(trailers.path, "SEND (else streams end before answers do, and requests count too short)", got)


def _limit_faults(place: Place, bytes_max: int) -> Iterator[Fault]:
    if place.routed is None or place.asking is None or body_mode(place.mode.of("request_body_mode")) != "BUFFERED":
        return
    holders = (place.routed.route, place.routed.virtual_host)
    own = next((at for name in _LIMITS for one in holders if (at := one.of(name)).value is not None), None)
    listeners = place.asking.listener.of("per_connection_buffer_limit_bytes")
    limits = [BUFFER_BYTES if listeners.value is None else number_of(listeners.value)]
    if own is not None:
        limits.append(number_of(own.value))
    known = [one for one in limits if one is not None]
    if len(known) == len(limits) and max(known) < bytes_max:
        at = own or place.routed.virtual_host.of(_LIMITS[0])
        got = f"nothing, so {max(known)}" if own is None else shown(own.value)
        yield Fault(at.path, f"at least {bytes_max} (limits.body_bytes_max; Envoy answers longer bodies 413)", got)


def _upgrade_faults(place: Place, found: Processors) -> Iterator[Fault]:
    allowed = place.ours.of("allow_mode_override")
    if place.routed is None or place.asking is None or allowed.value is True:
        return
    if body_mode(place.mode.of("request_body_mode")) not in ("BUFFERED", "BUFFERED_PARTIAL"):
        return
    by_type: dict[str, bool] = {}
    for one in place.asking.manager.of("upgrade_configs").each():
        filters = one.of("filters")
        is_through = not filters.value or bool(found.of(filters))
        by_type[_type(one)] = one.of("enabled").value is not False and is_through
    for one in place.routed.route.of("route", "upgrade_configs").each():
        by_type[_type(one)] = one.of("enabled").value is not False and by_type.get(_type(one), True)
    upgrades = [name for name, is_on in by_type.items() if is_on]
    if upgrades:
        wanted = f"true (else upgrades wait in vain for the end of their bodies: {', '.join(upgrades)})"
        yield Warned(allowed.path, wanted, "nothing" if allowed.value is None else shown(allowed.value))


def _type(upgrade: At) -> str:
    return str(upgrade.of("upgrade_type").value)[:40].lower()
