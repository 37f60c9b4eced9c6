"""Does Envoy's filter give `serve` what a configuration needs, and do routes ask for policies that there are?

Seen with Envoy 1.40 where it does not, and little else tells it:

    mutation_rules     without x-envoy-original-dst-host requests go on without a choice; without content-length they
                       get 500 where an alias or a fallback gives the body another length; refusals lose their headers
    forward_rules      tenants and classes in headers that are not shown stay unknown
    metadata_options   so does the tenant in a claim whose namespace is not forwarded
    x-extproc-policy   where the policy cannot be used the default one serves

Policies count where the file asks for them; all that the configuration has, where routes are told by xDS or a value is
put together for each request.
"""

from collections.abc import Collection, Iterator
from typing import Final

from extproc.config import Config
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import Fault, shown
from extproc.envoycheck.bodies import rewriting
from extproc.envoycheck.file import At
from extproc.envoycheck.headers import dropped, hidden
from extproc.envoycheck.places import Place, places
from extproc.envoycheck.policies import policies_at
from extproc.envoycheck.processors import Processors
from extproc.gateway.codec import DESTINATION_HEADER
from extproc.gateway.endpointpicker import DESTINATION as PICKED

REFUSAL_HEADERS: Final = ("content-type", "retry-after")
QUOTA_HEADERS: Final = tuple(
    f"x-ratelimit-{what}{of}" for of in ("-tokens", "") for what in ("limit", "remaining", "reset")
)
READ_HEADERS: Final = (":method", ":path", "content-length", "x-request-id")
"""Of every request, whatever its policy."""
_CHOICES: Final = {"original-dst": DESTINATION_HEADER, "override-host": PICKED}
"""The header that says the choice, for each destination that has one."""


def faults_in(found: Processors, settings: Config) -> list[Fault]:
    """What a bootstrap lacks for a configuration, and what is wrong with policies that it asks for. Never raises."""
    faults: list[Fault] = []
    asked: dict[str, dict[int, RoutingPolicy]] = {one.path: {} for one in found.filters}
    for place in places(found):
        told = policies_at(place, settings)
        faults += (*told.faults, *_namespace_faults(place, told.possible))
        asked[place.ours.path] |= {id(policy): policy for policy in told.possible if policy.mode != "off"}
    for one in found.filters:
        policies = asked[one.path].values()
        if policies:
            faults += _mutation_faults(one.of("mutation_rules"), policies, with_quotas=bool(settings.quotas))
            faults += _forwarding_faults(one.of("forward_rules"), policies)
    return list(dict.fromkeys(faults))


def _namespace_faults(place: Place, policies: Collection[RoutingPolicy]) -> Iterator[Fault]:
    untyped = place.nearest("metadata_options", "forwarding_namespaces").of("untyped")
    forwarded = untyped.value if isinstance(untyped.value, list) else []
    for policy in policies:
        namespace, _, _ = (policy.tenant_metadata or "").partition(":")
        if namespace and namespace not in forwarded:
            got = "nothing" if untyped.value is None else shown(untyped.value)
            yield Fault(untyped.path, f"{namespace} among them (tenant_metadata of policy {policy.name})", got)


def _mutation_faults(rules: At, policies: Collection[RoutingPolicy], *, with_quotas: bool) -> Iterator[Fault]:
    choices = {policy.destination for policy in policies if policy.mode == "enforce"}
    headers = tuple(header for destination, header in _CHOICES.items() if destination in choices)
    needed = {"the choice of a node": headers, "refusals": REFUSAL_HEADERS}
    if with_quotas:
        needed["refusals by quotas"] = QUOTA_HEADERS
    why = rewriting(policies)
    if why is not None:
        needed[why] = ("content-length",)
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
