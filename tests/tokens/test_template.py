import hashlib
import json
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from tokenizers import Tokenizer

from extproc.prompt import Chat, Message
from extproc.tokens.jinja import TAG_CHARS_MAX, Jinja
from extproc.tokens.template import ChatTemplate, Rendered, Renderer, TemplateFault
from tests.tokens.families import family_folder
from tests.tokens.references.asked import chat_of, raw
from tests.tokens.references.chats import CHATS, FOLDER, NOW, OURS, TOOLS, Body, call, say

FUEL = 100_000
CHATML = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
RECORDED: dict[str, dict[str, dict[str, Any]]] = json.loads(FOLDER.joinpath("chats.json").read_text())["families"]
FRACTIONS = {"tools", "tools with a system message", "calls and results", "reasoning"}
"""Their tools have numbers that llama.cpp writes in another way."""
INEXACT = FRACTIONS | {"tools in another order", "continued"}


def compiled(source: str, fuel: int = FUEL, renderer: Renderer = Renderer.TEMPLATE, **tokens: str) -> ChatTemplate:
    return ChatTemplate(source, tokens, renderer, fuel)


def rendered(source: str, *messages: Body, **body: Any) -> Rendered:
    outcome = compiled(source).render(chat_of({"messages": messages or [say("user", "a")]} | body), NOW)
    assert isinstance(outcome, Rendered), outcome
    return outcome


def text(source: str, *messages: Body, **body: Any) -> str:
    return rendered(source, *messages, **body).text


def fault(source: str, *messages: Body, **body: Any) -> str:
    outcome = compiled(source).render(chat_of({"messages": messages or [say("user", "a")]} | body), NOW)
    assert isinstance(outcome, TemplateFault), outcome
    return outcome.message


def argued(source: str, arguments: str) -> str:
    """What a template says of a call's arguments, which it knows as `a`."""
    source = "{% set a = messages[1].tool_calls[0].function.arguments %}" + source
    return text(source, say("user", ""), say("assistant", "", tool_calls=[call(1, arguments)]), say("user", ""))


@cache
def family(name: str) -> tuple[Tokenizer, ChatTemplate]:
    folder: Path = family_folder(name)
    config = json.loads(folder.joinpath("tokenizer_config.json").read_text())
    tokens = {key: value for key, value in config.items() if key.endswith("_token")}
    source = OURS[name].read_text() if name in OURS else config["chat_template"]
    contents = {key: value["content"] if isinstance(value, dict) else value for key, value in tokens.items() if value}
    return Tokenizer.from_file(str(folder / "tokenizer.json")), compiled(source, **contents)


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("title", CHATS)
def test_a_familys_chat_is_what_transformers_makes_of_it(name: str, title: str) -> None:
    tokenizer, template = family(name)
    outcome = template.render(chat_of(CHATS[title]), NOW)
    assert isinstance(outcome, Rendered), outcome
    digest = hashlib.sha256(outcome.text.encode()).hexdigest()[:16]
    tokens = len(tokenizer.encode(outcome.text, add_special_tokens=False))
    assert {"tokens": tokens, "text": digest} == RECORDED[name][title]
    assert outcome.exact == (title not in INEXACT)


def test_every_chat_is_recorded_for_every_family() -> None:
    assert {name: list(chats) for name, chats in RECORDED.items()} == {
        name: list(CHATS) for name in ("qwen3", "llama3_1", "deepseek", "gptoss")
    }


