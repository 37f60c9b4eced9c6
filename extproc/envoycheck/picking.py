"""Is an override-host list walked once, as far as it goes, and does `serve` hear which of its hosts served?

Seen with Envoy 1.40 (docs/envoy.md):

    retry_policy           each retry takes the next host of the list; without one a host that cannot be reached is the
                           client's 503
    num_retries            after the last host the fallback policy takes any, also one that was tried
    override_host_sources  with metadata and header the list is walked twice
    the served host        comes back in `envoy.lb` with the head of the answer
"""

from collections.abc import Iterator
from typing import Final

from extproc.config import Config
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import Fault, shown
from extproc.envoycheck.destinations import OVERRIDE_HOST, first_tried, obeyed
from extproc.envoycheck.file import At, Warned, number_of
from extproc.envoycheck.places import Place, places
from extproc.envoycheck.policies import policies_at
from extproc.envoycheck.processors import Processors
from extproc.envoycheck.twice import broken, retries
from extproc.gateway.endpointpicker import NAMESPACE as LB

_SKIP: Final = ("SKIP", 2)


def faults_in(found: Processors, settings: Config) -> Iterator[Fault]:
    """What keeps lists of hosts from being walked. Never raises."""
    for place in places(found):
        cluster = first_tried(place.cluster, found.clusters)
        if cluster is None or "override-host" not in obeyed(cluster):
            continue
        deciding = [one for one in policies_at(place, settings).possible if one.mode == "enforce"]
        if len(deciding) == 1 and deciding[0].destination == "override-host":
            yield from _retry_faults(place, deciding[0])
            yield from _served_faults(place)
            yield from _source_faults(cluster)


def _retry_faults(place: Place, policy: RoutingPolicy) -> Iterator[Fault]:
    if place.routed is None:
        return
    at, most = retries(place.routed), policy.destinations_max - 1
    if at is None:
        if broken(place) is None and most:
            missing = place.routed.route.of("route", "retry_policy")
            wanted = f"retries, num_retries {most} (else the hosts after the first are never tried)"
            yield Warned(missing.path, wanted, "nothing" if missing.value is None else shown(missing.value))
        return
    number = at.of("num_retries")
    count = 1 if number.value is None else number_of(number.value)
    if count is not None and count > max(1, most) and not any(at.of("retry_host_predicate").each()):
        wanted = f"at most {max(1, most)} (destinations_max of policy {policy.name}: then any host, also a tried one)"
        yield Warned(number.path, wanted, shown(number.value))


def _served_faults(place: Place) -> Iterator[Fault]:
    heads = place.mode.of("response_header_mode")
    forwarded = place.nearest("metadata_options", "forwarding_namespaces").of("untyped")
    why = "(else serve never hears which host served, and counts for the first one)"
    if heads.value in _SKIP:
        yield Warned(heads.path, f"SEND {why}", shown(heads.value))
    if not (isinstance(forwarded.value, list) and LB in forwarded.value):
        got = "nothing" if forwarded.value is None else shown(forwarded.value)
        yield Warned(forwarded.path, f"{LB} among them {why}", got)


def _source_faults(cluster: At) -> Iterator[Fault]:
    for one in cluster.of("load_balancing_policy").typed(OVERRIDE_HOST):
        sources = one.of("override_host_sources")
        kinds = [name for name in ("header", "metadata") if any(each.of(name).value for each in sources.each())]
        if len(kinds) > 1:
            yield Warned(sources.path, "one of header and metadata (else retries walk the list twice)", "both")
