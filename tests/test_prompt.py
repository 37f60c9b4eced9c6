import json

import pytest
from msgspec import Raw

from extproc.prompt import Chat, Message, Part, Prompt, json_text, text_size, texts_of
from tests.calls import calls_of


def whole(*messages: Message, tools: bytes = b"", documents: bytes = b"") -> Prompt:
    return Prompt(("given",), chat=Chat(messages, tools=Raw(tools), documents=Raw(documents)))


def test_all_text_is_there_in_the_order_of_the_engines() -> None:
    said = Message("user", ["a", Part("b"), Part(image_url=Raw(b'"x"')), Part(refusal="c")], tool_calls=Raw(b"[1]"))
    thought = Message("assistant", "d", reasoning=Raw(b'"why"'), output=Raw(b'"out"'))
    prompt = whole(said, thought, tools=b"[2]", documents=b"[3]")
    assert list(texts_of(prompt)) == ["given", "[2]", "[3]", "a", "b", "c", "[1]", "d", "why"]


def test_the_size_is_that_of_the_text_and_not_of_media() -> None:
    image = Part(type=Raw(b'"image_url"'), image_url=Raw(b"x" * 1000))
    prompt = whole(
        Message("user", ["ab", image, Part("c")]), Message("user", "de", tool_calls=Raw(b"[12]")), tools=Raw(b"[3]")
    )
    assert text_size(prompt) == len("given") + 3 + 2 + 4 + 3


@pytest.mark.parametrize("unit", [b"\\u4e2d ", b"\\u4e2d", b"\\ud83d\\ude00 ", b"\\u00e9\\n"])
def test_no_python_runs_for_each_escape(unit: bytes) -> None:
    """It did: 2 MB of them held the event loop for a second."""
    raw = Raw(b'["' + unit * (500_000 // len(unit)) + b'"]')
    calls, (text,) = calls_of(lambda: list(json_text(raw)))
    assert calls < 100
    assert json.loads(text) == json.loads(bytes(raw))


def test_json_beyond_a_bound_is_taken_as_it_stands() -> None:
    raw = b'["' + b"\\u4e2d" * 200_000 + b'"]'
    assert list(json_text(Raw(raw))) == [raw.decode()]
