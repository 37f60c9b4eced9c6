"""The routing policy that Envoy's configuration asks for: a name, or a policy written there. Read once, then kept.

Where it stands in Envoy's messages is `policysource`'s.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import structlog

from extproc.core.policy import DESTINATIONS, RoutingPolicy, policy_from_mapping
from extproc.core.settings import Fault, shown
from extproc.gateway.conversation import HeadersWanted

KEY = "x-extproc-policy"
"""Set by `grpc_service.initial_metadata` of the filter or `ExtProcPerRoute.overrides.grpc_initial_metadata` of a route:
the name of a policy of ours, or a policy as a JSON object. Clients cannot set it."""

DESTINATION_KEY = "x-extproc-destination"
"""Beside it: a destination that holds instead of the policy's. How an Envoy is told is a matter of its own clusters."""

INLINE_NAME = "inline"
"""What a policy written in Envoy's configuration is called where it does not name itself."""

FAULT_CHARS_MAX = 400
"""Of a fault's text, as it stands in logs and in each request's metadata."""

log = structlog.get_logger()


def headers_wanted(policy: RoutingPolicy) -> HeadersWanted:
    """What a policy reads of a request's head."""
    return _wanted(policy.priority_header, policy.tenant_header, policy.model_header, policy.tenant_metadata)


@lru_cache(maxsize=1024)  # of names, for a policy's own hash costs more than all the rest
def _wanted(
    priority_header: str | None, tenant_header: str | None, model_header: str | None, tenant_metadata: str | None
) -> HeadersWanted:
    namespace, _, claim = (tenant_metadata or "").partition(":")
    names = frozenset(name for name in (priority_header, tenant_header, model_header) if name)
    return HeadersWanted(names, namespace, claim)


class Asked(NamedTuple):
    """What Envoy's configuration asks for where it is no plain text: read only if its bytes are new."""

    form: str | bytes
    """As it came, or what equal ones have in common."""
    read: Callable[[Any], str | Fault | None]
    """Makes of the form a name or JSON text, or nothing where it asks for no policy. Never raises."""


def read_policy(
    text: str, policies: Mapping[str, RoutingPolicy], classes: Collection[str] | None, bytes_max: int
) -> RoutingPolicy | list[Fault]:
    """The policy that a text asks for: the name of one of `policies`, or a JSON object. Else every fault of it.

    `classes` are the priority classes that a policy may name; `None`: any. Never raises.
    """
    size = _bytes_of(text)
    if size > bytes_max:
        return [Fault("", f"at most {bytes_max} bytes (limits.policy_bytes_max)", str(size))]
    text = text.strip()
    if not text.startswith("{"):
        named = policies.get(text)
        if named is None:
            return [Fault("", "a policy of the configuration, or one as a JSON object", shown(text))]
        return _of_known_class(named, classes)
    try:
        policy = policy_from_mapping({"name": INLINE_NAME, **json.loads(text)})
    except (ValueError, RecursionError):
        return [Fault("", "valid JSON", shown(text))]
    return policy if isinstance(policy, list) else _of_known_class(policy, classes)


def _of_known_class(policy: RoutingPolicy, classes: Collection[str] | None) -> RoutingPolicy | list[Fault]:
    if policy.priority is None or classes is None or policy.priority in classes:
        return policy
    return [Fault("priority", f"one of {', '.join(classes)}", shown(policy.priority))]


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


class RoutePolicies:
    """Policies by what the route says. Each value is read once and kept, the least recently used one goes first.

    A value that cannot be used is a fault: the default policy serves, for a route with a wrong policy still has nodes.
    `classes` are the priority classes that a policy may name; `None`: any.
    """

    def __init__(
        self,
        policies: Mapping[str, RoutingPolicy],
        default: RoutingPolicy,
        *,
        policy_bytes_max: int = 16 * 1024,
        policies_cached_max: int = 256,
        classes: Collection[str] | None = None,
        strict: bool = False,
    ) -> None:
        self.strict = strict
        """Whether requests are refused whose route asks for what cannot be used."""
        self._policies = policies
        self._classes = classes
        self.default = default
        """Serves routes that name no policy, or none that can be used."""
        self._policy_bytes_max = policy_bytes_max
        self._policies_cached_max = policies_cached_max
        self._cached: OrderedDict[_Key, tuple[RoutingPolicy, str | None]] = OrderedDict()

    def of(self, asked: str | Asked | None, destination: str | None = None) -> tuple[RoutingPolicy, str | None]:
        """The policy for a request, and what was wrong with the one asked for.

        Where Envoy says by which `destination` it wants to be told, that holds instead of the policy's.
        """
        policy, fault = self._of(asked)
        if destination is None or destination == policy.destination:
            return policy, fault
        if destination not in DESTINATIONS:
            return policy, fault or self._no_destination(shown(destination))[1]
        key = (None if fault else asked, destination)  # a text that is a fault may be long, and is not kept
        found = self._cached.get(key)
        if found is None:
            found = self._keep(key, (policy.model_copy(update={"destination": destination}), None))
        else:
            self._cached.move_to_end(key)
        return found[0], fault

    def _no_destination(self, told: str) -> tuple[RoutingPolicy, str | None]:
        key = (DESTINATION_KEY, told)
        wanted = Fault(DESTINATION_KEY, f"one of {', '.join(DESTINATIONS)}", told)
        return self._cached.get(key) or self._keep(key, self._fault(told, str(wanted)))

    def _of(self, asked: str | Asked | None) -> tuple[RoutingPolicy, str | None]:
        if not asked:
            return self.default, None
        found = self._cached.get(asked)
        if found is not None:
            self._cached.move_to_end(asked)
            return found
        form = asked if isinstance(asked, str) else asked.form
        size = _bytes_of(form) if isinstance(form, str) else len(form)
        if size > self._policy_bytes_max:
            return self._too_long(form, size)
        return self._keep(asked, self._read(asked))

    def _too_long(self, form: str | bytes, size: int) -> tuple[RoutingPolicy, str | None]:
        key = f"{form[:40]!s}… ({size} bytes)"  # what is kept of it must be small too
        found = self._cached.get(key)
        return found or self._keep(key, self._fault(key, f"wanted at most {self._policy_bytes_max} bytes, got {size}"))

    def _keep(self, key: "_Key", found: tuple[RoutingPolicy, str | None]) -> tuple[RoutingPolicy, str | None]:
        self._cached[key] = found
        if len(self._cached) > self._policies_cached_max:
            self._cached.popitem(last=False)
        return found

    def _read(self, asked: str | Asked) -> tuple[RoutingPolicy, str | None]:
        content = asked if isinstance(asked, str) else asked.read(asked.form)
        match content:
            case None | "":
                return self.default, None
            case Fault():
                policy: RoutingPolicy | list[Fault] = [content]
            case _:
                policy = read_policy(content, self._policies, self._classes, self._policy_bytes_max)
        if isinstance(policy, RoutingPolicy):
            return policy, None
        return self._fault(str(content), "; ".join(str(one).removeprefix("(top): ") for one in policy))

    def _fault(self, asked: str, fault: str) -> tuple[RoutingPolicy, str]:
        fault = fault[:FAULT_CHARS_MAX]
        served = "answered 500" if self.strict else f"served by policy {self.default.name}"
        log.warning("policy of a route not usable", policy=asked[:200], fault=fault, requests=served)
        return self.default, fault


_Key = str | Asked | tuple[str | Asked | None, str]
