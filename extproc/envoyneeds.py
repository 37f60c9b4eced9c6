"""Does Envoy's filter give `serve` what a configuration needs, and do routes ask for policies that there are?

Seen with Envoy 1.40 where it does not, and little else tells it:

    mutation_rules     without x-envoy-original-dst-host requests go on without a choice; without content-length they
                       get 500 where an alias or a fallback gives the body another length; refusals lose their headers
    forward_rules      tenants and classes in headers that are not shown stay unknown
    metadata_options   so does the tenant in a claim whose namespace is not forwarded
    processing_mode    without the head Envoy chooses a node before the body is there; without the whole body the
                       model in it cannot be replaced
    x-extproc-policy   where the policy cannot be used the default one serves

Policies count where the file asks for them; all that the configuration has, where routes are told by xDS or a value is
put together for each request.
"""

import json
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from extproc.config import Config
from extproc.core.policy import RoutingPolicy, policy_from_mapping
from extproc.core.settings import Fault, shown
from extproc.envoyfile import At
from extproc.envoyheaders import dropped, hidden
from extproc.envoyprocessors import PER_ROUTE, Processors, is_asked, own_config, routes_of, tables_of
from extproc.gateway.codec import DESTINATION_HEADER
from extproc.gateway.routepolicy import INLINE_NAME, KEY

REFUSAL_HEADERS: Final = ("content-type", "retry-after")
QUOTA_HEADERS: Final = tuple(
    f"x-ratelimit-{what}{of}" for of in ("-tokens", "") for what in ("limit", "remaining", "reset")
)
READ_HEADERS: Final = (":method", ":path", "content-length", "x-request-id")
"""Of every request, whatever its policy."""
_SKIP: Final = ("SKIP", 2)
_BODY_MODES: Final = {None: "NONE", 0: "NONE", 2: "BUFFERED"}
"""Those that matter, where they go by their numbers or are absent."""


class _Place(msgspec.Struct, frozen=True):
    """What holds for a filter on a route, or on those that the file does not tell."""

    mode: At
    namespaces: At
    policy: At | None
    """The value of `x-extproc-policy`, where there is one."""
    is_told: bool


def faults_in(found: Processors, settings: Config) -> list[Fault]:
    """What a bootstrap lacks for a configuration, and what is wrong with policies that it asks for. Never raises."""
    faults: list[Fault] = []
    for one in found.filters:
        asked: dict[int, RoutingPolicy] = {}
        for place in _places(found, one):
            policies, wrong = _policies(place, settings)
            faults += (*wrong, *_mode_faults(place.mode, policies), *_namespace_faults(place.namespaces, policies))
            asked |= {id(policy): policy for policy in policies}
        if asked:
            faults += _mutation_faults(one.of("mutation_rules"), asked.values(), with_quotas=bool(settings.quotas))
            faults += _forwarding_faults(one.of("forward_rules"), asked.values())
    return list(dict.fromkeys(faults))


def _places(found: Processors, one: At) -> Iterator[_Place]:
    """Where requests come through a filter of ours."""
    holders = [
        (asking.manager, each) for asking in found.asking for each in asking.http_filters if one in found.of(each)
    ]
    if not holders:
        yield _place(one, [], is_told=False)
    for manager, http_filter in holders:
        tables = tables_of(manager)
        if not tables or any(table.of("vhds").value is not None for table in tables):
            yield _place(one, [], is_told=False)
        for configs in (
            each for table in tables for route, shared in routes_of(table) for each in _ways(route, shared)
        ):
            if is_asked(http_filter, configs):
                own = [each for config in configs if (each := own_config(http_filter, config)) is not None]
                overrides = [each.of("overrides") for config in own for each in config.typed(PER_ROUTE)]
                yield _place(one, overrides, is_told=True)


def _ways(route: At, configs: list[At]) -> list[list[At]]:
    """A route's configurations of filters, for each cluster that has some of its own."""
    weighted = route.of("route", "weighted_clusters", "clusters").each()
    return [[one.of("typed_per_filter_config"), *configs] for one in weighted] or [configs]


def _place(one: At, overrides: list[At], *, is_told: bool) -> _Place:
    """The most specific override comes first. Each replaces whole messages, and of the metadata single keys."""

    def nearest(*names: str) -> At:
        below = (each.of(*names) for each in overrides)
        return next((each for each in below if each.value is not None), one.of(*names))

    metadata = [each.of("grpc_initial_metadata") for each in overrides]
    metadata.append(nearest("grpc_service").of("initial_metadata"))
    policies = (
        entry.of("value")
        for entries in metadata
        for entry in reversed(list(entries.each()))  # of two the last one holds
        if str(entry.of("key").value).lower() == KEY
    )
    namespaces = nearest("metadata_options", "forwarding_namespaces")
    return _Place(nearest("processing_mode"), namespaces, next(policies, None), is_told)


