import json
import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import huggingface_hub
import pytest
import structlog.testing
from msgspec import Raw
from tokenizers import AddedToken, Tokenizer, processors

from extproc.core.request import MODEL_CHARS_MAX
from extproc.core.settings import Fault
from extproc.prompt import Chat, Message
from extproc.tokens import folder as folders
from extproc.tokens.loading import Absent, CountedModel, Tokenizers, load
from extproc.tokens.template import Rendered, Renderer
from extproc.tokensettings import ModelTokenizer, TokenSettings
from tests.tokens.bpe import train

TEMPLATE: Final = "{% for m in messages %}<|u|>{{ m.content }}{% endfor %}"
CHAT: Final = Chat((Message(role="user", content="a"), Message(role="assistant", content="b")))
WITH_TOOLS: Final = Chat(CHAT.messages, tools=Raw(b'[{"type": "function", "function": {"name": "f"}}]'))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model" / "tokenizer.json"
    path.parent.mkdir()
    train(path)
    return path


@pytest.fixture
def folder(file: Path) -> Path:
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_tokens([AddedToken("<|u|>", special=True, normalized=False)])
    tokenizer.save(str(file))
    (file.parent / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": TEMPLATE}))
    return file.parent


def outcome(**entries: Any) -> Tokenizers | list[Fault]:
    models = {name: {"tokenizer": str(one)} if isinstance(one, Path) else one for name, one in entries.items()}
    return load(TokenSettings.model_validate({"models": models}))


def loaded(**entries: Any) -> Tokenizers:
    tokenizers = outcome(**entries)
    assert isinstance(tokenizers, Tokenizers), tokenizers
    return tokenizers


def model(**entry: Any) -> CountedModel:
    found = loaded(m=entry).of("m")
    assert found is not None
    return found


def faults(**entries: Any) -> list[str]:
    told = outcome(**entries)
    assert isinstance(told, list)
    return [str(fault) for fault in told]


def text_of(counted: CountedModel, chat: Chat = CHAT) -> str:
    assert counted.template is not None
    rendered = counted.template.render(chat, datetime(2026, 1, 1, tzinfo=UTC))
    assert isinstance(rendered, Rendered), rendered
    return rendered.text


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


def test_warming_encodes_once_with_each() -> None:
    heard = [Heard(), Heard()]
    a, b = (CountedModel("m", one, 0, number) for number, one in enumerate(heard))
    Tokenizers({"a": a, "b": b, "a*": a, "c": Absent("gone")}).warm()
    assert [len(one.texts) for one in heard] == [1, 1]


def test_no_entries_are_no_fault() -> None:
    tokenizers = loaded()
    assert tokenizers.of("any") is None
    assert list(tokenizers) == []


def test_a_folder_has_its_template_tokens_and_boundary(folder: Path) -> None:
    counted = model(tokenizer=str(folder))
    assert counted.name == str(folder)
    assert counted.encoder.engine == "fastokens"
    assert counted.special_tokens == 1
    assert counted.boundary == "<|u|>"
    assert text_of(counted) == "<|u|>a<|u|>b"


def test_a_tokenizer_json_is_as_its_folder(folder: Path) -> None:
    counted = model(tokenizer=str(folder / "tokenizer.json"))
    assert text_of(counted) == "<|u|>a<|u|>b"


def test_what_stands_beside_a_file_of_another_name_belongs_to_others(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "mine.json")
    assert model(tokenizer=str(folder / "mine.json")).template is None


def test_a_model_without_a_template_has_no_boundary(file: Path) -> None:
    counted = model(tokenizer=str(file))
    assert counted.template is None
    assert counted.boundary is None


def test_an_entrys_own_template_goes_before_the_folders(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_bytes(b"one\r\n{{ bos_token }}{{ messages[0].content }}")
    (folder / "chat_template.jinja").write_text("two")
    assert text_of(model(tokenizer=str(folder), chat_template=tmp_path / "own.jinja")) == "one\n<s>a"


def test_an_entrys_own_template_renders_tools_too(folder: Path) -> None:
    own = folder / "own.jinja"
    own.write_text("own")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": {"default": "1", "tool_use": "2"}}))
    counted = model(tokenizer=str(folder), chat_template=own)
    assert (text_of(counted), text_of(counted, WITH_TOOLS)) == ("own", "own")


def test_a_template_file_goes_before_a_json_and_that_before_the_configurations(folder: Path) -> None:
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "three"}))
    assert text_of(model(tokenizer=str(folder))) == "three"
    (folder / "chat_template.jinja").write_text("two")
    assert text_of(model(tokenizer=str(folder))) == "two"


