"""Where Envoy's configuration says which policy a request has: three places, of which the first that says so holds.

    gRPC metadata       `x-extproc-policy`, of the filter's `grpc_service.initial_metadata` or a route's overrides
    dynamic metadata    namespace `extproc.policy`, of a `set_metadata` filter, where the filter of ours forwards it
    route metadata      namespace `extproc.policy` of the route's own, where the filter of ours asks for the attribute
                        `xds.route_metadata`; or an annotation of Envoy Gateway's

In a namespace the policy is the string `policy` (a name or JSON text), or else the whole namespace is a policy's own
keys. What is empty says nothing. Clients reach none of the three.
"""

from collections.abc import Iterable
from typing import Any, Final
from warnings import catch_warnings

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest
from google.protobuf import descriptor_pb2, json_format, struct_pb2, text_format
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct

from extproc.core.settings import Fault, shown
from extproc.gateway.routepolicy import DESTINATION_KEY, KEY, Asked

NAMESPACE: Final = "extproc.policy"
POLICY_FIELD: Final = "policy"
ATTRIBUTES: Final = "envoy.filters.http.ext_proc"
ROUTE_METADATA: Final = "xds.route_metadata"
GATEWAY_NAMESPACE: Final = "envoy-gateway"
"""Where Envoy Gateway keeps what it was told of a route: of the annotation `gateway.envoyproxy.io/extproc.policy` the
value, named without the prefix."""


def asked(invocation_metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """What a stream's gRPC metadata asks for: a name or JSON text. Never raises."""
    value: str | bytes | None = None
    for key, one in invocation_metadata:
        if key == KEY:
            value = one  # the last one holds: Envoy appends the route's to the filter's
    return value if value is None or isinstance(value, str) else value.decode("utf-8", "replace")


def destination(invocation_metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """How this Envoy wants to be told of nodes, as its filter or the route says. Never raises."""
    value: str | bytes | None = None
    for key, one in invocation_metadata:
        if key == DESTINATION_KEY:
            value = one
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def asked_in(message: ProcessingRequest) -> str | Asked | None:
    """What a stream's first message asks for, of which little is read here. Never raises."""
    namespaces = message.metadata_context.filter_metadata
    if NAMESPACE in namespaces:
        namespace = namespaces[NAMESPACE]
        text = _only_policy(namespace)
        if text is None and namespace.fields:
            return Asked(namespace.SerializeToString(deterministic=True), _of_bytes)
        if text:
            return text
    attributes = message.attributes
    if ATTRIBUTES in attributes:
        fields = attributes[ATTRIBUTES].fields
        if ROUTE_METADATA in fields:
            text = fields[ROUTE_METADATA].string_value
            if NAMESPACE in text:  # most routes have metadata that is no matter of ours
                return Asked(text, _of_route_metadata)
    return None


def _only_policy(namespace: Struct) -> str | None:
    """The string `policy`, where nothing else stands beside it."""
    fields = namespace.fields
    if len(fields) == 1 and POLICY_FIELD in fields and fields[POLICY_FIELD].HasField("string_value"):
        return fields[POLICY_FIELD].string_value
    return None


def _of_bytes(serialized: bytes) -> str | Fault | None:
    return _of_namespace(Struct.FromString(serialized))


def _of_namespace(namespace: Struct) -> str | Fault | None:
    """What a namespace asks for: a name or JSON text."""
    text = _only_policy(namespace)
    if text is not None or not namespace.fields:
        return text
    if POLICY_FIELD in namespace.fields:
        names = shown(sorted(namespace.fields))
        return Fault(POLICY_FIELD, "a name or a policy as JSON text, and no other key", f"the keys {names}")
    try:
        return json_format.MessageToJson(namespace, indent=None, sort_keys=True, ensure_ascii=False)
    except (ValueError, json_format.SerializeToJsonError):
        return Fault("", "finite numbers", "infinity or no number")
    except RecursionError:
        return Fault("", "a policy's keys", "too many levels")


def _of_route_metadata(text: str) -> str | Fault | None:
    """What a route's metadata asks for, out of the text that Envoy makes of the message."""
    metadata = _RouteMetadata()
    try:
        # An escape that text format does not have is one that Python is about to drop, and of which it warns.
        with catch_warnings(action="ignore", category=DeprecationWarning):
            # Namespaces of other kinds are skipped: their messages may be of types that nobody here knows.
            text_format.Parse(text, metadata, allow_unknown_field=True)
    except (text_format.ParseError, ValueError, RecursionError):
        return Fault(ROUTE_METADATA, "a Metadata message as text", "another text")
    namespaces = metadata.filter_metadata
    found = _of_namespace(namespaces[NAMESPACE])
    return found or _annotated(namespaces[GATEWAY_NAMESPACE])


def _annotated(gateway: Struct) -> str | None:
    for resource in gateway.fields["resources"].list_value.values:
        annotations = resource.struct_value.fields["annotations"].struct_value.fields
        if NAMESPACE in annotations:
            return annotations[NAMESPACE].string_value
    return None


def _route_metadata_type() -> Any:
    """`envoy.config.core.v3.Metadata` without `typed_filter_metadata`.

    With it a text that shows a message of a type which is not known here could not be parsed at all.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name="extproc/routemetadata.proto", package="extproc", dependency=[struct_pb2.DESCRIPTOR.name]
    )
    message = file.message_type.add(name="RouteMetadata")
    entry = message.nested_type.add(name="FilterMetadataEntry")
    entry.options.map_entry = True
    one, many = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
    text, nested = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_MESSAGE
    entry.field.add(name="key", number=1, label=one, type=text)
    entry.field.add(name="value", number=2, label=one, type=nested, type_name=".google.protobuf.Struct")
    entries = ".extproc.RouteMetadata.FilterMetadataEntry"
    message.field.add(name="filter_metadata", number=1, label=many, type=nested, type_name=entries)
    pool = DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("extproc.RouteMetadata"))


_RouteMetadata: Final = _route_metadata_type()
