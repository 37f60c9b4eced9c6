"""Does the choice that `serve` makes have an effect on Envoy's routes, and where do requests go without one?

Seen with Envoy 1.40:

    cluster            only one of type ORIGINAL_DST with `use_http_header`, or one with override_host, obeys a choice
    metadata           dropped without a word where `receiving_namespaces` does not name it: of a choice, and of the
                       request's id, by which `serve` knows its requests in the access log
    route_cache_action RETAIN keeps the route on which the request came, whatever header is set
    fail-open          a cluster of type ORIGINAL_DST has no node to offer without a choice: 503
    composite          the first attempt goes to the first of its clusters, which is the one to obey; clients are obeyed
                       by any of them
"""

from collections.abc import Iterator, Mapping
from typing import Final

from extproc.config import Config
from extproc.core.policy import RoutingPolicy
from extproc.core.settings import Fault, shown
from extproc.envoycheck.file import At, Warned
from extproc.envoycheck.places import Place, is_after_choice, places
from extproc.envoycheck.policies import policies_at
from extproc.envoycheck.processors import Asking, Processors, Routed, routes_of, tables_of
from extproc.gateway.codec import DESTINATION_HEADER
from extproc.gateway.endpointpicker import DESTINATION as PICKED
from extproc.gateway.endpointpicker import NAMESPACE as LB

OVERRIDE_HOST: Final = "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost"
_COMPOSITE = "envoy.extensions.clusters.composite.v3.ClusterConfig"
_TYPES: Final = {None: "STATIC", 0: "STATIC", 1: "STRICT_DNS", 2: "LOGICAL_DNS", 3: "EDS", 4: "ORIGINAL_DST"}
_OBEYING: Final = {
    "original-dst": "a cluster of type ORIGINAL_DST with use_http_header",
    "original-dst-metadata": f"a cluster of type ORIGINAL_DST with metadata_key {LB}, {DESTINATION_HEADER}",
    "override-host": f"a cluster with the policy override_host, and {PICKED} among its sources",
}
_UNKNOWN: Final = (
    "else serve knows none of its requests in Envoy's access log: no failure learned by it, no node left out, "
    "no answer measured"
)
_PATHS: Final = ("prefix", "path", "safe_regex", "connect_matcher", "path_separated_prefix", "path_match_policy")


def faults_in(found: Processors, settings: Config) -> Iterator[Fault]:
    """Where choices are lost, and where requests are lost without one. Never raises."""
    known: Known = {}
    for place in places(found):
        possible = policies_at(place, settings).possible
        deciding = [one for one in possible if one.mode == "enforce"]
        if any(one.mode != "off" for one in possible):
            yield from _receiving_faults(place, deciding, found.clusters)
        if place.routed is not None:
            if len(deciding) == 1:
                yield from _reach_faults(place.routed, place.cluster, deciding[0], found.clusters, known)
            yield from _fail_open_faults(place, found.clusters, known)
    for asking in found.asking:
        yield from _cache_faults(asking, found)


def _receiving_faults(place: Place, deciding: list[RoutingPolicy], clusters: Mapping[str, At]) -> Iterator[Fault]:
    namespaces = place.nearest("metadata_options", "receiving_namespaces").of("untyped")
    received = namespaces.value if isinstance(namespaces.value, list) else []
    got = "nothing" if namespaces.value is None else shown(namespaces.value)
    for policy in deciding:
        if policy.destination != "original-dst" and LB not in received:
            cluster = clusters.get(place.cluster or "")
            is_by_header = cluster is not None and obeyed(cluster).get(policy.destination) is not None
            kind = Warned if is_by_header else Fault
            yield kind(
                namespaces.path, f"{LB} among them (destination {policy.destination} of policy {policy.name})", got
            )
    if "extproc" not in received:
        yield Fault(namespaces.path, f"extproc among them ({_UNKNOWN})", got)


def _reach_faults(
    routed: Routed, name: str | None, policy: RoutingPolicy, clusters: Mapping[str, At], known: "Known"
) -> Iterator[Fault]:
    """A route that leads past the choice, unless it is the one of two that is left once the choice is made."""
    cluster = first_tried(name, clusters)
    if cluster is None or cluster.of("cluster_type").value is not None or policy.destination in obeyed(cluster):
        return
    if second_route(routed, policy, clusters, known) is not None:
        return
    at = routed.route.of("route", "cluster")
    if at.value is None:
        at = routed.route.of("route", "weighted_clusters")
    wanted = f"{_OBEYING[policy.destination]} (destination of policy {policy.name}: {policy.destination})"
    yield Fault(at.path, wanted, f"{shown(cluster.of('name').value)}, {_type(cluster)} without it")