@pytest.mark.parametrize("listed", [True, False])
def test_of_several_templates_the_default_one_renders_and_another_one_tools(folder: Path, listed: bool) -> None:
    templates: object = {"default": "one", "tool_use": "two", "rag": "{% nonsense"}
    if listed:
        templates = [{"name": "tool_use", "template": "two"}, {"name": "default", "template": "one"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    counted = model(tokenizer=str(folder))
    assert (text_of(counted), text_of(counted, WITH_TOOLS)) == ("one", "two")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("three")
    counted = model(tokenizer=str(folder))
    assert (text_of(counted), text_of(counted, WITH_TOOLS)) == ("one", "three")


def test_tokens_of_the_configuration_alone_are_control_tokens(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"extra_special_tokens": ["<|new|>"]}))
    assert model(tokenizer=str(folder)).encoder.counts(["<|new|>"], add_special_tokens=False) == [1]


@pytest.mark.parametrize(
    ("tokens", "renderer"),
    [
        (["<|channel|>", "<|constrain|>"], Renderer.HARMONY),
        (["[INST]", "[AVAILABLE_TOOLS]"], Renderer.MISTRAL),
        (["<|channel|>", "[INST]"], Renderer.TEMPLATE),
    ],
)
def test_families_that_have_their_own_renderer_are_known_by_their_tokens(
    folder: Path, tokens: list[str], renderer: Renderer
) -> None:
    config = {"chat_template": TEMPLATE, "extra_special_tokens": tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    template = model(tokenizer=str(folder)).template
    assert template is not None
    assert template.renderer is renderer


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


def test_each_loaded_tokenizer_is_told_with_what_was_found(folder: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        loaded(a=folder, b=folder)
    [told] = logs
    assert told.pop("seconds") >= 0
    assert told.pop("reason").startswith("agrees with tokenizers on ")
    assert told == {
        "event": "tokenizer loaded",
        "log_level": "info",
        "model": "a",
        "tokenizer": str(folder),
        "engine": "fastokens",
        "template": "its own",
        "renderer": "template",
        "boundary": "<|u|>",
        "remark": "its chat template leaves out '<s>', which llama.cpp puts there: chats are never exact",
    }


def test_every_fault_is_told_with_its_entry_and_path(tmp_path: Path, file: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"version": "1.0"')
    missing = tmp_path / "missing.json"
    told = outcome(**{"a": file, "b*": broken, "c": missing, "d": missing})
    assert isinstance(told, list)
    assert [fault.path for fault in told] == [f"tokens.models.{name}.tokenizer" for name in ("b*", "c", "d")]
    assert str(broken) in str(told[0])
    assert told[1].wanted == "a folder or a tokenizer.json"
    assert told[1].got == told[2].got == f"{missing}: No such file or directory"


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("tokenizer.json", b"{}", "a tokenizer.json"),
        ("tokenizer.json", b"\xff", "a tokenizer.json"),
        ("tokenizer.json", None, "a folder or a tokenizer.json"),
        ("tokenizer_config.json", b"{", "a tokenizer_config.json"),
        ("tokenizer_config.json", b'{"bos_token": 5}', "a tokenizer_config.json"),
        ("tokenizer_config.json", b'{"chat_template": "{% if %}"}', "a chat template that compiles"),
        ("chat_template.json", b"{}", "a chat_template.json"),
        ("chat_template.jinja", b"{{ a", "a chat template that compiles"),
        ("chat_template.jinja", b"\xff", "a chat template in UTF-8"),
        ("chat_template.jinja", None, "a chat template"),
    ],
)
def test_a_broken_file_is_a_fault(folder: Path, name: str, content: bytes | None, wanted: str) -> None:
    (folder / name).unlink(missing_ok=True)
    if content is None:
        os.mkfifo(folder / name)  # which nothing ever writes
    else:
        (folder / name).write_bytes(content)
    [told] = faults(m=folder)
    assert told.startswith(f"tokens.models.m.tokenizer: wanted {wanted}, got {folder}")


@pytest.mark.parametrize(
    ("content", "wanted"), [(None, "a chat template"), (b"{{ a", "a chat template that compiles"), (b"\xff", "")]
)
def test_a_broken_template_of_an_entrys_own_is_a_fault_of_that_key(
    folder: Path, content: bytes | None, wanted: str
) -> None:
    own = folder / "own.jinja"
    if content is not None:
        own.write_bytes(content)
    [told] = faults(m={"tokenizer": str(folder), "chat_template": own})
    assert told.startswith(f"tokens.models.m.chat_template: wanted {wanted}")
    assert str(own) in told


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("tokenizer.json", "TOKENIZER_BYTES_MAX"),
        ("tokenizer_config.json", "CONFIG_BYTES_MAX"),
        ("chat_template.json", "CONFIG_BYTES_MAX"),
        ("chat_template.jinja", "TEMPLATE_BYTES_MAX"),
    ],
)
def test_a_file_over_its_bound_is_a_fault(folder: Path, name: str, bound: str) -> None:
    bytes_max = getattr(folders, bound)
    with (folder / name).open("wb") as sparse:
        sparse.truncate(bytes_max + 1)
    [told] = faults(m=folder)
    assert told.endswith(f"of at most {bytes_max >> 20} MiB, got {folder / name}: more")


