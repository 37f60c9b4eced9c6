"""Does `serve` hear the policies that routes' metadata, or a `set_metadata` filter, ask for?

It is shown a route's metadata where its filter asks for the attribute `xds.route_metadata`, dynamic metadata where the
filter forwards the namespace; and neither counts where gRPC metadata says `x-extproc-policy`.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from extproc.core.settings import Fault, shown
from extproc.envoycheck.file import At, Warned
from extproc.envoycheck.places import Place, places
from extproc.envoycheck.policies import of_route
from extproc.envoycheck.processors import Asking, Processors
from extproc.gateway.policysource import NAMESPACE, ROUTE_METADATA

_SET_METADATA: Final = "envoy.extensions.filters.http.set_metadata.v3.Config"


def faults_in(found: Processors) -> Iterator[Fault]:
    """Policies that are written where nobody reads. Never raises."""
    filters = {one.manager.path: _sets(_before_ours(one)) for one in found.asking}
    for place in places(found):
        if place.routed is None or place.asking is None or not place.is_first:
            continue
        forwarded = place.nearest("metadata_options", "forwarding_namespaces").of("untyped")
        if filters[place.asking.manager.path] or _sets(place.routed.configs):
            yield from _unheard(place, forwarded, NAMESPACE, "a set_metadata filter")
        asked = of_route(place.routed.route)
        if asked is not None and not _has(forwarded, NAMESPACE):
            yield from _unheard(place, place.nearest("request_attributes"), ROUTE_METADATA, "a route's metadata")


def _unheard(place: Place, shows: At, name: str, where: str) -> Iterator[Fault]:
    over = place.asked_for
    if over is not None and over.value:
        yield Warned(over.path, f"nothing (else the policy in {where} is not heard: this one holds)", shown(over.value))
    elif not _has(shows, name):
        got = "nothing" if shows.value is None else shown(shows.value)
        yield Warned(shows.path, f"{name} among them (else the policy in {where} is not heard)", got)


def _sets(holders: Iterable[At]) -> bool:
    """Whether one of these puts a policy into dynamic metadata."""
    return any(_names(config) for one in holders for config in one.typed(_SET_METADATA))


def _before_ours(asking: Asking) -> Iterator[At]:
    """The filters that have had their say when ours asks."""
    ours = {one.path for one in asking.http_filters}
    for one in asking.manager.of("http_filters").each():
        if one.path in ours:
            return
        if one.of("disabled").value is not True:
            yield one


def _names(config: At) -> bool:
    entries = [config, *config.of("metadata").each()]
    return any(one.of("metadata_namespace").value == NAMESPACE and one.of("value").value for one in entries)


def _has(at: At, name: str) -> bool:
    return isinstance(at.value, list) and name in at.value
