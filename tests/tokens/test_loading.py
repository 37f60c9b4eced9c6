from pathlib import Path

import pytest

from extproc.core.request import MODEL_CHARS_MAX
from extproc.core.settings import Fault
from extproc.tokens.loading import Tokenizers, load
from tests.tokens.bpe import train


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    train(path)
    return path


def loaded(files: dict[str, Path]) -> Tokenizers:
    outcome = load(files)
    assert isinstance(outcome, Tokenizers), outcome
    return outcome


def copies(file: Path, *names: str) -> dict[str, Path]:
    files = {}
    for number, name in enumerate(names):
        files[name] = file.with_name(f"{number}.json")
        files[name].write_bytes(file.read_bytes())
    return files


def test_the_exact_name_wins_then_the_longest_pattern(file: Path) -> None:
    names = ("*", "llama-*", "llama-3*", "llama-3.1")
    tokenizers = loaded(copies(file, *names))
    by_name = {name: tokenizers.of(name) for name in names}
    assert len({id(one) for one in by_name.values()}) == 4
    assert tokenizers.of("llama-3.1") is by_name["llama-3.1"]
    assert tokenizers.of("llama-3.2") is by_name["llama-3*"]
    assert tokenizers.of("llama-2") is by_name["llama-*"]
    assert tokenizers.of("qwen") is by_name["*"]


def test_names_are_matched_with_their_case(file: Path) -> None:
    assert loaded({"Qwen*": file}).of("qwen3") is None


def test_a_name_may_hold_a_patterns_characters(file: Path) -> None:
    tokenizers = loaded({"model[1]": file})
    assert tokenizers.of("model[1]") is not None
    assert tokenizers.of("model1") is not None


def test_no_pattern_is_tried_on_a_name_that_is_too_long(file: Path) -> None:
    tokenizers = loaded({"a*": file})
    assert tokenizers.of("a" * MODEL_CHARS_MAX) is not None
    assert tokenizers.of("a" * (MODEL_CHARS_MAX + 1)) is None


def test_a_shared_file_is_loaded_once(file: Path) -> None:
    tokenizers = loaded({"a": file, "b*": file})
    assert tokenizers.of("a") is tokenizers.of("bb") is not None


def test_no_files_is_no_fault() -> None:
    assert loaded({}).of("any") is None


def test_a_missing_and_a_broken_file_name_their_pattern_and_path(tmp_path: Path, file: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"version": "1.0"')
    missing = tmp_path / "missing.json"
    outcome = load({"a": file, "b*": broken, "c": missing})
    assert isinstance(outcome, list)
    assert [fault.path for fault in outcome] == ["tokens.models.b*.tokenizer", "tokens.models.c.tokenizer"]
    assert str(broken) in str(outcome[0])
    assert str(outcome[1]) == str(
        Fault("tokens.models.c.tokenizer", "a tokenizer.json", f"{missing}: No such file or directory (os error 2)")
    )


def test_truncation_and_padding_of_the_file_are_not_applied(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    trained = train(path, truncated=True)
    trained.no_truncation()
    trained.no_padding()
    tokenizer = loaded({"a": path}).of("a")
    assert tokenizer is not None
    for text in ("a", "the quick brown fox jumps over the lazy dog " * 20):
        assert len(tokenizer.encode_batch_fast([text])[0]) == len(trained.encode(text))
