"""What an earlier release could read and write, held against what can be today: formats may only grow."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from grpc_tools import protoc  # type: ignore[import-untyped]

HERE = Path(__file__).parent


def protos(release: str) -> list[Path]:
    """The files of an earlier release, as `v0_1`."""
    return sorted((HERE / release).glob("*.proto"))


def compiled(file: Path, folder: Path) -> FileDescriptorProto:
    """The file's descriptor; `folder` is for what the compiler writes."""
    made = folder / f"{file.stem}.binpb"
    status = protoc.main(["protoc", f"--proto_path={file.parent}", f"--descriptor_set_out={made}", str(file)])
    assert status == 0, file
    (found,) = FileDescriptorSet.FromString(made.read_bytes()).file
    return found


def lost(before: FileDescriptorProto, today: FileDescriptorProto) -> list[str]:
    """All that a peer of before relies on and that is not as it was. Empty: the format has only grown."""
    now = set(_facts(today))
    gone = [fact for fact in _facts(before) if fact not in now]
    used = dict(_numbers(today))
    taken = [f"{name} is used again" for name in _reserved(before) if name in used]
    return gone + taken


def _facts(file: FileDescriptorProto) -> Iterator[str]:
    yield f"package {file.package}, {file.syntax}"
    for message in file.message_type:
        yield from _of_message(message, message.name)
    for enum in file.enum_type:
        yield from _of_enum(enum, enum.name)
    for service in file.service:
        for method in service.method:
            streams = f"{method.client_streaming}, {method.server_streaming}"
            yield f"rpc {service.name}.{method.name}({method.input_type}) {method.output_type} streams {streams}"


def _of_message(message: DescriptorProto, path: str) -> Iterator[str]:
    yield f"message {path}"
    for field in message.field:
        kind = FieldDescriptorProto.Type.Name(field.type)
        label = "optional" if field.proto3_optional else FieldDescriptorProto.Label.Name(field.label)
        is_in_oneof = field.HasField("oneof_index") and not field.proto3_optional
        oneof = f" in {message.oneof_decl[field.oneof_index].name}" if is_in_oneof else ""
        yield f"{path}.{field.name} = {field.number}: {label} {kind} {field.type_name}{oneof}"
    for inner in message.nested_type:
        yield from _of_message(inner, f"{path}.{inner.name}")
    for enum in message.enum_type:
        yield from _of_enum(enum, f"{path}.{enum.name}")


def _of_enum(enum: EnumDescriptorProto, path: str) -> Iterator[str]:
    for value in enum.value:
        yield f"{path}.{value.name} = {value.number}"


def _numbers(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    for message in file.message_type:
        for field in message.field:
            yield f"{message.name} {field.number}", field.name


def _reserved(file: FileDescriptorProto) -> Iterable[str]:
    """Numbers that were in use once, of messages at the top; their ranges are short."""
    for message in file.message_type:
        for span in message.reserved_range:
            yield from (f"{message.name} {number}" for number in range(span.start, min(span.end, span.start + 1000)))