def test_a_template_that_does_not_compile_is_refused_with_its_reason() -> None:
    with pytest.raises(ValueError, match="unknown statement blah"):
        compiled("{% blah %}")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  a\n    {% endif %}\n b\n", "  a\n b"),
        ("{{ '<b>&\"' }}", '<b>&"'),
        ("{{ tools is none }} {{ documents is none }} {{ absent is defined }}", "True True False"),
        ("{{ none is iterable }} {{ tools is iterable }} {{ 'a' is iterable }}", "False False True"),
        ("{{ 'a' is sequence }} {{ {} is sequence }} {{ [] is sequence }} {{ 1 is sequence }}", "True True True False"),
        ("{{ 1 is number }} {{ 1.5 is float }} {{ 1 is float }} {{ 'a' is number }}", "True True False False"),
        ("{% for i in range(5) %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "0134"),
        ("{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ strftime_now('%d %b %Y %H:%M') }}", "30 Jan 2026 09:05"),
        ("{{ 'é<>&\"\\n' | tojson }}", '"é<>&\\"\\n"'),
        ("{{ {'b': [1, none], 'a': true} | tojson }}", '{"b": [1, null], "a": true}'),
        ("{{ {'b': 'é', 'a': 1} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":1,"b":"é"}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{{ {'b': 2, 'a': 1} | tojson(sort_keys=true) }}", '{"a": 1, "b": 2}'),
        ("{{ [1, 2] | tojson(separators=[',', ':']) }}", "[1,2]"),
        ("{{ {'a': ['é']} | tojson(indent=2, ensure_ascii=true) }}", '{\n  "a": [\n    "\\u00e9"\n  ]\n}'),
        ("{{ {'a': [true, none, 1.5, 'x']} }}", "{'a': [True, None, 1.5, 'x']}"),
        ("{{ 'a<think>b</think>c'.split('</think>')[-1].lstrip('c') }}", ""),
        ("a\n  {% generation %}\n  b\n  {% endgeneration %}\nc", "a\n  b\nc"),
        ("a {%- generation -%} b {%- endgeneration -%} c", "abc"),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}", "1"),
        ("{{ messages.__class__ }}{{ messages[0].get.__self__ }}{{ strftime_now.__self__ }}", ""),
    ],
)  # fmt: skip
def test_templates_run_as_transformers_has_them_run(source: str, expected: str) -> None:
    assert text(source) == expected


@pytest.mark.parametrize(
    "number",
    ["1.0", "0.0", "-0.0", "1.5", "1e22", "1E5", "1e-7", "123456789012345680.0", "1e400", "7", "-0", "9" * 400],
)
def test_numbers_are_written_as_python_writes_them(number: str) -> None:
    value = json.loads(number)
    wanted = f"{value} {json.dumps(value)} {[value]} {json.dumps({'a': [value]})} True"
    source = "{{ a.n }} {{ a.n | tojson }} {{ a.l }} {{ {'a': a.l} | tojson }} {{ a.n is number }}"
    assert argued(source, f'{{"n": {number}, "l": [{number}]}}') == wanted


def test_a_float_is_a_float_to_a_template() -> None:
    assert argued("{{ a.n is float }}{{ a.n is string }}{{ a.n is mapping }}{{ a.n is iterable }}", '{"n": 1.0}') == (
        "TrueFalseFalseFalse"
    )
    assert argued("{{ a | tojson(indent=1) }}", '{"n": 1.0}') == '{\n "n": 1.0\n}'


def test_special_tokens_are_variables_and_a_chats_own_arguments_come_before_them() -> None:
    template = compiled("{{ bos_token }}{{ eos_token }}{{ extra }}", bos_token="<s>", eos_token="</s>")
    chat = chat_of({"messages": [say("user", "")], "chat_template_kwargs": {"eos_token": "x", "extra": [1]}})
    assert template.render(chat, NOW) == Rendered("<s>x[1]", exact=False)


def test_what_the_template_raises_is_a_fault_in_one_line() -> None:
    assert fault("{{ raise_exception('roles must\\nalternate') }}") == "the template refuses the chat: roles must"
    assert len(fault("{{ raise_exception('a' * 1000) }}")) == 200
    assert fault("{{ 'a' + 1 }}").startswith("invalid operation: tried to use +")
    assert fault("{{ absent.absent }}").startswith("undefined value")
    assert fault("{% include 'other' %}").startswith("template not found")


