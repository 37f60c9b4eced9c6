"""The endpoint-picker protocol of the Gateway API Inference Extension: its names, and what a gateway tells us in it.

The picker names hosts, best first, in a header and in dynamic metadata, which are equal. The gateway may hint at the
hosts that it allows, and says which one served. All of it comes in dynamic metadata, which clients cannot write.
"""

from collections.abc import Iterator
from typing import Final

from envoy.config.core.v3.base_pb2 import Metadata
from google.protobuf.struct_pb2 import Struct, Value

from extproc.core.request import HOST_CHARS_MAX, SUBSET_HOSTS_MAX

NAMESPACE: Final = "envoy.lb"
DESTINATION: Final = "x-gateway-destination-endpoint"
"""Header, and key in `envoy.lb`: hosts as `ip:port,ip:port`, tried in this order."""
SERVED: Final = "x-gateway-destination-endpoint-served"
"""Key in `envoy.lb`: the host that Envoy tried last."""
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"


def subset_of(told: Metadata) -> tuple[str, ...] | None:
    """The hosts that the gateway allows, sorted; `None`: it does not say. A hint that cannot be read allows nobody.

    Of more than `SUBSET_HOSTS_MAX` the rest are ignored, and texts too long for a host are none.
    """
    found = told.filter_metadata
    if SUBSET_NAMESPACE not in found:  # asking a map of protobuf's for a key writes it
        return None
    hint: Struct = found[SUBSET_NAMESPACE]
    if SUBSET not in hint.fields:
        return None
    hosts = (host.strip() for host in _texts(hint.fields[SUBSET]))
    return tuple(sorted({host for host in hosts if 0 < len(host) <= HOST_CHARS_MAX}))


def served_by(told: Metadata) -> str | None:
    """The host that served, or was tried last; `None`: the gateway does not say."""
    found = told.filter_metadata
    if NAMESPACE not in found:
        return None
    fields = found[NAMESPACE].fields
    host: str = fields[SERVED].string_value if SERVED in fields else ""
    return host if 0 < len(host) <= HOST_CHARS_MAX else None


def _texts(value: Value) -> Iterator[str]:
    """A list's texts, or the parts of one text between commas."""
    match value.WhichOneof("kind"):
        case "list_value":
            for one in value.list_value.values[:SUBSET_HOSTS_MAX]:
                yield one.string_value
        case "string_value":
            text = value.string_value[: SUBSET_HOSTS_MAX * HOST_CHARS_MAX]
            yield from text.split(",", SUBSET_HOSTS_MAX)[:SUBSET_HOSTS_MAX]
        case _:
            pass
