"""Messages as a later release may send them: with fields that nobody here knows, in each message within."""

from collections.abc import Iterator

from google.protobuf.message import Message

_LATER = b"".join(
    # The tag of a number from 1000 on with its wire type, and a value.
    tag.to_bytes(2, "little") + value
    for tag, value in (
        (0x3EC0, b"\x05"),  # 1000: a varint
        (0x3ECA, b"\x03new"),  # 1001: text, or a message
        (0x3ED1, b"\x01" * 8),  # 1002: fixed64
        (0x3EDD, b"\x01" * 4),  # 1003: fixed32
    )
)


def grown(kind: type[Message], message: bytes) -> bytes:
    """The message with fields of later."""
    found = kind.FromString(message)
    for one in _all(found):
        one.MergeFromString(_LATER)
    made = found.SerializeToString()
    assert made.count(_LATER) >= 1
    assert len(made) > len(message)
    return made


def _all(message: Message) -> Iterator[Message]:
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                yield from _all(inner)
    yield message