@pytest.mark.parametrize("renderer", [Renderer.HARMONY, Renderer.MISTRAL])
def test_what_engines_render_without_the_template_is_not_exact(renderer: Renderer) -> None:
    chat = chat_of(CHATS["plain"])
    assert compiled(CHATML, renderer=renderer).render(chat, NOW) == Rendered(
        text(CHATML, *CHATS["plain"]["messages"]), False
    )


def test_what_engines_do_as_we_can_only_guess_is_not_exact() -> None:
    chat = Chat((Message("user", "a"),), as_usual=False)
    assert compiled("{{ messages[0].content }}").render(chat, NOW) == Rendered("a", exact=False)


def test_chats_with_tools_have_the_template_for_tools_where_there_is_one() -> None:
    template = ChatTemplate("plain", {}, Renderer.TEMPLATE, FUEL, tool_use="tools")
    for tools, expected in ((TOOLS, "tools"), ([], "tools"), (None, "plain")):
        outcome = template.render(chat_of({"messages": [say("user", "")], "tools": tools}), NOW)
        assert isinstance(outcome, Rendered)
        assert outcome.text == expected


def test_a_template_may_change_what_it_is_given_without_harm_to_the_next_chat() -> None:
    template = compiled("{{ tools.pop().type }}{{ messages[0].update({'content': 'b'}) }}{{ messages[0].content }}")
    chat = chat_of({"messages": [say("user", "a")], "tools": TOOLS[1:]})
    assert template.render(chat, NOW) == template.render(chat, NOW) == Rendered("functionNoneb", exact=True)


# Where engines differ.


def test_calls_are_exact_where_the_order_of_their_keys_does_not_show() -> None:
    calls = say("user", ""), say("assistant", "", tool_calls=[call(1, '{"a": 1}')]), say("user", "")
    whole = "{% for call in messages[1].tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    fields = whole.replace("call.function", "call.function.name ~ call.function.arguments")
    assert rendered(fields, *calls) == Rendered('forecast{"a": 1}', exact=True)
    assert rendered(whole, *calls) == Rendered('{"arguments": {"a": 1}, "name": "forecast"}', exact=False)
    assert rendered(whole, *calls[:1], say("assistant", ""), *calls[2:]).exact


def test_names_of_users_are_exact_where_they_do_not_show() -> None:
    named = say("user", "a", name="Ann")
    assert rendered("{{ messages[0].content }}", named) == Rendered("a", exact=True)
    assert rendered("{{ messages[0].name or messages[0].role }}", named) == Rendered("Ann", exact=False)
    assert rendered("{{ messages[0].name or messages[0].role }}", say("user", "a")).exact
    shown = "{{ messages[0].name or messages[0].role }}{{ messages[0].content }}"
    assert rendered(shown, say("system", "a", name="Ann")).exact


def test_a_template_that_tells_nothing_of_itself_is_not_trusted() -> None:
    picky = "{% if messages | length == 5 %}{{ raise_exception('odd') }}{% endif %}{{ bos_token + 'a' }}"
    assert fault(picky).startswith("invalid operation")
    chat = chat_of({"messages": [say("user", "a", name="A")], "chat_template_kwargs": {"bos_token": "<s>"}})
    assert compiled(picky).render(chat, NOW) == Rendered("<s>a", exact=False)


# Continuing a message.

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


# Bounds.


@pytest.mark.parametrize(
    "bomb",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}",
        "{{ messages[0].content.replace('a', messages[0].content) }}",
        "{{ 'x' * 999999999 }}",
        "{% for i in range(99999) %}{{ messages | tojson }}{% endfor %}",
    ],
)
def test_a_bomb_runs_out_of_fuel(bomb: str) -> None:
    assert fault(bomb, say("user", "a" * 50_000)).startswith("engine ran out of fuel")


