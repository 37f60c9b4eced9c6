"""The formats of each release are still there: an older agent, router or scaler is understood, and understands."""

from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from extproc.pb import exchange_pb2, externalscaler_pb2, nodes_pb2
from tests.compat.floor import compiled, lost, protos

RELEASES = ("v0_1", "v0_2")
DESCRIPTORS = {
    "nodes": nodes_pb2.DESCRIPTOR,
    "externalscaler": externalscaler_pb2.DESCRIPTOR,
    "exchange": exchange_pb2.DESCRIPTOR,
}


def today(name: str) -> FileDescriptorProto:
    found = FileDescriptorProto()
    DESCRIPTORS[name].CopyToProto(found)
    return found


@pytest.mark.parametrize(
    "file", [one for release in RELEASES for one in protos(release)], ids=lambda one: str(one)[-24:]
)
def test_all_that_a_release_had_is_there_unchanged(file: Path, tmp_path: Path) -> None:
    before = compiled(file, tmp_path)
    assert before.message_type
    assert lost(before, today(file.stem)) == []


def test_every_format_of_today_has_a_floor() -> None:
    assert {one.stem for one in protos(RELEASES[-1])} == DESCRIPTORS.keys()


def field(file: FileDescriptorProto, message: str, name: str) -> FieldDescriptorProto:
    (at,) = (one for one in file.message_type if one.name == message)
    return next(one for one in at.field if one.name == name)


def removed(file: FileDescriptorProto) -> None:
    del file.message_type[[one.name for one in file.message_type].index("NodeSnapshot")].field[3]


def renumbered(file: FileDescriptorProto) -> None:
    field(file, "NodeSnapshot", "sequence").number = 99


def of_another_type(file: FileDescriptorProto) -> None:
    field(file, "NodeSnapshot", "sequence").type = FieldDescriptorProto.TYPE_SINT64


def no_more_optional(file: FileDescriptorProto) -> None:
    field(file, "NodeSnapshot", "weight").proto3_optional = False


def out_of_its_oneof(file: FileDescriptorProto) -> None:
    field(file, "AgentMessage", "goodbye").ClearField("oneof_index")


def of_another_message(file: FileDescriptorProto) -> None:
    field(file, "AgentMessage", "goodbye").type_name = ".extproc.pb.KvBlocks"


def several(file: FileDescriptorProto) -> None:
    field(file, "NodeSnapshot", "models").label = FieldDescriptorProto.LABEL_REPEATED


def another_value(file: FileDescriptorProto) -> None:
    file.enum_type[0].value[1].number = 9


def another_verdict(file: FileDescriptorProto) -> None:
    (at,) = (one for one in file.message_type if one.name == "Acknowledgement")
    del at.enum_type[0].value[3]


def another_call(file: FileDescriptorProto) -> None:
    file.service[0].method[0].server_streaming = False


def of_another_package(file: FileDescriptorProto) -> None:
    file.package = "extproc.v2"


@pytest.mark.parametrize(
    "change",
    [
        removed,
        renumbered,
        of_another_type,
        no_more_optional,
        out_of_its_oneof,
        of_another_message,
        several,
        another_value,
        another_verdict,
        another_call,
        of_another_package,
    ],
)
def test_what_is_not_growth_is_noticed(change: Callable[[FileDescriptorProto], None]) -> None:
    before, after = today("nodes"), today("nodes")
    change(after)
    assert len(lost(before, after)) == 1


def test_growth_is_none_of_that() -> None:
    before, after = today("nodes"), today("nodes")
    after.message_type.add(name="New")
    after.message_type[0].field.add(name="new", number=99, type=FieldDescriptorProto.TYPE_BOOL)
    after.enum_type[0].value.add(name="NODE_STATE_NEW", number=9)
    assert lost(before, after) == []
    assert len(lost(after, before)) == 3


def test_a_number_that_was_in_use_once_is_not_used_again() -> None:
    before, after = today("nodes"), today("nodes")
    before.message_type[0].reserved_range.add(start=7, end=8)
    after.message_type[0].field.add(name="new", number=7, type=FieldDescriptorProto.TYPE_BOOL)
    assert lost(before, after) == [f"{before.message_type[0].name} 7 is used again"]