def _policies(place: _Place, settings: Config) -> tuple[list[RoutingPolicy], list[Fault]]:
    """Those that requests may have there, as `RoutePolicies` reads them, and what is wrong with the one asked for."""
    default = settings.policies[settings.default_policy]
    at = place.policy
    if at is None or at.value in ("", None):
        return ([default] if place.is_told else list(settings.policies.values())), []
    if not isinstance(at.value, str) or "%" in at.value.replace("%%", ""):
        return list(settings.policies.values()), []
    policy = _policy(at.value.replace("%%", "%"), at.path, settings)
    if isinstance(policy, list):
        return [default], policy
    told = [policy] if place.is_told else [policy, *settings.policies.values()]
    return told, []


def _policy(text: str, path: str, settings: Config) -> RoutingPolicy | list[Fault]:
    bytes_max = settings.limits.policy_bytes_max
    if len(text.encode("utf-8", "replace")) > bytes_max:
        return [Fault(path, f"at most {bytes_max} bytes (limits.policy_bytes_max)", "more")]
    if not text.strip().startswith("{"):
        named = settings.policies.get(text.strip())
        return named or [Fault(path, "a policy of the configuration, or one as a JSON object", shown(text))]
    try:
        mapping = json.loads(text)
    except (ValueError, RecursionError):
        return [Fault(path, "valid JSON", shown(text))]
    policy = policy_from_mapping({"name": INLINE_NAME} | mapping)
    if isinstance(policy, list):
        return [Fault(f"{path}.{fault.path}".rstrip("."), fault.wanted, fault.got) for fault in policy]
    if policy.priority is not None and policy.priority not in settings.classes:
        return [Fault(f"{path}.priority", f"one of {', '.join(settings.classes)}", shown(policy.priority))]
    return policy


def _rewriting(policies: Collection[RoutingPolicy]) -> str | None:
    """Why bodies get another model, if they do."""
    for policy in policies:
        for name, models in (("aliases", policy.aliases), ("fallback_models", policy.fallback_models)):
            if models:
                return f"{name} of policy {policy.name}"
    return None


def _mode_faults(mode: At, policies: Collection[RoutingPolicy]) -> Iterator[Fault]:
    head, body, rewriting = mode.of("request_header_mode"), mode.of("request_body_mode"), _rewriting(policies)
    if head.value in _SKIP:
        yield Fault(head.path, "SEND (else a node is chosen before the body is there)", shown(head.value))
    name = body.value if isinstance(body.value, (dict, list)) else _BODY_MODES.get(body.value, body.value)
    if name == "NONE" or (rewriting is not None and name != "BUFFERED"):
        got = "nothing, so NONE" if body.value is None else shown(body.value)
        yield Fault(body.path, f"BUFFERED ({rewriting or 'the model stands in the body'})", got)


def _namespace_faults(namespaces: At, policies: Collection[RoutingPolicy]) -> Iterator[Fault]:
    untyped = namespaces.of("untyped")
    forwarded = untyped.value if isinstance(untyped.value, list) else []
    for policy in policies:
        namespace, _, _ = (policy.tenant_metadata or "").partition(":")
        if namespace and namespace not in forwarded:
            got = "nothing" if untyped.value is None else shown(untyped.value)
            yield Fault(untyped.path, f"{namespace} among them (tenant_metadata of policy {policy.name})", got)


def _mutation_faults(rules: At, policies: Collection[RoutingPolicy], *, with_quotas: bool) -> Iterator[Fault]:
    needed = {"the choice of a node": (DESTINATION_HEADER,), "refusals": REFUSAL_HEADERS}
    if with_quotas:
        needed["refusals by quotas"] = QUOTA_HEADERS
    rewriting = _rewriting(policies)
    if rewriting is not None:
        needed[rewriting] = ("content-length",)
    for why, headers in needed.items():
        lost = {header: got for header in headers if (got := dropped(rules, header)) is not None}
        if lost:
            yield Fault(rules.path, f"{', '.join(lost)} let through ({why})", next(iter(lost.values())))


def _forwarding_faults(rules: At, policies: Collection[RoutingPolicy]) -> Iterator[Fault]:
    wanted = [(header, "read of every request") for header in READ_HEADERS]
    for policy in policies:
        names = {"priority_header": policy.priority_header, "tenant_header": policy.tenant_header}
        wanted += [(header, f"{name} of policy {policy.name}") for name, header in names.items() if header is not None]
    for header, why in wanted:
        found = hidden(rules, header)
        if found is not None:
            at, got = found
            yield Fault(at.path, f"{header} let through ({why})", got)