def test_other_bombs_are_faults_too() -> None:
    assert fault("{{ messages | tojson(indent=99999999) }}") == "indent: at most 16"
    assert fault("{{ messages | tojson(indent=' ' * 17) }}") == "indent: at most 16"
    assert fault("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").startswith("invalid operation: recursion limit")
    assert fault("{{ messages.append(messages) }}{{ messages | tojson }}") == "Circular reference detected"
    assert fault("{{ range(999999999) | list }}").startswith("invalid operation: range has too many elements")


def test_fuel_grows_with_messages_and_their_text() -> None:
    long = [say("user", "a" * 50_000), say("assistant", "漢" * 50_000)] * 20 + [say("user", "a")]
    assert len(text(CHATML, *long)) > 2_000_000
    many = [say("user", "a")] * 5000
    assert len(text(CHATML, *many)) > 100_000
    tools = [TOOLS[0]] * 4000
    assert len(text("{% for tool in tools %}{{ tool | tojson }}{% endfor %}", tools=tools)) > 1_000_000


def test_text_gives_no_more_fuel_than_it_takes() -> None:
    source = "{% for i in range(5000) %}a{% endfor %}"
    few, many = [chat_of({"messages": [say("user", "a" * size)]}) for size in (8_000, 400_000)]
    template = compiled(source, fuel=1000)
    assert isinstance(template.render(few, NOW), TemplateFault)
    assert isinstance(template.render(many, NOW), Rendered)


def test_less_fuel_is_less() -> None:
    chat = chat_of({"messages": [say("user", "a")]})
    source = "{% for i in range(1000) %}{{ i }}{% endfor %}"
    assert isinstance(compiled(source, fuel=1000).render(chat, NOW), TemplateFault)
    assert isinstance(compiled(source, fuel=10_000).render(chat, NOW), Rendered)


def test_threads_render_at_the_same_time_each_with_its_own_fuel() -> None:
    template = compiled("{% for i in range(messages | length * 500) %}a{% endfor %}", fuel=1000)
    small = chat_of({"messages": [say("user", "a")]})
    large = chat_of({"messages": [say("user", "b" * 40_000)] * 20})
    outcomes: list[tuple[Chat, Rendered | TemplateFault]] = []

    def render(chat: Chat) -> None:
        outcomes.extend((chat, template.render(chat, NOW)) for _ in range(50))

    threads = [threading.Thread(target=render, args=(chat,)) for chat in (small, large, small, large)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 200
    for chat, outcome in outcomes:
        if chat is large:
            assert outcome == Rendered("a" * 10_000, exact=True)
        else:
            assert isinstance(outcome, TemplateFault)


class PanicException(BaseException):
    """What a panic in the library becomes: not an `Exception`."""


def test_a_panic_of_the_library_is_a_fault_and_the_next_chat_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    template = compiled("{{ messages[0].content }}")
    chat = chat_of({"messages": [say("user", "a")]})

    def panic(*_: object, **__: object) -> str:
        raise PanicException

    with monkeypatch.context() as patched:
        patched.setattr("minijinja.Environment.render_template", panic, raising=False)
        assert template.render(chat, NOW) == TemplateFault("PanicException")
    assert template.render(chat, NOW) == Rendered("a", exact=True)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
keys = st.sampled_from(["type", "function", "name", "arguments", "description", "parameters", "id", "messages", "text"])
shaped = st.recursive(
    json_values, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
raws = shaped.map(raw) | st.binary(max_size=8).map(Raw)
messages = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "tool", "", None, "\ud800"]),
    content=st.none() | st.text(st.characters(codec=None), max_size=8),
    name=raws,
    tool_calls=raws,
    tool_call_id=raws,
    reasoning=raws,
    reasoning_content=raws,
)
chats = st.builds(
    Chat,
    messages=st.lists(messages, max_size=3).map(tuple),
    tools=raws,
    documents=raws,
    template_kwargs=raws,
    add_generation_prompt=st.booleans(),
    continue_final_message=st.booleans(),
)
SHOWING_ALL = """{{ messages }}{{ tools }}{{ documents | tojson }}{{ messages | tojson(indent=1) }}
{%- for message in messages %}{{ message.role ~ message.content ~ message.name }}
{%- for call in message.tool_calls or [] %}{{ call.function.name }}{% for k, v in call.function.arguments | items %}
{{- k ~ v }}{{ v | tojson }}{{ v | string }}{% endfor %}{% endfor %}{% endfor %}"""


