"""Which tokenizer counts a model's prompts, by the model's name."""

from collections.abc import Sequence
from pathlib import Path

import structlog.testing

from extproc.core.request import MODEL_CHARS_MAX
from extproc.tokens.loading import Absent, CountedModel, Tokenizers
from tests.tokens.loading.loaded import loaded


def copies(file: Path, *names: str) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for number, name in enumerate(names):
        path = file.with_name(f"{number}.json")
        path.write_bytes(file.read_bytes())
        files[name] = path
    return files


def test_the_exact_name_wins_then_the_longest_pattern(file: Path) -> None:
    names = ("*", "llama-*", "llama-3*", "llama-3.1")
    tokenizers = loaded(**copies(file, *names))
    by_name = {name: tokenizers.of(name) for name in names}
    assert len({id(one) for one in by_name.values()}) == 4
    assert tokenizers.of("llama-3.1") is by_name["llama-3.1"]
    assert tokenizers.of("llama-3.2") is by_name["llama-3*"]
    assert tokenizers.of("llama-2") is by_name["llama-*"]
    assert tokenizers.of("qwen") is by_name["*"]


def test_names_are_matched_with_their_case(file: Path) -> None:
    assert loaded(**{"Qwen*": file}).of("qwen3") is None


def test_a_name_may_hold_a_patterns_characters(file: Path) -> None:
    tokenizers = loaded(**{"model[1]": file})
    assert tokenizers.of("model[1]") is not None
    assert tokenizers.of("model1") is not None


def test_a_pattern_matches_whole_names_with_line_breaks_in_them(file: Path) -> None:
    tokenizers = loaded(**{"a*b": file})
    assert tokenizers.of("a\nb") is not None
    assert tokenizers.of("ab\n") is None


def test_no_pattern_is_tried_on_a_name_that_is_too_long(file: Path) -> None:
    tokenizers = loaded(**{"a*": file})
    assert tokenizers.of("a" * MODEL_CHARS_MAX) is not None
    assert tokenizers.of("a" * (MODEL_CHARS_MAX + 1)) is None


def test_a_base_is_counted_as_the_model_that_it_names_or_matches(file: Path, folder: Path) -> None:
    bases = {"lora": {"base": "llama-8b"}, "lora-*": {"base": "qwen-3"}}
    tokenizers = loaded(**{"llama-8b": file, "qwen-*": folder}, **bases)
    assert tokenizers.of("lora") is tokenizers.of("llama-8b") is not None
    assert tokenizers.of("lora-7") is tokenizers.of("qwen-9") is not None
    assert len(list(tokenizers)) == 1, "a folder and the file in it are one"


def test_what_is_not_required_is_logged_and_its_models_have_no_tokenizer(file: Path, tmp_path: Path) -> None:
    missing = {"tokenizer": str(tmp_path / "missing"), "required": False}
    with structlog.testing.capture_logs() as logs:
        tokenizers = loaded(**{"*": file, "gone-*": missing, "lora": {"base": "gone-1"}})
    assert tokenizers.of("gone-1") is None, "and not the longest pattern but one"
    assert tokenizers.of("lora") is None
    assert tokenizers.of("other") is not None
    reason = f"wanted a folder or a tokenizer.json, got {tmp_path / 'missing'}: No such file or directory"
    assert tokenizers.absent == {"gone-*": reason, "lora": reason}
    assert [(one["log_level"], one.get("model")) for one in logs] == [("info", "*"), ("warning", "gone-*")]


def test_no_entries_are_no_fault() -> None:
    tokenizers = loaded()
    assert tokenizers.of("any") is None
    assert list(tokenizers) == []


def test_what_entries_share_is_loaded_once(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "other.jinja").write_text("{{ messages[0].content }}")
    other = {"tokenizer": str(folder), "chat_template": tmp_path / "other.jinja"}
    tokenizers = loaded(a=folder, b=tmp_path / "link", c=other, d=other)
    a, c = list(tokenizers)
    assert a is tokenizers.of("a") is tokenizers.of("b")
    assert c is tokenizers.of("c") is tokenizers.of("d")
    assert (c.encoder, c.seed) == (a.encoder, a.seed)


def test_different_vocabularies_have_different_seeds(file: Path) -> None:
    tokenizers = loaded(**copies(file, "a", "b", "c"))
    assert len({one.seed for one in tokenizers}) == 3


class Heard:
    """An encoder that tells what it was asked."""

    engine = "tokenizers"
    reason = "told to"

    def __init__(self) -> None:
        self.texts: list[str] = []

    def counts(self, texts: Sequence[str], add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        self.texts += texts
        return [1] * len(texts)

    def ids(self, texts: Sequence[str]) -> list[bytes]:
        return [bytes(4)] * len(texts)


def test_warming_encodes_once_with_each() -> None:
    heard = [Heard(), Heard()]
    a, b = (CountedModel("m", one, 0, number) for number, one in enumerate(heard))
    Tokenizers({"a": a, "b": b, "a*": a, "c": Absent("gone")}).warm()
    assert [len(one.texts) for one in heard] == [1, 1]
