import pytest

from extproc.tokens.parts import goes_through_parts

LOOP = "{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        (LOOP, True),
        (LOOP.replace("m.content", "m['content']"), True),
        (LOOP.replace("m.content", 'm[ "content" ] | selectattr("type", "equalto", "text") | list'), True),
        (LOOP.replace("in m.content", "in m.content[1:] if p.type == 'text'"), True),
        (LOOP.replace("{% for p in m.content %}", "{%- for p in (m.content) -%}"), True),
        (LOOP.replace("in messages", "in messages[1:] recursive"), True),
        ("{% set rest = messages[1:] %}{% set rest = rest %}" + LOOP.replace("messages", "rest | list"), True),
        ("{% set a = b %}{% set b = messages %}" + LOOP.replace("messages", "a"), True),
        ("{% set rest = messages if a else b %}" + LOOP.replace("messages", "rest"), False),
        (LOOP.replace("m.content", "m.content[0]"), False),
        (LOOP.replace("m.content", "m.content.parts"), False),
        (LOOP.replace("m.content", "m.contents"), False),
        (LOOP.replace("m.content", "other.content"), False),
        (LOOP.replace("messages", "messages + more"), False),
        ("{#" + LOOP + "#}", False),
        ("{% set ns.rest = messages %}" + LOOP, False),
        (LOOP + "{% for a, b in messages | items %}{% endfor %}", False),
        ("{% set content = messages[0].content %}{% for p in content %}{% endfor %}", False),
    ],
)
def test_a_template_that_goes_through_parts_is_known_by_its_loops(source: str, expected: bool) -> None:
    assert goes_through_parts(source) is expected
