"""The routing policy that Envoy's configuration asks for, out of a stream's gRPC metadata."""

import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

import structlog

from extproc.core.policy import RoutingPolicy, policy_from_mapping
from extproc.gateway.conversation import HeadersWanted

KEY = "x-extproc-policy"
"""Set by `grpc_service.initial_metadata` of the filter or `ExtProcPerRoute.overrides.grpc_initial_metadata` of a route:
the name of a policy of ours, or a policy as a JSON object. Clients cannot set it."""

INLINE_NAME = "inline"
"""What a policy written in Envoy's configuration is called where it does not name itself."""

FAULT_CHARS_MAX = 400
"""Of a fault's text, as it stands in logs and in each request's metadata."""

log = structlog.get_logger()


def headers_wanted(policy: RoutingPolicy) -> HeadersWanted:
    """What a policy reads of a request's head."""
    return _wanted(policy.priority_header, policy.tenant_header, policy.tenant_metadata)


@lru_cache(maxsize=1024)  # of names, for a policy's own hash costs more than all the rest
def _wanted(priority_header: str | None, tenant_header: str | None, tenant_metadata: str | None) -> HeadersWanted:
    namespace, _, claim = (tenant_metadata or "").partition(":")
    return HeadersWanted(frozenset(name for name in (priority_header, tenant_header) if name), namespace, claim)


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
    ) -> None:
        self._policies = policies
        self._classes = classes
        self.default = default
        """Serves routes that name no policy, or none that can be used."""
        self._policy_bytes_max = policy_bytes_max
        self._policies_cached_max = policies_cached_max
        self._cached: OrderedDict[str, tuple[RoutingPolicy, str | None]] = OrderedDict()

    def of(self, metadata: Iterable[tuple[str, str | bytes]]) -> tuple[RoutingPolicy, str | None]:
        """The policy for a stream, and what was wrong with the one asked for."""
        value = None
        for key, one in metadata:
            if key == KEY:
                value = one  # the last one holds: Envoy appends the route's to the filter's
        if not value:
            return self.default, None
        text = value if isinstance(value, str) else value.decode("utf-8", "replace")
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if size > self._policy_bytes_max:
            text = f"{text[:40]}… ({size} bytes)"  # what is kept of it must be small too
        found = self._cached.get(text)
        if found is None:
            found = self._read(text, size)
            self._cached[text] = found
            if len(self._cached) > self._policies_cached_max:
                self._cached.popitem(last=False)
        else:
            self._cached.move_to_end(text)
        return found

    def _read(self, text: str, size: int) -> tuple[RoutingPolicy, str | None]:
        if size > self._policy_bytes_max:
            policy: RoutingPolicy | str = f"wanted at most {self._policy_bytes_max} bytes, got {size}"
        else:
            policy = self._of_known_class(self._named_or_inline(text.strip()))
        if isinstance(policy, RoutingPolicy):
            return policy, None
        log.warning("policy of a route not usable", policy=text[:200], fault=policy, used=self.default.name)
        return self.default, policy

    def _of_known_class(self, policy: RoutingPolicy | str) -> RoutingPolicy | str:
        if isinstance(policy, str) or policy.priority is None or self._classes is None:
            return policy
        if policy.priority in self._classes:
            return policy
        return f"priority: wanted one of {', '.join(self._classes)}, got {policy.priority!r}"[:FAULT_CHARS_MAX]

    def _named_or_inline(self, text: str) -> RoutingPolicy | str:
        if not text.startswith("{"):
            return self._policies.get(text) or f"no policy is named {text[:64]!r}"
        try:
            mapping = json.loads(text)
        except (ValueError, RecursionError):
            return "not valid JSON"
        policy = policy_from_mapping({"name": INLINE_NAME} | mapping)
        if isinstance(policy, RoutingPolicy):
            return policy
        return "; ".join(map(str, policy))[:FAULT_CHARS_MAX]
