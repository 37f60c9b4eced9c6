"""Where requests come through a filter of ours, and what holds for it there: its own fields, or a route's overrides."""

from collections.abc import Iterator

import msgspec

from extproc.envoycheck.file import At
from extproc.envoycheck.processors import (
    PER_ROUTE,
    Asking,
    Processors,
    Routed,
    is_asked,
    own_config,
    routes_of,
    tables_of,
)
from extproc.gateway.codec import DESTINATION_HEADER
from extproc.gateway.routepolicy import KEY


class Place(msgspec.Struct, frozen=True):
    """A filter on a route, or on those that the file does not tell."""

    ours: At
    """The filter."""
    overrides: list[At] = []
    """Of the route and what is around it, the most specific first."""
    asking: Asking | None = None
    """Whose filter it is; `None`: no connection manager's, as of a cluster."""
    routed: Routed | None = None
    """`None`: the file does not tell the routes."""
    cluster: str | None = None
    """The name of the one that the route leads to; `None`: not told."""

    def nearest(self, *names: str) -> At:
        """A field, that of the most specific override that has it. Each replaces whole messages."""
        below = (each.of(*names) for each in self.overrides)
        return next((each for each in below if each.value is not None), self.ours.of(*names))

    @property
    def is_first(self) -> bool:
        """Whether requests come here, and are not sent here by what `serve` chose."""
        return self.routed is None or not is_after_choice(self.routed.route)

    @property
    def mode(self) -> At:
        """The processing mode."""
        return self.nearest("processing_mode")

    @property
    def asked_for(self) -> At | None:
        """The value of `x-extproc-policy`, where there is one."""
        return self.metadata(KEY)

    def metadata(self, name: str) -> At | None:
        """The value of a key of gRPC metadata, where there is one: each key counts by itself."""
        metadata = [each.of("grpc_initial_metadata") for each in self.overrides]
        metadata.append(self.nearest("grpc_service").of("initial_metadata"))
        values = (
            entry.of("value")
            for entries in metadata
            for entry in reversed(list(entries.each()))  # of two the last one holds
            if str(entry.of("key").value).lower() == name
        )
        return next(values, None)


def is_after_choice(route: At) -> bool:
    """Whether a route is for requests that have a destination: then they have come by another one, which counts."""
    match = route.of("match")
    return match.of("dynamic_metadata").value is not None or any(_is_given(one) for one in match.of("headers").each())


def _is_given(header: At) -> bool:
    """Whether a header's match wants a choice in it."""
    is_absent = header.of("present_match").value is False or header.of("invert_match").value is True
    return str(header.of("name").value).lower() == DESTINATION_HEADER and not is_absent


def places(found: Processors) -> Iterator[Place]:
    """Where requests come through filters of ours, a filter at a time."""
    for one in found.filters:
        holders = [(asking, each) for asking in found.asking for each in asking.http_filters if one in found.of(each)]
        if not holders:
            yield Place(one)
        for asking, http_filter in holders:
            tables = tables_of(asking.manager)
            if not tables or any(table.of("vhds").value is not None for table in tables):
                yield Place(one, asking=asking)
            for routed in (each for table in tables for each in routes_of(table)):
                for cluster, configs in _ways(routed):
                    if is_asked(http_filter, configs):
                        own = [each for config in configs if (each := own_config(http_filter, config)) is not None]
                        overrides = [each.of("overrides") for config in own for each in config.typed(PER_ROUTE)]
                        yield Place(one, overrides, asking, routed, cluster)


def _ways(routed: Routed) -> Iterator[tuple[str | None, list[At]]]:
    """The clusters that a route leads to, each with the configurations of filters on the way there."""
    weighted = list(routed.route.of("route", "weighted_clusters", "clusters").each())
    for one in weighted:
        yield _name(one.of("name")), [one.of("typed_per_filter_config"), *routed.configs]
    if not weighted:
        yield _name(routed.route.of("route", "cluster")), routed.configs


def _name(at: At) -> str | None:
    return at.value if isinstance(at.value, str) else None
