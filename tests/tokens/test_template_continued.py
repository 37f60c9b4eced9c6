import pytest

from extproc.tokens.template import Rendered
from tests.tokens.references.chats import say
from tests.tokens.rendering import CHATML, fault, rendered, text

CONTINUE = {"add_generation_prompt": False, "continue_final_message": True}


def test_a_continued_message_ends_where_its_text_ends() -> None:
    chat = say("user", "Count"), say("assistant", "One, ")
    asked = "<|im_start|>user\nCount<|im_end|>\n<|im_start|>assistant\n"
    assert rendered(CHATML, *chat, **CONTINUE) == Rendered(asked + "One, ", exact=True)
    trimmed = CHATML.replace("message.content", "message.content | trim")
    assert rendered(trimmed, *chat, **CONTINUE) == Rendered(asked + "One,", exact=False), "SGLang keeps the space"
    assert rendered(CHATML, *chat[1:], **CONTINUE) == Rendered("<|im_start|>assistant\nOne, ", exact=False)


def test_a_continued_message_is_not_exact_where_the_template_begins_answers_in_another_way() -> None:
    thinking = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    assert not rendered(thinking, say("user", "a"), say("assistant", "b"), **CONTINUE).exact


def test_the_users_own_message_can_be_continued() -> None:
    assert rendered(CHATML, say("user", "a"), **CONTINUE) == Rendered("<|im_start|>user\na", exact=False)


def test_an_answer_begun_and_a_message_continued_is_only_done_by_engines_that_put_it_behind() -> None:
    both = {"continue_final_message": True}
    begun = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb"
    assert rendered(CHATML, say("user", "a"), say("assistant", "b"), **both) == Rendered(begun, exact=False)
    assert fault(CHATML, say("user", "a"), **both) == "no text of the assistant's to continue"


def test_of_parts_the_last_text_is_continued() -> None:
    parts = "{% for m in messages %}{% for p in m.content %}[{{ p.text or p.type }}]{% endfor %}{% endfor %}"
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image_url"}]
    assert text(parts, say("user", content), **CONTINUE) == "[a][b"
    assert text(parts, say("user", content[:2]), **CONTINUE) == "[a][b"
    assert text(parts, say("user", content[:1]), **CONTINUE) == "[a"
    assert fault(parts, say("user", [{"type": "image_url"}]), **CONTINUE) == "no text to continue"


def test_spaces_around_a_continued_message_are_what_the_template_makes_of_them() -> None:
    trimmed = "{{ messages[0].content | trim }}!"
    assert text(trimmed, say("user", " a "), **CONTINUE) == "a"
    assert text("{{ messages[0].content }}!", say("user", " a "), **CONTINUE) == " a "


def test_a_message_may_hold_what_marks_its_end() -> None:
    tag = "CONTINUE_FINAL_MESSAGE_TAG "
    assert text("{{ messages[0].content }}!", say("user", tag + "a"), **CONTINUE) == tag + "a"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | length }}",
        "{{ messages[0]['con' ~ 'tent'] }}",
        "{{ messages[0].content[:5] }}",
        "{{ messages[0].content[3:] }}",
    ],
)
def test_a_continued_message_that_does_not_show_is_a_fault(source: str) -> None:
    assert fault(source, say("user", "begun"), **CONTINUE) == "the template does not show the message to be continued"
