"""Which policies requests have at a place, as `serve` reads what Envoy's configuration asks for.

Seen with Envoy 1.40: a percent sign in gRPC metadata begins a command, as `%REQ(name)%`, or is doubled. Where it is
neither, Envoy starts, and no stream to `serve` does: 500, or with failure_mode_allow no choice.
"""

import json
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from extproc.config import Config
from extproc.core.policy import DESTINATIONS, RoutingPolicy
from extproc.core.settings import Fault, shown
from extproc.envoycheck.file import At
from extproc.envoycheck.places import Place
from extproc.gateway.policysource import GATEWAY_NAMESPACE, NAMESPACE, POLICY_FIELD, ROUTE_METADATA
from extproc.gateway.routepolicy import DESTINATION_KEY, read_policy

_PERCENT: Final = re.compile(r"%(?P<rest>%|[A-Z0-9_]+(?:\([^)]*\))?(?::[0-9]+)?%)?", re.ASCII)
"""A sign that is doubled, one that begins a command, whatever its name, or one that is neither."""
_AROUND: Final = 12
"""Characters that are shown on either side of a sign."""


class Policies(msgspec.Struct, frozen=True):
    """Which policies requests have at a place."""

    possible: list[RoutingPolicy]
    """One where it is known, else all that it may be."""
    faults: list[Fault]
    """Of what is asked for."""


def policies_at(place: Place, settings: Config) -> Policies:
    """Those that requests may have there, as `serve` reads them, and what is wrong with the one asked for."""
    told = _asked_for(place, settings)
    at = place.metadata(DESTINATION_KEY)
    if at is None or not isinstance(at.value, str) or not at.value:
        return told
    lone = list(_lone_faults(at, at.value))
    if lone or is_put_together(at.value):
        return Policies(told.possible, [*told.faults, *lone])
    if at.value not in DESTINATIONS:
        fault = Fault(at.path, f"one of {', '.join(DESTINATIONS)}", shown(at.value))
        return Policies(told.possible, [*told.faults, fault])
    possible = [
        one if one.destination == at.value else one.model_copy(update={"destination": at.value})
        for one in told.possible
    ]
    return Policies(possible, told.faults)


def _asked_for(place: Place, settings: Config) -> Policies:
    every, default = list(settings.policies.values()), settings.policies[settings.default_policy]
    at = place.asked_for
    if at is not None and at.value not in ("", None):
        if not isinstance(at.value, str):
            return Policies(every, [])
        lone = list(_lone_faults(at, at.value))
        if is_put_together(at.value):
            return Policies(every, lone)
        told = _read(At(at.path, at.value.replace("%%", "%")), place, settings)
        return Policies(told.possible, [*lone, *told.faults])
    forwarded = place.nearest("metadata_options", "forwarding_namespaces").of("untyped")
    if place.routed is None or NAMESPACE in _list(forwarded):
        return Policies(every, [])
    asked = of_route(place.routed.route) if ROUTE_METADATA in _list(place.nearest("request_attributes")) else None
    return Policies([default], []) if asked is None else _read(asked, place, settings)


def _read(at: At, place: Place, settings: Config) -> Policies:
    """Of a name or JSON text, or a policy's own keys."""
    try:
        text = at.value if isinstance(at.value, str) else json.dumps(at.value)
    except (TypeError, ValueError):  # of YAML's dates and keys, which Envoy refuses
        return Policies([settings.policies[settings.default_policy]], [])
    policy = read_policy(text, settings.policies, settings.classes, settings.limits.policy_bytes_max)
    if isinstance(policy, list):
        faults = [Fault(f"{at.path}.{fault.path}".rstrip("."), fault.wanted, fault.got) for fault in policy]
        return Policies([settings.policies[settings.default_policy]], faults)
    return Policies([policy] if place.routed else [policy, *settings.policies.values()], [])


def of_route(route: At) -> At | None:
    """What a route's metadata asks for: text, or a policy's own keys; `None`: nothing."""
    namespaces = route.of("metadata", "filter_metadata")
    namespace = namespaces.of(NAMESPACE)
    if isinstance(namespace.value, dict) and namespace.value:
        policy = namespace.of(POLICY_FIELD)
        if not (len(namespace.value) == 1 and isinstance(policy.value, str)):
            return namespace
        if policy.value:
            return policy
    for resource in namespaces.of(GATEWAY_NAMESPACE, "resources").each():
        annotation = resource.of("annotations").of(NAMESPACE)
        if isinstance(annotation.value, str) and annotation.value:
            return annotation
    return None


def _list(at: At) -> list[object]:
    return at.value if isinstance(at.value, list) else []


def is_put_together(value: str) -> bool:
    """Whether Envoy makes a value of metadata anew for each request."""
    return any(sign["rest"] not in (None, "%") for sign in _PERCENT.finditer(value))


def _lone_faults(at: At, value: str) -> Iterator[Fault]:
    """The first percent sign that keeps streams from beginning."""
    for sign in _PERCENT.finditer(value):
        if sign["rest"] is None:
            around = value[max(0, sign.start() - _AROUND) : sign.end() + _AROUND]
            yield Fault(at.path, "%% for each percent sign (else no stream to serve begins here)", shown(around))
            return
