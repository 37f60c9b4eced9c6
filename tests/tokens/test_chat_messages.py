"""Messages as templates see them."""

import pytest

from extproc.tokens.chat import Habits
from tests.tokens.references.chats import Body, say
from tests.tokens.seen import PARTS, part, seen


@pytest.mark.parametrize(
    ("content", "text", "parts", "exact"),
    [
        ("a", "a", [part("a")], (True, True)),
        ("", "", [part("")], (True, True)),
        (None, "", [], (True, True)),
        ([], "", [], (True, True)),
        ([part("a")], "a", [part("a")], (True, True)),
        ([part("a", "input_text")], "a", [part("a")], (True, True)),
        ([part("a"), part("b")], "a\nb", [part("a"), part("b")], (False, True)),
        ([part("a", "output_text")], "a", [part("a")], (False, False)),
        ([{"text": "a"}], "a", [part("a")], (False, False)),
        (["a"], "a", [part("a")], (False, False)),
        ([{"type": "refusal", "refusal": "no"}], "no", [part("no")], (False, False)),
        ([{"type": "text", "text": "a", "refusal": "no"}], "a\nno", [part("a"), part("no")], (False, False)),
        ([{"type": "text"}], "", [], (False, False)),
        ([{"type": "image_url"}, part("a")], "a", [{"type": "image"}, part("a")], (False, False)),
        ([{"type": "input_image"}], "", [{"type": "image"}], (False, False)),
        ([{"type": "input_audio"}], "", [{"type": "audio"}], (False, False)),
        ([{"type": "video_url"}], "", [{"type": "video"}], (False, False)),
        ([{"type": "file"}], "", [], (False, False)),
        ([{"type": 7}], "", [], (False, False)),
    ],
)
def test_content_is_text_or_parts_as_the_template_wants_it(
    content: object, text: str, parts: list[Body], exact: tuple[bool, bool]
) -> None:
    assert seen(say("user", content)) == (say("user", text), exact[0])
    assert seen(say("user", content), PARTS) == (say("user", parts), exact[1])


def test_what_a_tool_gave_is_text_to_every_template_unless_it_is_more() -> None:
    assert seen(say("tool", "a"), PARTS) == (say("tool", "a"), True)
    assert seen(say("tool", [part("a")]), PARTS) == (say("tool", "a"), True)
    assert seen(say("tool", [part("a"), part("b")]), PARTS) == (say("tool", "a\nb"), False)
    assert seen(say("tool", [{"type": "image_url"}]), PARTS) == (say("tool", [{"type": "image"}]), False)
    assert seen(say("tool", "a", tool_call_id="x", name="f")) == (say("tool", "a", tool_call_id="x", name="f"), True)
    assert seen(say("tool", "a", tool_call_id=None, name=None)) == (say("tool", "a"), True)
    assert seen(say("user", "a", tool_call_id="x")) == (say("user", "a"), True)
    assert seen(say("tool", "a", tool_call_id=7)) == (say("tool", "a"), False)


@pytest.mark.parametrize(
    ("fields", "expected", "exact"),
    [
        ({"reasoning": "a"}, "a", False),
        ({"reasoning_content": "a"}, "a", True),
        ({"reasoning": "a", "reasoning_content": "a"}, "a", True),
        ({"reasoning": "a", "reasoning_content": "b"}, "a", False),
        ({"reasoning": None, "reasoning_content": "b"}, "b", True),
        ({"reasoning": None}, None, True),
        ({"reasoning": {"a": 1}}, None, False),
        ({"reasoning": ""}, "", False),
    ],
)
def test_reasoning_has_both_its_names(fields: Body, expected: str | None, exact: bool) -> None:
    wanted = {} if expected is None else {"reasoning": expected, "reasoning_content": expected}
    assert seen(say("assistant", "c", **fields)) == (say("assistant", "c", **wanted), exact)


def test_engines_differ_in_developers() -> None:
    assert seen(say("developer", "a")) == (say("developer", "a"), False)


def test_names_are_text() -> None:
    assert seen(say("user", "a", name="Ann")) == (say("user", "a", name="Ann"), True)
    assert seen(say("user", "a", name="Ann"), Habits(names_users=True))[1] is False
    assert seen(say("system", "a", name="Ann"), Habits(names_users=True))[1] is True
    assert seen(say("user", "a", name={"a": 1})) == (say("user", "a"), False)
