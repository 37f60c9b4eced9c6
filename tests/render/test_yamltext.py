from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extproc.render.yamltext import WIDTH, yaml_text

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Cn", "Zl", "Zp", "Co"]), max_size=300)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(0.001, 1000) | TEXTS
WORDS = st.sampled_from(
    ["yes", "on", "1", "1e3", "~", "null", "a b", "- a", "a: b", "#", "0x1f", "2026-01-01", "!x", "é"]
)
TREES = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS.filter(bool) | WORDS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(TEXTS.filter(bool) | WORDS, TREES, max_size=5))
def test_what_is_written_is_read_again(mapping: dict[str, Any]) -> None:
    assert (yaml.safe_load(yaml_text(mapping, {}, "")) or {}) == mapping


@given(st.dictionaries(WORDS, TREES, max_size=5), TEXTS, TEXTS)
def test_notes_change_nothing_but_comments(mapping: dict[str, Any], note: str, head: str) -> None:
    notes = {path.replace("/", ""): note for path in mapping} | {"0": note}
    assert (yaml.safe_load(yaml_text(mapping, notes, head)) or {}) == mapping


def test_short_mappings_stand_on_one_line_and_long_texts_on_several() -> None:
    policy = '{"a": 1, "b": 2}' + ", 3" * 60
    text = yaml_text({"a": {"b": {"c": 1}}, "d": [{"key": "x", "value": policy}], "e": [{"f": 1}]}, {}, "Head.")
    assert text.startswith("# Head.\n\na: {b: {c: 1}}\nd:\n- key: x\n  value: >-\n    {")
    assert text.endswith("e: [{f: 1}]\n")
    assert max(map(len, text.splitlines())) <= WIDTH
    assert yaml.safe_load(text)["d"][0]["value"] == policy


@pytest.mark.parametrize("at", ["clusters/nodes", "nodes", "clusters/nodes/type", "other/type"])
def test_a_note_stands_once_before_the_first_place_that_it_fits(at: str) -> None:
    cluster = {"name": "nodes", "type": "STATIC", "sizes": {"type": "x" * 100}}
    text = yaml_text({"clusters": [cluster, {**cluster, "name": "other"}]}, {at: "Why."}, "")
    key = "type: STATIC" if at.endswith("type") else "- name: nodes"
    found = text.index("# Why.")
    assert text.count("# Why.") == 1
    assert text[found:].splitlines()[1].strip() == key
    assert ("name: other" in text[:found]) == at.startswith("other")


def test_an_empty_line_in_a_note_is_one_in_the_file() -> None:
    assert yaml_text({"a": 1, "b": 2, "c": 3}, {"b": "\nWhy.", "c": "\n"}, "") == "a: 1\n\n# Why.\nb: 2\n\nc: 3\n"
