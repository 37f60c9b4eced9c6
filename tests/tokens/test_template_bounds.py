import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from extproc.prompt import Chat, Message
from extproc.tokens.jinja import TAG_CHARS_MAX, Jinja
from extproc.tokens.template import Rendered, TemplateFault
from tests.tokens.references.asked import chat_of, raw
from tests.tokens.references.chats import NOW, TOOLS, say
from tests.tokens.rendering import CHATML, compiled, fault, text


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
