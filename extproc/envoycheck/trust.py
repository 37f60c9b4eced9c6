"""Can clients name a destination themselves, and is what keeps them from it done in time?

Seen with Envoy 1.40:

    client's header  obeyed where nothing is chosen, as while `serve` is away or knows no node: a cluster of type
                     ORIGINAL_DST then connects to any address, an open proxy
    removed late     what a route, what is around it or a filter behind ours removes from requests is gone before the
                     cluster sees it, the choice too: 503
"""

from collections.abc import Iterator, Mapping
from typing import Final

from extproc.core.settings import Fault, shown
from extproc.envoycheck.destinations import members, obeyed
from extproc.envoycheck.file import At, Warned
from extproc.envoycheck.headers import removes
from extproc.envoycheck.processors import Asking, Processors, Routed, routes_of, tables_of
from extproc.gateway.codec import DESTINATION_HEADER

_EARLY: Final = "early_header_mutation_extensions"
_EARLY_TYPE = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
_FILTER_TYPE = "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"


def faults_in(found: Processors) -> Iterator[Fault]:
    """Where clients choose, and where nobody does since what they say is removed too late. Never raises."""
    for asking in found.asking:
        headers: set[str] = set()
        for table in tables_of(asking.manager):
            for routed in routes_of(table):
                here = set(_headers(routed, found.clusters))
                if DESTINATION_HEADER in here:
                    yield from _removal_faults(routed, table)
                headers |= here
        for header in sorted(headers):
            yield from _trust_faults(asking, header)


def _headers(routed: Routed, clusters: Mapping[str, At]) -> Iterator[str]:
    """Those by which a route's clusters choose a host."""
    action = routed.route.of("route")
    for name in (action.of("cluster"), *(one.of("name") for one in action.of("weighted_clusters", "clusters").each())):
        cluster = clusters.get(name.value) if isinstance(name.value, str) else None
        if cluster is not None:
            tried = [cluster, *(clusters[one] for one in members(cluster) if one in clusters)]
            yield from (header for one in tried for header in obeyed(one).values() if header is not None)


def _trust_faults(asking: Asking, header: str) -> Iterator[Fault]:
    early = asking.manager.of(_EARLY)
    before, after = _filters_mutations(asking)
    before += [mutation for one in early.typed(_EARLY_TYPE) for mutation in one.of("mutations").each()]
    late = [one for one in after if removes(one, header)]
    for one in late:
        yield _too_late(one, header)
    if late or any(removes(one, header) for one in before):
        return
    kind, what = (Fault, "any address") if header == DESTINATION_HEADER else (Warned, "a node of the cluster")
    wanted = f"a HeaderMutation that removes {header} (else clients can name {what} where nothing was chosen)"
    yield kind(early.path, wanted, "nothing" if early.value is None else "others")


def _filters_mutations(asking: Asking) -> tuple[list[At], list[At]]:
    """What other filters do to requests, before ours and after it."""
    before: list[At] = []
    after: list[At] = []
    ours = {one.path for one in asking.http_filters}
    is_before = True
    for http_filter in asking.manager.of("http_filters").each():
        if http_filter.path in ours:
            is_before = False
        elif http_filter.of("disabled").value is not True:
            mutations = (one.of("mutations", "request_mutations") for one in http_filter.typed(_FILTER_TYPE))
            (before if is_before else after).extend(each for one in mutations for each in one.each())
    return before, after


def _removal_faults(routed: Routed, table: At) -> Iterator[Fault]:
    for holder in (routed.route, routed.virtual_host, table):
        for one in holder.of("request_headers_to_remove").each():
            if str(one.value).lower() == DESTINATION_HEADER:
                yield _too_late(one, DESTINATION_HEADER)


def _too_late(at: At, header: str) -> Fault:
    return Fault(at.path, f"no {header} (the choice is removed too: use {_EARLY})", shown(at.value))
