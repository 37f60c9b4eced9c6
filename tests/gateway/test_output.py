import pytest

from extproc.gateway.output import has_output

CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"instructions":"be kind"}}\n\n'
PROGRESS = b'event: response.in_progress\ndata: {"type":"response.in_progress"}\n\n'
ADDED = b"event: response.output_item.added\ndata: {}\n\nevent: response.content_part.added\ndata: {}\n\n"
DELTA = b'event: response.output_text.delta\ndata: {"delta":"Hel"}\n\n'


@pytest.mark.parametrize(
    "piece",
    [
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
        b'{"choices":',
        b"[",
        b"\x1f\x8b",  # compressed
        b"embedding",  # of a binary answer
        DELTA,
        CREATED + PROGRESS + ADDED + DELTA,
        b"event: response.failed\ndata: {}\n\n",
        b"event:error\ndata: {}\n\n",
        b":\n\n" + b"data: {}\n\n",
        b"\r\n: ping\r\n\r\ndata: {}",
        b"\n{",
    ],
)
def test_output_is_seen(piece: bytes) -> None:
    assert has_output(piece)


@pytest.mark.parametrize(
    "piece",
    [b"", b":\n\n", b": keep-alive\r\n\r\n:\n", b"\n", b"\r\n\r\n", CREATED, CREATED + PROGRESS, CREATED + ADDED, b":"],
)
def test_comments_and_announcements_are_no_output(piece: bytes) -> None:
    assert not has_output(piece)