def second_route(routed: Routed, policy: RoutingPolicy, clusters: Mapping[str, At], known: "Known") -> Routed | None:
    """The one on which a route's requests go once there is a choice, which its cluster obeys."""
    _, second = _beside(routed, known)
    for other in second if policy.destination != "override-host" else ():
        name = other.route.of("route", "cluster").value
        chosen = first_tried(name if isinstance(name, str) else None, clusters)
        if _covers(other, routed) and chosen is not None and policy.destination in obeyed(chosen):
            return other
    return None


def members(cluster: At) -> list[str]:
    """The names of a composite cluster's own clusters, an attempt each; none of any other."""
    listed = (one for config in cluster.of("cluster_type").typed(_COMPOSITE) for one in config.of("clusters").each())
    return [str(one.of("name").value) for one in listed]


def first_tried(name: str | None, clusters: Mapping[str, At]) -> At | None:
    """The cluster that has the first attempt: of a composite one its first. `None`: the file does not tell it."""
    cluster = clusters.get(name or "")
    listed = [] if cluster is None else members(cluster)
    return clusters.get(listed[0]) if listed else cluster


def obeyed(cluster: At) -> dict[str, str | None]:
    """The destinations that a cluster obeys, with the header in which, if in one, clients could name it."""
    found: dict[str, str | None] = {}
    if _type(cluster) == "ORIGINAL_DST":
        config = cluster.of("original_dst_lb_config")
        header = str(config.of("http_header_name").value or DESTINATION_HEADER).lower()
        if config.of("use_http_header").value is True and header == DESTINATION_HEADER:
            found["original-dst"] = header
        if _names(config.of("metadata_key"), DESTINATION_HEADER):
            found["original-dst-metadata"] = None
    for policy in cluster.of("load_balancing_policy").typed(OVERRIDE_HOST):
        sources = list(policy.of("override_host_sources").each())
        headers = [one for one in sources if str(one.of("header").value).lower() == PICKED]
        if headers or any(_names(one.of("metadata"), PICKED) for one in sources):
            found["override-host"] = PICKED if headers else None
    return found


def _names(key: At, name: str) -> bool:
    path = [one.of("key").value for one in key.of("path").each()]
    return key.of("key").value == LB and path == [name]


def _type(cluster: At) -> str:
    value = cluster.of("type").value
    return str(value) if isinstance(value, (dict, list)) else str(_TYPES.get(value, value))


Known = dict[str, tuple[list[Routed], list[Routed]]]
"""Of each virtual host the routes on which requests come, and those on which they go once there is a choice."""


def _beside(routed: Routed, known: Known) -> tuple[list[Routed], list[Routed]]:
    path = routed.virtual_host.path
    if path not in known:
        routes = list(routes_of(At("", {"virtual_hosts": [routed.virtual_host.value]})))
        later = [is_after_choice(one.route) for one in routes]
        known[path] = (
            [one for one, is_later in zip(routes, later, strict=True) if not is_later],
            [one for one, is_later in zip(routes, later, strict=True) if is_later],
        )
    return known[path]


def _covers(one: Routed, other: Routed) -> bool:
    """Whether a route matches all paths of another."""
    mine, others = one.route.of("match"), other.route.of("match")
    if all(mine.of(name).value == others.of(name).value for name in _PATHS):
        return True
    prefix = mine.of("prefix").value
    path = others.of("prefix").value or others.of("path").value
    return isinstance(prefix, str) and (prefix == "/" or (isinstance(path, str) and path.startswith(prefix)))


def _fail_open_faults(place: Place, clusters: Mapping[str, At], known: Known) -> Iterator[Fault]:
    routed = place.routed
    cluster = clusters.get(place.cluster or "")
    if routed is None or cluster is None or _type(cluster) != "ORIGINAL_DST":
        return
    if place.nearest("failure_mode_allow").value is not True:
        return
    match = routed.route.of("match")
    if place.is_first:
        wanted = f"{DESTINATION_HEADER} present, and a second route to nodes that Envoy knows"
        got = "nothing" if match.of("headers").value is None else shown(match.of("headers").value)
        yield Warned(match.of("headers").path, f"{wanted} (else 503 while serve is away)", got)
    elif not any(_covers(one, routed) for one in _beside(routed, known)[0]):
        wanted = "a second route for the same paths without this header, to nodes that Envoy knows"
        yield Warned(match.path, f"{wanted} (else 404 while serve is away)", "none")


def _cache_faults(asking: Asking, found: Processors) -> Iterator[Fault]:
    routes = [each for table in tables_of(asking.manager) for each in routes_of(table)]
    if not any(is_after_choice(one.route) for one in routes):
        return
    for one in (each for http_filter in asking.http_filters for each in found.of(http_filter)):
        action, disabled = one.of("route_cache_action"), one.of("disable_clear_route_cache")
        if action.value in ("RETAIN", 2):
            yield Fault(
                action.path, "DEFAULT or CLEAR (else the route by the choice is never taken)", shown(action.value)
            )
        if disabled.value is True:
            yield Fault(disabled.path, "false (else the route by the choice is never taken)", "True")
