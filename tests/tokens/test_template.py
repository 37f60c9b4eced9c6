import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from extproc.prompt import Chat, Message
from extproc.tokens.template import ChatTemplate, Rendered, Renderer
from tests.tokens.families import family_folder
from tests.tokens.references.asked import chat_of
from tests.tokens.references.chats import CHATS, FOLDER, NOW, OURS, TOOLS, call, say
from tests.tokens.rendering import CHATML, FUEL, compiled, fault, rendered, text

RECORDED: dict[str, dict[str, dict[str, Any]]] = json.loads(FOLDER.joinpath("chats.json").read_text())["families"]


FRACTIONS = {"tools", "tools with a system message", "calls and results", "reasoning"}
"""Their tools have numbers that llama.cpp writes in another way."""


INEXACT = FRACTIONS | {"tools in another order", "continued"}


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


@pytest.mark.parametrize("blank", ["\x1c", "\x1d", "\x1e", "\x1f"])
def test_blanks_that_only_python_knows_are_not_exact(blank: str) -> None:
    source = "{{ messages[0].content | trim }}"
    assert not rendered(source, say("user", f"a{blank}")).exact
    assert rendered(source, say("user", "a \t")).exact


def test_line_ends_are_as_jinja2_has_them() -> None:
    assert rendered("a\r\n{{ messages[0].role }}\rb").text == "a\nuser\nb"


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