@given(chat=chats, showing=st.sampled_from([SHOWING_ALL, CHATML]))
def test_no_chat_makes_a_template_raise(chat: Chat, showing: str) -> None:
    outcome = compiled(showing).render(chat, NOW)
    assert isinstance(outcome, Rendered | TemplateFault)
    if isinstance(outcome, TemplateFault):
        assert outcome.message
        assert "\n" not in outcome.message


@pytest.mark.parametrize("depth", [900, 5000, 200_000])
@pytest.mark.parametrize("nest", [lambda n: b"[" * n + b"]" * n, lambda n: b'{"a":' * n + b"1" + b"}" * n])
def test_nesting_without_end_is_a_fault(depth: int, nest: Any) -> None:
    parameters = nest(depth)
    tools = Raw(b'[{"type":"function","function":{"name":"f","description":"","parameters":%s}}]' % parameters)
    chat = Chat((Message("user", "a"),), tools=tools)
    for source in ("{{ tools }}", "{{ tools | tojson }}", "{{ tools | tojson(indent=1) }}"):
        outcome = compiled(source).render(chat, NOW)
        assert isinstance(outcome, TemplateFault | Rendered)
        if depth > 10_000:
            assert isinstance(outcome, TemplateFault), outcome.text[:100]
    assert isinstance(compiled("{{ messages | length }}").render(Chat((Message("user", "a"),)), NOW), Rendered)


@pytest.mark.parametrize("blank", ["\x1c", "\x1d", "\x1e", "\x1f"])
def test_blanks_that_only_python_knows_are_not_exact(blank: str) -> None:
    source = "{{ messages[0].content | trim }}"
    assert not rendered(source, say("user", f"a{blank}")).exact
    assert rendered(source, say("user", "a \t")).exact


def test_line_ends_are_as_jinja2_has_them() -> None:
    assert rendered("a\r\n{{ messages[0].role }}\rb").text == "a\nuser\nb"


@pytest.mark.parametrize("unit", ["not ", "-", "+1", "|list", ".a", "("])
def test_a_tag_too_long_for_minijinja_is_refused(unit: str) -> None:
    """It went down a level for each operator, and the process with it."""
    with pytest.raises(ValueError, match="a tag of more than 8192 characters"):
        compiled("{{ " + unit * (TAG_CHARS_MAX // len(unit) + 1) + "1 }}")
    compiled("a" * 2 * TAG_CHARS_MAX + "{{ " + "-" * (TAG_CHARS_MAX - 10) + "1 }}")


def test_an_environment_goes_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    template = compiled("{{ raise_exception('no') if messages[0].content == 'bad' }}")
    template.render(chat_of({"messages": [say("user", "bad")]}), NOW)
    monkeypatch.setattr(Jinja, "_compiled", None)
    assert isinstance(template.render(chat_of({"messages": [say("user", "good")]}), NOW), Rendered)


@pytest.mark.parametrize(
    ("source", "exact"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", True),
        ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", False),
        (
            "{{ raise_exception('no') if messages | length == 2 }}{{ messages[2].content }}",
            True,
        ),
    ],
)
def test_what_the_system_says_is_in_the_text_or_the_count_is_not_exact(source: str, exact: bool) -> None:
    """llama.cpp puts it into the user's message where a template has no place for it."""
    asked = [say("system", "s"), say("user", "a"), say("user", "b")]
    assert rendered(source, *asked).exact is exact
    assert rendered(source, *[say("user", "a")] * 3).exact