def test_a_file_of_just_its_bound_is_taken(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("x" * folders.TEMPLATE_BYTES_MAX)
    assert text_of(model(tokenizer=str(folder))) == "x" * folders.TEMPLATE_BYTES_MAX


def test_a_template_in_a_configuration_has_the_bound_of_one_in_a_file(folder: Path) -> None:
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "x" * folders.TEMPLATE_BYTES_MAX}))
    assert text_of(model(tokenizer=str(folder))) == "x" * folders.TEMPLATE_BYTES_MAX
    config.write_text(json.dumps({"chat_template": "x" * (folders.TEMPLATE_BYTES_MAX + 1)}))
    assert faults(m=folder) == [
        f"tokens.models.m.tokenizer: wanted chat templates of at most 1 MiB, got {folder}: more"
    ]


def test_a_vocabulary_that_makes_the_library_panic_is_a_fault(folder: Path) -> None:
    raw = json.loads((folder / "tokenizer.json").read_bytes())
    raw["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    [told] = faults(m=folder)
    assert "a tokenizer.json, got " in told
    assert "Cannot parse precompiled_charsmap" in told


def test_without_hub_nothing_is_ever_downloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the network is used")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    assert loaded(m=folder).of("m") is not None
    [told] = faults(m={"tokenizer": "meta-llama/Llama-3.1-8B-Instruct"})
    assert told.endswith("No such file or directory")


def test_entries_can_be_made_in_code(folder: Path) -> None:
    settings = TokenSettings(models={"m": ModelTokenizer(tokenizer=str(folder))})
    assert isinstance(load(settings), Tokenizers)


def test_folders_whose_tokenizers_are_one_file_keep_their_own_templates(folder: Path, tmp_path: Path) -> None:
    """As in the caches of hubs, where files that are equal are links to one."""
    folders = {}
    for name in ("one", "two"):
        folders[name] = tmp_path / name
        folders[name].mkdir()
        (folders[name] / "tokenizer.json").symlink_to(folder / "tokenizer.json")
        (folders[name] / "tokenizer_config.json").write_text(json.dumps({"chat_template": name}))
    for paths in (folders, {name: path / "tokenizer.json" for name, path in folders.items()}):
        tokenizers = loaded(**paths)
        for name in ("one", "two"):
            found = tokenizers.of(name)
            assert found is not None
            assert text_of(found) == name


@pytest.mark.parametrize(
    ("template", "remark"),
    [
        ("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}", None),
        (None, "no chat template: chats are counted by their texts, never exactly"),
        ("{{ raise_exception('no') }}", "its chat template fails on a plain chat, so chats are estimated: "),
        ("hello", "its chat template leaves out what is said"),
        (TEMPLATE, "its chat template leaves out '<s>', which llama.cpp puts there: chats are never exact"),
    ],
)
def test_why_chats_are_not_exact_is_remarked(folder: Path, template: str | None, remark: str | None) -> None:
    config = {"bos_token": "<s>"} | ({} if template is None else {"chat_template": template})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    found = model(tokenizer=str(folder)).remark
    assert found == remark or (found is not None and remark is not None and found.startswith(remark))


@pytest.mark.parametrize(
    ("single", "beginning"), [("<s> $A", "<s>"), ("<s> $A <s>", "<s>"), ("$A", ""), ("$A <s>", "")]
)
def test_a_tokenizers_beginning_is_what_it_puts_in_front(file: Path, single: str, beginning: str) -> None:
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 0)])
    tokenizer.save(str(file))
    assert model(tokenizer=str(file.parent)).beginning == beginning
