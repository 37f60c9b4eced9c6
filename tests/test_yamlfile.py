import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.settings import Fault
from extproc.yamlfile import FILE_BYTES_MAX, NESTING_MAX, Document, load


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "a.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def fault(folder: Path, text: str | bytes) -> str:
    outcome = load(written(folder, text))
    assert isinstance(outcome, Fault), outcome
    return str(outcome).replace(str(folder) + os.sep, "")


def test_a_document_is_mappings_lists_and_scalars(tmp_path: Path) -> None:
    assert load(written(tmp_path, "a: [1, 2.5, x]\nb: {c: null}\n")) == Document({"a": [1, 2.5, "x"], "b": {"c": None}})


def test_a_repeated_key_is_a_fault_with_its_place(tmp_path: Path) -> None:
    assert fault(tmp_path, "a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n") == "a.yaml:5:3: wanted YAML, got key 'c' a second time"


def test_equal_keys_of_different_mappings_are_no_fault(tmp_path: Path) -> None:
    assert load(written(tmp_path, "a: {c: 1}\nb: {c: 1}\n")) == Document({"a": {"c": 1}, "b": {"c": 1}})


def test_an_alias_is_a_fault(tmp_path: Path) -> None:
    assert fault(tmp_path, "a: &x [1]\nb: *x\n") == "a.yaml:2:4: wanted YAML, got an alias, which is not allowed"


def test_a_tag_is_a_fault(tmp_path: Path) -> None:
    assert fault(tmp_path, "a: !!int ''\n").startswith("a.yaml:1:4: wanted YAML, got a tag, 'tag:yaml.org,2002:int'")


def test_a_syntax_error_has_line_and_column(tmp_path: Path) -> None:
    assert fault(tmp_path, "a: 1\nb: [1, 2\n").startswith("a.yaml:3:1: wanted YAML, got ")


def test_a_second_document_is_a_fault(tmp_path: Path) -> None:
    assert fault(tmp_path, "a: 1\n---\nb: 1\n").startswith("a.yaml:2:1: wanted YAML, got ")


@pytest.mark.parametrize("text", [b"\xff\xfe\x00", b"a: \x80\n", b"a: 2026-13-45\n", b"a: \x01\n"])
def test_what_is_no_text_or_no_value_is_a_fault(tmp_path: Path, text: bytes) -> None:
    assert fault(tmp_path, text).startswith("a.yaml")


def test_nesting_is_bounded(tmp_path: Path) -> None:
    assert isinstance(load(written(tmp_path, "[" * NESTING_MAX + "]" * NESTING_MAX)), Document)
    deeper = NESTING_MAX + 1
    assert f"more than {NESTING_MAX} levels" in fault(tmp_path, "[" * deeper + "]" * deeper)
    assert f"more than {NESTING_MAX} levels" in fault(tmp_path, "[" * 100_000)


def test_a_files_size_is_bounded(tmp_path: Path) -> None:
    assert load(written(tmp_path, "#" * FILE_BYTES_MAX)) == Document(None)
    assert fault(tmp_path, "#" * (FILE_BYTES_MAX + 1)) == f"a.yaml: wanted at most {FILE_BYTES_MAX} bytes, got more"


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    assert load(tmp_path / "none.yaml") == Fault(
        str(tmp_path / "none.yaml"), "a readable file", "No such file or directory"
    )
    assert load(tmp_path) == Fault(str(tmp_path), "a readable file", "Is a directory")


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=60) | st.text(alphabet="[]{}:,-&*!|>'\"# \nab01.~<=?%@", max_size=60).map(str.encode))
def test_no_content_makes_load_raise(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    assert isinstance(load(path), Document | Fault)
